package io.shmring.spark.write;

import io.shmring.Ring;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.UUID;

/** Writes a query's record where there is no memory, and where there is; says what became of it. */
public final class SinkRecordCheck {
  private SinkRecordCheck() {}

  public static void main(String[] arguments) throws Exception {
    try (Ring ring = Ring.createTemporary("check", 1024)) {
      String query = UUID.randomUUID().toString();
      SinkRecord record = new SinkRecord(ring, ring.path(), query);
      Path path = ring.path().resolveSibling(".shmring-sink-shmring.check-" + query);
      Path filler = ring.path().resolveSibling("filler");
      fill(filler);
      refused(() -> record.write(0, 5, false));
      System.out.println(Files.exists(path) + " " + record.read());
      Files.delete(filler);
      Files.createFile(path); // killed between open and write
      System.out.println(record.read());
      record.write(0, 5, false);
      System.out.println(PosixFilePermissions.toString(Files.getPosixFilePermissions(path)));
      fill(filler);
      record.write(0, 5, true); // into the page that it has
      System.out.println(record.read().map(entry -> entry.epoch() + " " + entry.done()));
      Files.delete(filler);
      Files.write(path, new byte[40]); // the beginning of a first one
      System.out.println(record.read());
      record.write(1, 6, true);
      System.out.println(record.read().map(entry -> entry.epoch() + " " + entry.done()));
      Files.writeString(path, "x".repeat(128));
      refused(record::read);
      Path elsewhere = ring.path().resolveSibling("elsewhere");
      Files.move(path, elsewhere);
      Files.createLink(path, elsewhere);
      refused(record);
      Files.delete(path);
      Files.createSymbolicLink(path, elsewhere);
      refused(record);
      Files.delete(path);
      Files.createDirectory(path);
      refused(record);
      Files.delete(path);
      new ProcessBuilder("mkfifo", path.toString()).inheritIO().start().waitFor();
      refused(record);
      Files.delete(path);
      record.write(1, 6, true);
      Files.setPosixFilePermissions(path, PosixFilePermissions.fromString("rw-rw-rw-"));
      refused(record);
      try (var sparse = FileChannel.open(elsewhere, StandardOpenOption.WRITE)) {
        sparse.write(ByteBuffer.allocate(1), 20L << 30);
      }
      Files.move(elsewhere, path, StandardCopyOption.REPLACE_EXISTING);
      refused(record::read);
      Files.delete(path);
    }
  }

  private static void refused(SinkRecord record) {
    refused(record::read);
    refused(() -> record.write(2, 7, true));
  }

  private static void refused(Runnable act) {
    try {
      act.run();
      System.out.println("nothing");
    } catch (RuntimeException error) {
      System.out.println(error.getMessage());
    }
  }

  private static void fill(Path filler) throws IOException {
    byte[] page = new byte[4096];
    try (var file = Files.newOutputStream(filler)) {
      while (true) {
        file.write(page);
      }
    } catch (IOException full) {
      return;
    }
  }
}
