package io.shmring.spark;

import io.shmring.spark.sidecar.PythonStrategy;
import io.shmring.spark.sidecar.SidecarColumns;
import io.shmring.spark.sidecar.SidecarStrategy;
import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.SparkSessionExtensionsProvider;
import scala.runtime.BoxedUnit;

/** Extends a session that is started with the jar; Spark finds this class by name. */
public final class ShmringExtensions implements SparkSessionExtensionsProvider {
  @Override
  public BoxedUnit apply(SparkSessionExtensions extensions) {
    extensions.injectPlannerStrategy(session -> new PlanCheck());
    extensions.injectPlannerStrategy(session -> new SidecarStrategy());
    extensions.injectPlannerStrategy(session -> new PythonStrategy());
    extensions.injectColumnar(session -> new SidecarColumns());
    return BoxedUnit.UNIT;
  }
}
