package io.shmring.spark.request;

import java.io.Serializable;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.execution.GroupedIterator;
import org.apache.spark.sql.types.StructType;
import scala.Tuple2;
import scala.collection.Iterator;
import scala.collection.immutable.Seq;

/**
 * A child whose rows go in groups.
 *
 * @param keys which the child's rows are sorted by
 * @param output the child's
 * @param columns what goes of a row
 * @param sent the types of that
 */
public record FrameSide(
    Seq<Expression> keys, Seq<Attribute> output, Seq<Expression> columns, StructType sent)
    implements Serializable {
  Iterator<Tuple2<InternalRow, Iterator<InternalRow>>> groups(Iterator<InternalRow> rows) {
    return GroupedIterator.apply(rows, keys, output);
  }

  /** What makes batches of its rows. */
  AnswerHandler handler() {
    return new MapSignature.Rows(
        "", ColumnMapping.BY_PLACE, new StructType(), UnsafeProjection.create(columns, output)::apply);
  }
}
