package io.shmring;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Optional;

/**
 * A small file beside a ring. Other users can know its name, and may plant a file, a link or a FIFO
 * there. Both calls refuse everything but a regular file which this user owns, and which nobody else
 * may write unless he may write the ring. For shmring's own packages; it may change in any version.
 */
public final class OwnFile {
  private static final int PERMISSIONS = 07777;

  private final Path path;
  private final Path ring;

  /**
   * @param path of the file
   * @param ring the file whose permissions it gets
   */
  public OwnFile(Path path, Path ring) {
    this.path = path;
    this.ring = ring;
  }

  /** Returns the beginning of the file, up to 4,096 bytes; empty if there is no file. */
  public Optional<byte[]> read(int most) throws IOException {
    return Optional.ofNullable(Native.readOwn(bytes(), mode(), most));
  }

  /**
   * Replaces the beginning of the file by one system call; makes the file if there is none. If there
   * is no room for the bytes, a file that was shorter is removed.
   */
  public void write(byte[] content) throws IOException {
    Native.writeOwn(bytes(), mode(), content);
  }

  private byte[] bytes() {
    return Ring.utf8(path.toString());
  }

  private int mode() throws IOException {
    return (int) Files.getAttribute(ring, "unix:mode") & PERMISSIONS;
  }
}
