package io.shmring;

import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.nio.Buffer;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;

/**
 * The functions of the C library, whose handles and addresses are numbers here. Callers check that
 * handles are open and that copies stay inside the memory.
 */
final class Native {
  /**
   * System property with the path of a library to load instead of the jar's library. The jar's
   * library is copied to the temporary folder first, and cannot be loaded if that folder is mounted
   * noexec.
   */
  private static final String PROPERTY = "shmring.library";

  static {
    load();
  }

  private Native() {}

  static native byte[] pathOf(byte[] name);

  static native long attach(byte[] path, int flags);

  // CHANGE: edit this for a new option of a ring
  static native long create(
      byte[] path, long slots, byte[] schema, boolean singleProducer, boolean temporary);

  static native long openOrCreate(byte[] path, long slots);

  static native boolean unlink(long ring, byte[] path);

  static native boolean reap(byte[] path);

  static native void closeRing(long ring);

  static native void info(long ring, long[] result);

  static native byte[] schemaBytes(long ring);

  static native long claimed(long ring);

  static native long floor(long ring);

  static native byte[] explainFull(long ring);

  static native int recover(long ring);

  static native void subscribe(
      long ring, byte[] branch, int start, long sequence, int flags);

  static native void unsubscribe(long ring, byte[] branch);

  static native boolean branch(long ring, byte[] branch, long[] result);

  static native byte[] lastingBranch(long ring, int id);

  static native long openProducer(long ring, byte[] name);

  static native void closeProducer(long producer);

  static native void interruptProducer(long producer);

  static native long slotsFor(long length, boolean aligned);

  static native long next(long producer, int slots);

  static native int publish(long producer, int[] parts, int kind);

  static native int abort(long producer);

  static native long push(long producer, long data, int length, int kind);

  static native long pushLarge(long ring, long producer, byte[] data, int kind);

  static native int waitSpace(long producer, long slots, long deadline, int strategy);

  static native long slotAddress(long ring, long sequence);

  static native long join(
      long ring, byte[] branch, int start, long sequence, int flags, byte[] name);

  static native void closeConsumer(long consumer);

  static native void abandonConsumer(long consumer);

  static native void interruptConsumer(long consumer);

  static native void takeEnds(long consumer);

  static native void hearEnds(long consumer, long since);

  static native void deadLetters(long consumer, int maxDeliveries, long producer);

  static native int take(
      long ring, long consumer, int maxMessages, long maxSlots, long words, int room);

  static native int read(long ring, long position, long end, long[] message);

  static native int release(long consumer, long first, long end);

  static native int nack(long consumer, long first, long end);

  static native int waitMessage(long consumer, long deadline, int strategy);

  static native long available(long consumer);

  static native byte[] explainEmpty(long consumer);

  static native void overrun(long consumer, long[] range);

  static native byte[] participant(long ring, int index, long[] result);

  static native void measure(
      long ring, long from, long limit, int maxMessages, long maxSlots, long[] result);

  static native void row(long ring, long sequence, long[] result);

  static native void fill(long producer, long at, byte[] path, long offset, long length);

  static native ByteBuffer wrap(long address, long length);

  /**
   * Returns the address of a direct buffer. The caller keeps the buffer alive while the address is
   * used.
   */
  static native long address(Buffer buffer);

  static native int publishMany(long producer, long last, long lengths);

  private static void load() {
    String given = System.getProperty(PROPERTY);
    if (given != null) {
      System.load(given);
      return;
    }
    String resource = "/io/shmring/linux-" + architecture() + "/libshmring_jni.so";
    try (InputStream library = Native.class.getResourceAsStream(resource)) {
      if (library == null) {
        throw new UnsatisfiedLinkError(
            "this shmring jar has no "
                + resource
                + ": shmring runs on 64-bit Linux, and the jar must come from a wheel for this"
                + " machine");
      }
      loadCopy(library);
    } catch (IOException error) {
      throw new UncheckedIOException(
          "cannot unpack shmring's native library; set -Djava.io.tmpdir, or -D"
              + PROPERTY
              + "=/path/to/libshmring_jni.so",
          error);
    }
  }

  /** Loads a copy of the library from a new folder: each class loader needs its own copy. */
  private static void loadCopy(InputStream library) throws IOException {
    Path folder = Files.createTempDirectory("shmring-");
    Path copy = folder.resolve("libshmring_jni.so");
    try {
      Files.copy(library, copy);
      System.load(copy.toString());
    } finally {
      Files.deleteIfExists(copy);
      Files.delete(folder);
    }
  }

  private static String architecture() {
    String name = System.getProperty("os.arch");
    return switch (name) {
      case "amd64" -> "x86_64";
      case "arm64" -> "aarch64";
      default -> name;
    };
  }
}
