package io.shmring.spark.request;

import java.io.Serializable;
import java.util.List;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.execution.CoGroupedIterator;
import org.apache.spark.sql.execution.GroupedIterator;
import org.apache.spark.sql.types.StructType;
import scala.Tuple2;
import scala.Tuple3;
import scala.collection.Iterator;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

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
  /**
   * A child of which columns go as they are.
   *
   * @param columns all of which are attributes
   */
  public static FrameSide of(
      Seq<Attribute> keys, Seq<Attribute> output, List<? extends Expression> columns) {
    return new FrameSide(
        expressions(CollectionConverters.asJava(keys)), output, expressions(columns), types(columns));
  }

  /**
   * @param columns which Java need not know as expressions
   */
  public static Seq<Expression> expressions(List<?> columns) {
    return CollectionConverters.asScala(columns.stream().map(Expression.class::cast).toList())
        .toList();
  }

  /**
   * @param columns all of which are attributes
   */
  public static StructType types(List<? extends Expression> columns) {
    StructType types = new StructType();
    for (Expression column : columns) {
      types = types.add(((Attribute) column).name(), column.dataType(), column.nullable());
    }
    return types;
  }

  Iterator<Tuple2<InternalRow, Iterator<InternalRow>>> groups(Iterator<InternalRow> rows) {
    return GroupedIterator.apply(rows, keys, output);
  }

  /** The rows of this child and of another one, by the keys of both, which are attributes. */
  @SuppressWarnings("unchecked")
  Iterator<Tuple3<InternalRow, Iterator<InternalRow>, Iterator<InternalRow>>> cogroups(
      Iterator<InternalRow> rows, FrameSide right, Iterator<InternalRow> rightRows) {
    return new CoGroupedIterator(
        groups(rows), right.groups(rightRows), (Seq<Attribute>) (Seq<?>) keys);
  }

  /** Makes what goes of a row. */
  UnsafeProjection projection() {
    return UnsafeProjection.create(columns, output);
  }

  /** What makes batches of its rows. */
  AnswerHandler handler() {
    return new MapSignature.Rows(
        "", ColumnMapping.BY_PLACE, new StructType(), projection()::apply);
  }
}
