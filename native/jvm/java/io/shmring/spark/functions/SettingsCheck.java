package io.shmring.spark.functions;

import io.shmring.spark.job.Options;
import io.shmring.spark.request.Call.PythonCall;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.stream.Stream;
import org.apache.spark.sql.internal.SQLConf;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Finds wrong settings of shmring: Spark accepts any value of them, and any name that begins with
 * spark.shmring. A switch with a wrong value is off. shmring.spark.status() in Python calls {@link
 * #wrong}.
 */
public final class SettingsCheck {
  /** Setting: "on" or "off"; "on" collects results of the driver over shared memory. */
  public static final String DRIVER = "spark.shmring.driver";

  /** Setting: maximum bytes of a result that the driver collects. */
  public static final String DRIVER_MOST_BYTES = "spark.shmring.driver.maxBytes";

  /** Setting: the Python of the plugin's sidecars. */
  public static final String PYTHON = "spark.shmring.python";

  /** Beginning of the plugin's settings of a sidecar; the attendant checks them. */
  public static final String SIDECAR = "spark.shmring.sidecar.";

  /** Beginning of the plugin's settings of a ring; the attendant checks them. */
  public static final String RING = "spark.shmring.ring.";

  private static final String PREFIX = "spark.shmring.";
  private static final String PLUGIN = "io.shmring.spark.ShmringPlugin";
  private static final List<String> ON_OR_OFF = List.of("on", "off");
  // Names of the settings that switch functions over rings, or parts of their work, on or off.
  private static final List<String> SWITCHES =
      List.of(PythonCalls.SWITCH, PythonCall.CONVERSIONS, PythonCall.WARM_WORKERS);
  // CHANGE: edit this for a new setting of Spark's sessions
  // Allowed values of each setting; empty if any value is allowed, or if the code that reads the
  // setting checks the value.
  private static final Map<String, List<String>> VALUES =
      Map.of(
          PythonCalls.SWITCH, ON_OR_OFF,
          PythonCall.CONVERSIONS, ON_OR_OFF,
          PythonCall.WARM_WORKERS, ON_OR_OFF,
          DRIVER, ON_OR_OFF,
          FunctionStrategy.DIRECT, List.of("true", "false"),
          DRIVER_MOST_BYTES, List.of(),
          PythonCall.DAEMON_SETTING, List.of(),
          PYTHON, List.of());

  private static final Logger LOG = LoggerFactory.getLogger(SettingsCheck.class);
  private static final Set<String> TOLD = ConcurrentHashMap.newKeySet();

  private SettingsCheck() {}

  /** Returns what is wrong with the session's settings of shmring: wrong values, unknown names. */
  public static List<String> wrong(SQLConf conf) {
    List<String> wrong = new ArrayList<>();
    boolean hasPlugin = conf.getConfString("spark.plugins", "").contains(PLUGIN);
    new TreeMap<>(CollectionConverters.asJava(conf.getAllConfs()))
        .subMap(PREFIX, PREFIX + Character.MAX_VALUE)
        .forEach(
            (name, value) -> {
              if (Stream.of(SIDECAR, RING).noneMatch(name::startsWith)) {
                objection(name, value).ifPresent(wrong::add);
              } else if (!hasPlugin) {
                wrong.add(name + " does nothing without spark.plugins=" + PLUGIN);
              }
            });
    return wrong;
  }

  private static Optional<String> objection(String name, String value) {
    List<String> values = VALUES.get(name);
    if (values == null) {
      return Optional.of(
          String.format(
              "%s is no setting of shmring: did you mean %s?",
              name, Options.nearest(name, VALUES.keySet())));
    }
    String given = values == ON_OR_OFF ? value : value.toLowerCase(Locale.ROOT);
    return values.isEmpty() || values.contains(given)
        ? Optional.empty()
        : Optional.of(
            String.format("%s must be %s, not %s", name, String.join(" or ", values), value));
  }

  // CHANGE: edit this for a new setting of Spark's sessions
  /** Returns what is wrong with a setting that functions over rings depend on, if anything. */
  static Optional<String> ofFunctions(SQLConf conf) {
    return SWITCHES.stream()
        .filter(conf::contains)
        .flatMap(name -> objection(name, conf.getConfString(name)).stream())
        .findFirst();
  }

  /** Logs what is wrong with the settings, once for each text. */
  public static void tellWrong(SQLConf conf) {
    wrong(conf).stream().filter(TOLD::add).forEach(LOG::warn);
  }
}
