package io.shmring.spark.sidecar;

import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.apache.spark.SparkConf;
import scala.Tuple2;

/** What Spark's configuration says of rings and sidecars. */
public final class AttendantConfig {
  private static final Set<String> OF_SIDECAR =
      Set.of("function", "command", "workers", "slots", "timeout");
  private static final Set<String> OF_FUNCTION = Set.of("workers", "slots", "timeout");
  private static final List<String> METRICS_OF_SIDECAR =
      List.of("running", "restarts", "workers", "waitingSlots");
  private static final List<String> METRICS_OF_RING = List.of("usedSlots", "claimed");

  private final String python;
  private final Map<String, Map<String, String>> sidecars;
  private final Map<String, Map<String, String>> rings;

  private AttendantConfig(
      String python,
      Map<String, Map<String, String>> sidecars,
      Map<String, Map<String, String>> rings) {
    this.python = python;
    this.sidecars = sidecars;
    this.rings = rings;
  }

  public static AttendantConfig of(SparkConf conf) {
    String usual = System.getenv().getOrDefault("PYSPARK_PYTHON", "python3");
    String python = conf.get("spark.shmring.python", conf.get("spark.pyspark.python", usual));
    return new AttendantConfig(
        python,
        group(conf, "spark.shmring.sidecar.", OF_SIDECAR),
        group(conf, "spark.shmring.ring.", Set.of("slots")));
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

  /** The line that the attendant reads. */
  String json() {
    ObjectNode json = new ObjectMapper().createObjectNode();
    ObjectNode commands = json.putObject("sidecars");
    sidecars.forEach((name, of) -> putCommand(commands, name, of));
    ObjectNode made = json.putObject("rings");
    rings.forEach(
        (name, of) -> made.putObject(name).put("slots", Long.parseLong(of.get("slots"))));
    return json.toString();
  }

  private void putCommand(ObjectNode commands, String name, Map<String, String> sidecar) {
    String function = sidecar.get("function");
    String command = sidecar.get("command");
    if ((function == null) == (command == null)) {
      throw new IllegalArgumentException(
          "spark.shmring.sidecar." + name + " wants one of .function and .command");
    }
    if (command != null) {
      commands.put(name, command); // the attendant splits it as a shell would
      return;
    }
    List<String> words =
        new ArrayList<>(
            List.of(python, "-m", "shmring", "sidecar", function, "--name", name));
    for (String option : OF_FUNCTION) {
      if (sidecar.containsKey(option)) {
        words.add("--" + option);
        words.add(sidecar.get(option));
      }
    }
    ArrayNode array = commands.putArray(name);
    words.forEach(array::add);
  }
}
