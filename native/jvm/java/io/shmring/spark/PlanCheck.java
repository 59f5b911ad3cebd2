package io.shmring.spark;

import java.util.List;
import org.apache.spark.sql.catalyst.analysis.ResolvedTable;
import org.apache.spark.sql.catalyst.plans.logical.AlterTableCommand;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.ReturnAnswer;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.SparkStrategy;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Refuses plans that read a branch twice, because the two reads would share its messages, and changes
 * of a table's columns, which are those of its ring. It plans nothing, and checks each plan as a whole,
 * after the optimizer and the cache.
 */
final class PlanCheck extends SparkStrategy {
  @Override
  public Seq<SparkPlan> apply(LogicalPlan plan) {
    if (plan instanceof ReturnAnswer) {
      new PlannedReads().add(plan);
    }
    if (plan instanceof AlterTableCommand command
        && command.table() instanceof ResolvedTable resolved
        && resolved.table() instanceof ShmringTable
        && command.changes().exists(change -> change instanceof TableChange.ColumnChange)) {
      throw new UnsupportedOperationException(
          String.format(
              "the columns of table %s are those of its ring, and cannot change: make a ring"
                  + " with the new schema, and a table of that",
              resolved.identifier().name()));
    }
    return CollectionConverters.<SparkPlan>asScala(List.of()).toList();
  }
}
