package io.shmring;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Optional;

/**
 * A small file beside a ring. Other users can know its name, and may plant a file, a link or a FIFO
 * there. Both methods refuse everything except a regular file that this user owns, that has no
 * second name (hard link), and that other users may write only if they may write the ring. For
 * shmring's own packages; may change in any version.
 */
public final class OwnFile {
  private static final int PERMISSIONS = 07777;

  private final Path path;
  private final Path ring;

  /**
   * @param path the file
   * @param ring the ring's file, whose permissions the written file gets
   */
  public OwnFile(Path path, Path ring) {
    this.path = path;
    this.ring = ring;
  }

  /** Returns the first `most` bytes of the file, at most 4,096; empty if there is no file. */
  public Optional<byte[]> read(int most) throws IOException {
    return Optional.ofNullable(Native.readOwn(bytes(), mode(), most));
  }

  /**
   * Writes the content over the beginning of the file by one system call; makes the file if there
   * is none. If the write fails, for example because the disk is full, throws, and removes the file
   * if it was shorter than the content, because it may now hold a part of the content.
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
