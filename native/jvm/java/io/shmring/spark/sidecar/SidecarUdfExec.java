package io.shmring.spark.sidecar;

import io.shmring.spark.columns.SparkTypes;
import io.shmring.spark.request.Call.SidecarCall;
import io.shmring.spark.request.Call;
import io.shmring.spark.request.Signature;
import io.shmring.spark.request.UdfSignature;
import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.execution.SparkPlan;
import scala.collection.Iterator;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/** UDFs of a sidecar: the child's columns, and the results beside them. */
public final class SidecarUdfExec extends UdfNode {
  private static final long serialVersionUID = 1L;

  private final SidecarCall call;
  private final List<UdfSignature.Use> uses;
  private final Seq<Expression> arguments;

  public SidecarUdfExec(
      SidecarCall call,
      List<UdfSignature.Use> uses,
      Seq<Expression> arguments,
      Seq<Attribute> results,
      boolean givesColumns,
      SparkPlan child) {
    super(call.nodeName(), results, givesColumns, child);
    this.call = call;
    this.uses = uses;
    this.arguments = arguments;
  }

  @Override
  Call call() {
    return call;
  }

  @Override
  Signature signature(SparkTypes types) {
    return new UdfSignature(
        uses,
        arguments,
        sentPlaces(),
        child().output(),
        child().schema(),
        UdfSignature.types(results),
        types,
        false);
  }

  @Override
  List<Expression> arguments() {
    return CollectionConverters.asJava(arguments);
  }

  @Override
  SparkPlan copy(boolean givesColumns, SparkPlan child) {
    return new SidecarUdfExec(call, uses, arguments, results, givesColumns, child);
  }

  @Override
  public Iterator<Object> stringArgs() {
    return CollectionConverters.asScala(
        List.<Object>of("udf", call, CollectionConverters.asScala(shown()).toSeq()).iterator());
  }

  /** For each UDF its result, and what the sidecar's function is given under which names. */
  private List<String> shown() {
    List<String> shown = new ArrayList<>();
    for (int i = 0; i < uses.size(); i++) {
      UdfSignature.Use use = uses.get(i);
      List<String> given = new ArrayList<>();
      for (int k = 0; k < use.names().size(); k++) {
        given.add(arguments.apply(use.arguments().get(k)) + " AS " + use.names().get(k));
      }
      shown.add(String.format("%s: (%s)", results.apply(i), String.join(", ", given)));
    }
    return shown;
  }

  @Override
  List<Object> elements() {
    return List.of(call, uses, arguments, results, givesColumns, child());
  }
}
