package io.shmring.spark.functions;

import io.shmring.spark.request.Call;
import io.shmring.spark.request.Call.SidecarCall;
import io.shmring.spark.request.Signature;
import java.io.Serializable;
import java.util.List;
import java.util.Optional;
import org.apache.spark.resource.ResourceProfile;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.execution.SparkPlan;
import scala.Option;
import scala.collection.immutable.Seq;

/**
 * Describes what a node does. Each work is a record. Its components are elements of the node, so
 * that Spark finds the expressions in the components, and can replace them. A work is serializable
 * because generated code may take its node along to a task. The file of a {@link FunctionPlan} also
 * contains the works of the functions that the plan calls.
 */
interface Work extends Serializable {
  /** Returns the node's name in plans. */
  String name();

  /** Returns the call that the node's tasks make. */
  Call call(FunctionNode node);

  /** Returns what the node's requests contain, and how its tasks turn answers into rows. */
  Signature signature(FunctionNode node);

  /** Returns the output columns that the functions compute. */
  Seq<Attribute> results();

  /** Returns the child's columns that stand before the results in the output. */
  default Seq<Attribute> beside(FunctionNode node) {
    return FunctionNode.seq(List.of());
  }

  /**
   * Whether a child's batches of columns are sent one by one, so that the functions get the same
   * batches. If false, their rows are divided into new batches.
   */
  default boolean keepsBatches() {
    return false;
  }

  /** Whether the child's columns are all that is sent, so that they need not become rows first. */
  default boolean sendsColumns(FunctionNode node) {
    return false;
  }

  /**
   * Returns the expressions whose values are sent beside the child's columns, if the child's
   * generated code may compute them and write them, after the child's columns, into batches; empty
   * if it may not.
   */
  default Optional<Seq<Expression>> computed(FunctionNode node) {
    return Optional.empty();
  }

  /** Whether the node can also give batches of columns instead of rows. */
  default boolean canGiveColumns(FunctionNode node) {
    return false;
  }

  /** Returns the profile of the tasks' executors; empty for the application's executors. */
  default Option<ResourceProfile> profile() {
    return Option.empty();
  }

  /** Whether all tasks must run at one time. */
  default boolean isBarrier() {
    return false;
  }

  /**
   * Whether the node tells Spark that its output has the order of its input. PythonUdfs does not
   * tell, although it keeps the order, because Spark's own node does not tell either.
   */
  default boolean keepsOrder() {
    return false;
  }

  /**
   * Whether the node tells Spark that its output is partitioned like its input. PythonUdfs and
   * PythonUdtf do not tell, although rows keep their partition, because Spark's own nodes of these
   * functions do not tell either.
   */
  default boolean keepsPartitioning() {
    return true;
  }

  /**
   * Returns Spark's own node for the functions, to ask it how the children have to be partitioned
   * and sorted; empty if neither matters. The node's class differs between versions of Spark.
   */
  default Optional<SparkPlan> sparks(FunctionNode node) {
    return Optional.empty();
  }

  /**
   * Returns the components that plans show: all except the node's name, the resource profile, and
   * the uuid of the query's artifacts.
   */
  default List<Object> shown() {
    return FunctionNode.components(this).stream()
        .filter(each -> !(each instanceof String || each instanceof Option))
        .toList();
  }

  /** Work that a sidecar does. The work has the sidecar's call, which also names the node. */
  interface OfSidecar extends Work {
    SidecarCall call();

    @Override
    default String name() {
      return call().nodeName();
    }

    @Override
    default Call call(FunctionNode node) {
      return call();
    }
  }
}
