package io.shmring.spark.job;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import io.shmring.Ring;
import io.shmring.RingException;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.URI;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.function.Function;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * The rings that the option "ring" names: one ring, a list with commas, or patterns such as
 * orders-*.
 */
public final class RingNames {
  private RingNames() {}

  public static List<String> of(CaseInsensitiveStringMap options) {
    List<String> names = new ArrayList<>();
    for (String part : given(options).split(",")) {
      String name = withoutScheme(part.strip());
      if (isPattern(name)) {
        names.addAll(matching(name));
      } else if (!name.isEmpty()) {
        names.add(name);
      }
    }
    if (names.isEmpty()) {
      throw new IllegalArgumentException(
          "format(\"shmring\") needs .option(\"ring\", NAME) or .load(NAME): the name of a ring, a list"
              + " with commas, or a pattern such as orders-*");
    }
    return options.getOrDefault("hosts", "").isBlank()
        ? distinct(names, RingNames::identity)
        // Compare paths: the rings are on other hosts, where identity() cannot read their uuids.
        : distinct(names, Ring::path);
  }

  private static List<String> distinct(List<String> names, Function<String, Object> identity) {
    Set<Object> seen = new HashSet<>();
    return names.stream().filter(name -> seen.add(identity.apply(name))).toList();
  }

  /**
   * Returns the identity of a ring, however its name is written: its UUID if the driver can read
   * the ring, else the path that the ring would have.
   */
  public static Object identity(String name) {
    try (Ring ring = Ring.attachReadOnly(name)) {
      return ring.info().uuid();
    } catch (RingException error) {
      return Ring.path(name);
    }
  }

  /**
   * Returns the option "ring", else the argument of load() or save(). The option comes first
   * because a table in a catalog has a path too.
   */
  private static String given(CaseInsensitiveStringMap options) {
    String ring = options.getOrDefault("ring", "");
    String paths = options.getOrDefault("paths", "");
    if (ring.isBlank() && !paths.isEmpty()) {
      return String.join(",", parsed(paths));
    }
    return ring.isBlank() ? options.getOrDefault("path", "") : ring;
  }

  /** Returns the path in a name that is a URI, as a table's LOCATION is. */
  private static String withoutScheme(String name) {
    return name.startsWith("file:") ? URI.create(name).getPath() : name;
  }

  /** Parses several arguments of load(), which Spark passes as JSON. */
  private static String[] parsed(String paths) {
    try {
      return new ObjectMapper().readValue(paths, String[].class);
    } catch (JsonProcessingException error) {
      throw new IllegalArgumentException("option paths must be an array, not " + paths, error);
    }
  }

  private static boolean isPattern(String name) {
    return name.indexOf('*') >= 0 || name.indexOf('?') >= 0 || name.indexOf('[') >= 0;
  }

  private static List<String> matching(String pattern) {
    boolean named = !pattern.contains("/");
    Path path = Path.of(named ? Ring.PREFIX + pattern : pattern).toAbsolutePath();
    List<String> names = new ArrayList<>();
    try (DirectoryStream<Path> found =
        Files.newDirectoryStream(path.getParent(), path.getFileName().toString())) {
      for (Path file : found) {
        names.add(file.toString().substring(named ? Ring.PREFIX.length() : 0));
      }
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
    if (names.isEmpty()) {
      throw new IllegalArgumentException("no ring on this host matches \"" + pattern + "\"");
    }
    names.sort(null);
    return names;
  }

  /** Returns whether a ring's file is on this host, even if the file cannot be attached to. */
  public static boolean isHere(String name) {
    return Files.exists(Ring.path(name));
  }
}
