package io.shmring.spark.request;

import io.shmring.spark.columns.SparkTypes;
import io.shmring.spark.request.Groups.FrameSide;
import io.shmring.spark.request.MapSignature.PythonMapSignature;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import org.apache.arrow.vector.types.pojo.Schema;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.JoinedRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.execution.python.HybridRowQueue;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * A UDTF: its arguments go, and batches come. As with Spark's own node, the rows of each batch stand
 * beside the next row that waits, or, if none waits, beside the last one.
 *
 * @param arguments that are computed from the input's attributes
 * @param input the child's output
 * @param kept which of that stand beside the results
 */
public record UdtfSignature(
    Seq<Expression> arguments,
    Seq<Attribute> input,
    Seq<Attribute> kept,
    Seq<Attribute> results,
    SparkTypes types)
    implements Signature {
  @Override
  public Schema columns() {
    return types.schema(UdfSignature.types(arguments));
  }

  @Override
  public Signature.AnswerHandler begin(int partition) {
    UnsafeProjection sent = UnsafeProjection.create(arguments, input);
    sent.initialize(partition);
    return new Rows(this, sent);
  }

  private static final class Rows extends PythonMapSignature.Rows {
    private final UnsafeProjection kept;
    private final UnsafeProjection output;
    private final HybridRowQueue rows;
    private long waiting; // so many of them
    private int[] batches; // the rows of each
    private InternalRow[] left; // what these stand beside
    private InternalRow last; // of that

    Rows(UdtfSignature signature, UnsafeProjection sent) {
      super(FrameSide.types(CollectionConverters.asJava(signature.results)), sent::apply);
      List<Attribute> output = new ArrayList<>(CollectionConverters.asJava(signature.kept));
      this.kept = projection(output, signature.input);
      this.rows = UdfSignature.waiting(output.size());
      output.addAll(CollectionConverters.asJava(signature.results));
      this.output = projection(output, CollectionConverters.asScala(output).toList());
    }

    private static UnsafeProjection projection(List<Attribute> columns, Seq<Attribute> input) {
      return UnsafeProjection.create(FrameSide.expressions(columns), input);
    }

    @Override
    public UnsafeRow send(InternalRow row) {
      rows.add(kept.apply(row));
      waiting++;
      return super.send(row);
    }

    @Override
    public void begun(int[] batches) {
      this.batches = batches;
      left = new InternalRow[batches.length];
      for (int i = 0; i < batches.length; i++) {
        if (waiting > 0) {
          waiting--;
          last = rows.remove().copy();
        }
        left[i] = last;
      }
    }

    /** Of a partition without rows it fails as Spark does. */
    @Override
    public Iterator<UnsafeRow> receive(ColumnarBatch piece) {
      Iterator<InternalRow> results = piece.rowIterator();
      JoinedRow joined = new JoinedRow();
      return new Iterator<>() {
        private int batch = -1;
        private int rest; // of its rows

        @Override
        public boolean hasNext() {
          return results.hasNext();
        }

        @Override
        public UnsafeRow next() {
          while (rest == 0) {
            batch++;
            rest = batches[batch];
            joined.withLeft(left[batch]);
          }
          rest--;
          return output.apply(joined.withRight(results.next()));
        }
      };
    }
  }
}
