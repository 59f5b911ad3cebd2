package io.shmring.spark.plugin;

import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.spark.SparkConf;
import scala.Tuple2;

/** What Spark's configuration says of rings and sidecars. */
public final class AttendantConfig {
  private static final String FUNCTION = "function";
  private static final String COMMAND = "command";
  private static final String SLOTS = "slots";
  private static final String SHARED = "shared";

  // CHANGE: a new option of a sidecar
  private static final Set<String> OF_SIDECAR =
      Set.of(
          "function", "command", "workers", "slots", "timeout", "maxBatchRows", "maxWaitMs", "pin",
          "shared");
  private static final List<String> METRICS_OF_SIDECAR =
      List.of("running", "restarts", "workers", "waitingSlots");
  private static final List<String> METRICS_OF_RING = List.of("usedSlots", "claimed");

  private final String python;
  private final List<String> archives;
  private final Map<String, Map<String, String>> sidecars;
  private final Map<String, Map<String, String>> rings;

  private AttendantConfig(
      String python,
      List<String> archives,
      Map<String, Map<String, String>> sidecars,
      Map<String, Map<String, String>> rings) {
    this.python = python;
    this.archives = archives;
    this.sidecars = sidecars;
    this.rings = rings;
  }

  public static AttendantConfig of(SparkConf conf) {
    String usual = System.getenv().getOrDefault("PYSPARK_PYTHON", "python3");
    String python = conf.get("spark.shmring.python", conf.get("spark.pyspark.python", usual));
    return new AttendantConfig(
        python,
        archives(conf.get("spark.submit.pyFiles", "")),
        group(conf, "spark.shmring.sidecar.", OF_SIDECAR),
        group(conf, "spark.shmring.ring.", Set.of("slots")));
  }

  /** The names of those of these files that Python looks into. */
  private static List<String> archives(String files) {
    return Stream.of(files.split(","))
        .map(file -> file.substring(file.lastIndexOf('/') + 1))
        .filter(file -> file.endsWith(".zip") || file.endsWith(".egg"))
        .toList();
  }

  /** name.key=value, by name; names may have dots. */
  private static Map<String, Map<String, String>> group(
      SparkConf conf, String prefix, Set<String> keys) {
    Map<String, Map<String, String>> groups = new TreeMap<>();
    for (Tuple2<String, String> entry : conf.getAllWithPrefix(prefix)) {
      int dot = entry._1().lastIndexOf('.');
      String key = entry._1().substring(dot + 1);
      if (dot < 1 || !keys.contains(key)) {
        throw new IllegalArgumentException(
            prefix + entry._1() + " is none of " + prefix + "NAME." + String.join(", .", keys));
      }
      groups
          .computeIfAbsent(entry._1().substring(0, dot), name -> new TreeMap<>())
          .put(key, entry._2());
    }
    return groups;
  }

  public boolean isEmpty() {
    return sidecars.isEmpty() && rings.isEmpty();
  }

  public List<String> metricNames() {
    List<String> names = new ArrayList<>();
    for (String sidecar : sidecars.keySet()) {
      METRICS_OF_SIDECAR.forEach(metric -> names.add("sidecar." + sidecar + "." + metric));
    }
    for (String ring : rings.keySet()) {
      METRICS_OF_RING.forEach(metric -> names.add("ring." + ring + "." + metric));
    }
    return names;
  }

  List<String> command() {
    return List.of(python, "-m", "shmring.spark.attendant");
  }

  /**
   * Where the attendant and the sidecars look for modules that came with the job.
   *
   * @param folder into which Spark puts the job's files
   */
  String modulePath(String folder) {
    Stream<String> inArchives = archives.stream().map(name -> folder + "/" + name);
    return Stream.concat(Stream.of(folder), inArchives).collect(Collectors.joining(":"));
  }

  /** The line that the attendant reads. */
  String json() {
    ObjectNode json = new ObjectMapper().createObjectNode();
    ObjectNode started = json.putObject("sidecars");
    sidecars.forEach((name, of) -> putSidecar(started.putObject(name), name, of));
    ObjectNode made = json.putObject("rings");
    rings.forEach((name, of) -> made.putObject(name).put(SLOTS, Long.parseLong(of.get(SLOTS))));
    return json.toString();
  }

  private void putSidecar(ObjectNode json, String name, Map<String, String> sidecar) {
    String function = sidecar.get(FUNCTION);
    String command = sidecar.get(COMMAND);
    if ((function == null) == (command == null)) {
      throw new IllegalArgumentException(
          "spark.shmring.sidecar." + name + " wants one of .function and .command");
    }
    if (command != null) {
      json.put(COMMAND, command); // the attendant splits it as a shell would
    } else {
      sidecar.forEach(json::put); // the attendant reads the numbers
    }
    json.put(SHARED, Boolean.parseBoolean(sidecar.get(SHARED)));
  }
}
