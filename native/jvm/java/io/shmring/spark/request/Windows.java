package io.shmring.spark.request;

import java.io.Serializable;
import java.lang.reflect.Constructor;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.function.UnaryOperator;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.JoinedRow;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.PythonFuncExpression;
import org.apache.spark.sql.catalyst.expressions.PythonUDAF;
import org.apache.spark.sql.catalyst.expressions.SortOrder;
import org.apache.spark.sql.catalyst.expressions.SpecifiedWindowFrame;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.catalyst.expressions.WindowExpression;
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateExpression;
import org.apache.spark.sql.execution.ExternalAppendOnlyUnsafeRowArray;
import org.apache.spark.sql.execution.python.ArrowWindowPythonEvaluatorFactory;
import org.apache.spark.sql.execution.window.WindowFunctionFrame;
import org.apache.spark.sql.internal.SQLConf;
import scala.Option;
import scala.collection.Iterator;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Computes the bounds of each row's windows with Spark's own frames.
 *
 * @param spark Spark's factory of the frames
 * @param frames distinct frames whose bounds are sent; a frame of a whole partition has no bounds
 */
public record Windows(ArrowWindowPythonEvaluatorFactory spark, List<SpecifiedWindowFrame> frames)
    implements Serializable {
  // CHANGE: edit this for a new version of Spark
  // The constructor has one argument more in Spark 4.1.
  private static final Constructor<?> FACTORY =
      ArrowWindowPythonEvaluatorFactory.class.getConstructors()[0];

  /**
   * @param expressions windows
   * @param input the child's output
   */
  public static Windows of(
      Seq<NamedExpression> expressions,
      Seq<Expression> partition,
      Seq<SortOrder> order,
      Seq<Attribute> input,
      int evalType) {
    Object[] arguments = {expressions, partition, order, input, evalType, null, null};
    int given = arguments.length;
    arguments = Arrays.copyOf(arguments, FACTORY.getParameterCount());
    Arrays.fill(arguments, given, arguments.length, Option.empty());
    try {
      return new Windows(
          (ArrowWindowPythonEvaluatorFactory) FACTORY.newInstance(arguments),
          CollectionConverters.asJava(expressions).stream()
              .map(each -> frame(window(each)))
              .filter(frame -> !frame.isUnbounded())
              .distinct()
              .toList());
    } catch (ReflectiveOperationException error) {
      throw new IllegalStateException("this Spark does not find windows as others do", error);
    }
  }

  private static WindowExpression window(NamedExpression expression) {
    return (WindowExpression) ((Alias) expression).child();
  }

  private static SpecifiedWindowFrame frame(WindowExpression window) {
    return (SpecifiedWindowFrame) window.windowSpec().frameSpecification();
  }

  /** Returns a window's Python function; empty if the function is not Python's. */
  public static Optional<PythonFuncExpression> function(NamedExpression expression) {
    return expression instanceof Alias alias
            && alias.child() instanceof WindowExpression window
            && window.windowFunction() instanceof AggregateExpression aggregate
            && aggregate.aggregateFunction() instanceof PythonUDAF function
        ? Optional.of(function)
        : Optional.empty();
  }

  /** Returns the index in `frames` of each window's frame; -1 for a frame of a whole partition. */
  public int[] places(Seq<NamedExpression> expressions) {
    return CollectionConverters.asJava(expressions).stream()
        .mapToInt(each -> frames.indexOf(frame(window(each))))
        .toArray();
  }

  /** Returns a task's function that appends the bounds to the rows of a partition. */
  public UnaryOperator<Iterator<InternalRow>> begin() {
    return frames.isEmpty() ? rows -> rows : new Bounds(this)::of;
  }

  /** Computes the bounds in one task. */
  private static final class Bounds {
    private final ExternalAppendOnlyUnsafeRowArray partition;
    private final WindowFunctionFrame[] frames;
    private final InternalRow bounds;

    Bounds(Windows windows) {
      SQLConf conf = SQLConf.get();
      long mostBytes = conf.windowExecBufferSpillSizeThreshold();
      this.partition =
          new ExternalAppendOnlyUnsafeRowArray(
              conf.windowExecBufferInMemoryThreshold(),
              mostBytes,
              conf.windowExecBufferSpillThreshold(),
              mostBytes);
      this.frames = new WindowFunctionFrame[windows.frames.size()];
      this.bounds = new GenericInternalRow(2 * frames.length);
      CollectionConverters.asJava(windows.spark.windowFrameExpressionFactoryPairs())
          .forEach(
              each -> {
                int place = windows.frames.indexOf(frame((WindowExpression) each._1().head()));
                if (place >= 0) {
                  frames[place] = each._2().apply(bounds);
                }
              });
    }

    Iterator<InternalRow> of(Iterator<InternalRow> rows) {
      partition.clear();
      while (rows.hasNext()) {
        partition.add((UnsafeRow) rows.next());
      }
      for (WindowFunctionFrame frame : frames) {
        frame.prepare(partition);
      }
      return withBounds(partition.generateIterator());
    }

    private Iterator<InternalRow> withBounds(Iterator<UnsafeRow> rows) {
      JoinedRow joined = new JoinedRow();
      return new scala.collection.AbstractIterator<>() {
        private int place;

        @Override
        public boolean hasNext() {
          return rows.hasNext();
        }

        @Override
        public InternalRow next() {
          UnsafeRow row = rows.next();
          for (int i = 0; i < frames.length; i++) {
            frames[i].write(place, row);
            bounds.setInt(2 * i, frames[i].currentLowerBound());
            bounds.setInt(2 * i + 1, frames[i].currentUpperBound());
          }
          place = Math.incrementExact(place);
          return joined.apply(row, bounds);
        }
      };
    }
  }
}
