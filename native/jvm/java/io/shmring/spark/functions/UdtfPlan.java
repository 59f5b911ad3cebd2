package io.shmring.spark.functions;

import io.shmring.spark.request.Call;
import io.shmring.spark.request.GroupedSide;
import io.shmring.spark.request.Input;
import io.shmring.spark.request.MapAnswers;
import io.shmring.spark.request.Signature;
import io.shmring.spark.request.UdfAnswers;
import java.util.List;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.PythonUDTF;
import org.apache.spark.sql.catalyst.plans.logical.ArrowEvalPythonUDTF;
import scala.Option;
import scala.collection.immutable.Seq;

/** Plans a UDTF, whose results stand beside some of the child's columns. */
record UdtfPlan(ArrowEvalPythonUDTF plan) implements FunctionPlan {
  @Override
  public List<PythonUDTF> functions() {
    return List.of(plan.udtf());
  }

  @Override
  public Work ofPython(Option<String> artifacts) {
    return new PythonUdtf(
        plan.udtf(), plan.requiredChildOutput(), plan.resultAttrs(), artifacts);
  }

  /**
   * Work of a UDTF: the output is some of the child's columns with the results beside them.
   *
   * @param kept the child's columns in the output
   */
  record PythonUdtf(
      PythonUDTF function, Seq<Attribute> kept, Seq<Attribute> results, Option<String> artifacts)
      implements Work {
    @Override
    public Seq<Attribute> beside(FunctionNode node) {
      return kept;
    }

    @Override
    public String name() {
      return "ArrowEvalPythonUDTF over rings";
    }

    @Override
    public boolean keepsPartitioning() {
      return false;
    }

    @Override
    public Call call(FunctionNode node) {
      return PythonCalls.ofUdfs(List.of(function), artifacts, node.whenMade);
    }

    @Override
    public Signature signature(FunctionNode node) {
      Seq<Expression> arguments =
          GroupedSide.expressions(PythonCalls.arguments(List.of(function)));
      Seq<Attribute> input = node.child().output();
      Seq<Attribute> beside = kept;
      Seq<Attribute> output = results;
      return Signature.of(
          UdfAnswers.types(arguments),
          node.whenMade.types(),
          context -> new MapAnswers.OfUdtf(arguments, input, beside, output, context),
          Input::ofRows);
    }
  }
}
