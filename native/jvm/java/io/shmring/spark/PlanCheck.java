package io.shmring.spark;

import java.util.List;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.ReturnAnswer;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.SparkStrategy;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Refuses plans that read a branch twice, whose two reads would share its messages. It plans
 * nothing, and looks at each plan as a whole, behind the optimizer and what is cached.
 */
final class PlanCheck extends SparkStrategy {
  @Override
  public Seq<SparkPlan> apply(LogicalPlan plan) {
    if (plan instanceof ReturnAnswer) {
      new PlannedReads().add(plan);
    }
    return CollectionConverters.<SparkPlan>asScala(List.of()).toList();
  }
}
