package io.shmring.spark;

import io.shmring.spark.read.ReadOptions;
import io.shmring.spark.read.RingReads;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.ReturnAnswer;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.SparkStrategy;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.BoxedUnit;

/**
 * Refuses plans that read a branch twice, whose two reads would share its messages. It plans
 * nothing, and looks at each plan as a whole, behind the optimizer and what is cached.
 */
final class PlanCheck extends SparkStrategy {
  @Override
  public Seq<SparkPlan> apply(LogicalPlan plan) {
    if (plan instanceof ReturnAnswer) {
      Map<List<String>, ShmringScan> seen = new HashMap<>();
      plan.foreachWithSubqueries(
          node -> {
            if (node instanceof DataSourceV2ScanRelation relation
                && relation.scan() instanceof ShmringScan scan) {
              check(scan, seen);
            }
            return BoxedUnit.UNIT;
          });
    }
    return CollectionConverters.<SparkPlan>asScala(List.of()).toList();
  }

  private static void check(ShmringScan scan, Map<List<String>, ShmringScan> seen) {
    ReadOptions options = scan.options();
    if (options.branch().isEmpty()) {
      return;
    }
    for (String ring : options.rings()) {
      ShmringScan other = seen.putIfAbsent(List.of(ring, options.branch()), scan);
      if (other != null && other != scan) { // the optimizer may repeat a subquery, which is run once
        throw new IllegalArgumentException(
            String.format(
                "ring \"%s\": branch \"%s\" is read twice in this plan, and gives each message once:"
                    + " its two reads would share them. %s",
                ring, options.branch(), RingReads.WAYS_OUT));
      }
    }
  }
}
