package io.shmring.spark;

import io.shmring.spark.sidecar.SidecarColumns;
import io.shmring.spark.sidecar.SidecarStrategy;
import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.SparkSessionExtensionsProvider;
import scala.runtime.BoxedUnit;

/** What the jar adds to a session that is started with it; Spark finds it by its name. */
public final class ShmringExtensions implements SparkSessionExtensionsProvider {
  @Override
  public BoxedUnit apply(SparkSessionExtensions extensions) {
    extensions.injectPlannerStrategy(session -> new PlanCheck());
    extensions.injectPlannerStrategy(session -> new SidecarStrategy());
    extensions.injectColumnar(session -> new SidecarColumns());
    return BoxedUnit.UNIT;
  }
}
