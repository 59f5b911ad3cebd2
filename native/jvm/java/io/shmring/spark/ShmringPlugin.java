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
 * {@code spark.plugins=io.shmring.spark.ShmringPlugin}: rings and sidecars for every executor, for as
 * long as it lives, and gauges of them and of Python functions over rings.
 *
 * <pre>
 * spark.shmring.sidecar.scorer.function   scorer:Scorer     served by the plugin's own process, or
 * spark.shmring.sidecar.scorer.command    ./scorer --fast   any program
 * spark.shmring.sidecar.scorer.workers    2                 likewise: the other options of a sidecar
 * spark.shmring.sidecar.scorer.shared     true              one for all executors of the host
 * spark.shmring.ring.orders.slots         65536             made unless it is there
 * spark.shmring.python                    python3           default: what Spark runs
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
   * Starts the attendant with each executor. init() never throws: otherwise Spark would start new
   * executors again and again, and none could begin.
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
