package io.shmring;

import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;

/** Loads the JNI library from the jar. */
final class NativeLibrary {
  /** Names a library to load instead of the jar's, for a temporary folder that is mounted noexec. */
  private static final String PROPERTY = "shmring.library";

  private NativeLibrary() {}

  static void load() {
    String given = System.getProperty(PROPERTY);
    if (given != null) {
      System.load(given);
      return;
    }
    String resource = "/io/shmring/linux-" + architecture() + "/libshmring_jni.so";
    try (InputStream library = NativeLibrary.class.getResourceAsStream(resource)) {
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

  /** Loads a copy in a new folder: each class loader needs its own copy. */
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
