import io.shmring.Ring;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.stream.Stream;

/** Closes temporary rings whose file was removed, then made anew: prints how many of their maps are left. */
public final class CloseCheck {
  private CloseCheck() {}

  public static void main(String[] arguments) throws IOException {
    for (boolean remade : new boolean[] {false, true}) {
      Ring ring = Ring.createTemporary(arguments[0], 1024);
      Files.delete(Ring.path(arguments[0]));
      if (remade) {
        Ring.createSingleProducer(arguments[0], 1024, new byte[0]);
      }
      ring.close();
      try (Stream<String> maps = Files.lines(Path.of("/proc/self/maps"))) {
        System.out.println(
            maps.filter(map -> map.contains(arguments[0]) && map.contains("(deleted)")).count());
      }
    }
  }
}
