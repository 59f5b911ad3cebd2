package io.shmring.spark;

import com.codahale.metrics.Gauge;
import io.shmring.spark.request.WorkerMetrics;
import java.util.Map;
import org.apache.spark.api.plugin.DriverPlugin;
import org.apache.spark.api.plugin.ExecutorPlugin;
import org.apache.spark.api.plugin.PluginContext;
import org.apache.spark.api.plugin.SparkPlugin;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Starts an attendant with every executor: a process that makes rings and runs sidecars, and that
 * ends with the executor. At its end the attendant stops the sidecars, and removes each ring that
 * no other process uses. Spark's metrics get gauges of the sidecars, the rings and the Python
 * functions over rings. Set
 * {@code spark.plugins=io.shmring.spark.ShmringPlugin} and, for a sidecar "scorer" and a ring
 * "orders", for example:
 *
 * <pre>
 * spark.shmring.sidecar.scorer.function   scorer:Scorer     a function that shmring serves, or:
 * spark.shmring.sidecar.scorer.command    ./scorer --fast   a program that serves the sidecar
 * spark.shmring.sidecar.scorer.workers    2                 other options are set like this one
 * spark.shmring.sidecar.scorer.shared     true              one sidecar for all executors of a host
 * spark.shmring.ring.orders.slots         65536             the ring is made if it does not exist
 * spark.shmring.python                    python3           default: the Python that Spark runs
 * </pre>
 */
public final class ShmringPlugin implements SparkPlugin {
  @Override
  public DriverPlugin driverPlugin() {
    return new DriverPlugin() {};
  }

  @Override
  public ExecutorPlugin executorPlugin() {
    return new PerExecutor();
  }

  /**
   * Starts the attendant when an executor starts. init() never throws, because an exception ends
   * the executor: Spark would start executor after executor, and each would fail like the first.
   */
  private static final class PerExecutor implements ExecutorPlugin {
    private static final Logger LOG = LoggerFactory.getLogger(ShmringPlugin.class);
    private Attendant attendant;

    @Override
    public void init(PluginContext context, Map<String, String> extra) {
      begin(context);
      try {
        WorkerMetrics.gauges().forEach(context.metricRegistry()::register);
      } catch (RuntimeException | LinkageError error) { // this Spark lacks a class the gauges need
        LOG.warn("this executor has no metrics of Python functions: {}", error.getMessage());
      }
    }

    private void begin(PluginContext context) {
      try {
        Attendant.Config config = Attendant.Config.of(context.conf());
        if (config.isEmpty()) {
          if (!context.conf().get("spark.shmring.functions", "off").equals("on")) {
            LOG.warn("neither spark.shmring.sidecar.* nor spark.shmring.ring.* is set");
          }
          return;
        }
        Attendant started = new Attendant(config);
        for (String name : config.metricNames()) {
          Gauge<Long> gauge = () -> started.metric(name);
          context.metricRegistry().register(name, gauge);
        }
        started.start();
        attendant = started;
      } catch (RuntimeException | LinkageError error) {
        LOG.error("this executor has no sidecars: {}", error.getMessage(), error);
      }
    }

    @Override
    public void shutdown() {
      if (attendant != null) {
        attendant.close();
      }
    }
  }
}
