package io.shmring.spark.request;

import java.io.Serializable;
import java.util.List;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.execution.GroupedIterator;
import org.apache.spark.sql.types.StructType;
import scala.Tuple2;
import scala.collection.Iterator;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * One side of a cogroup.
 *
 * @param keys which the child's rows are sorted by
 * @param output the child's: Spark has put the keys before the frame's own columns, which may have
 *     them again
 */
public record CogroupSide(Seq<Attribute> keys, Seq<Attribute> output) implements Serializable {
  /** The frame's own columns. */
  private List<Attribute> columns() {
    return CollectionConverters.asJava(output).subList(keys.size(), output.size());
  }

  /** The types of the columns that go. */
  public StructType sent() {
    return types(columns());
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

  /** Makes the columns that go of a row. */
  UnsafeProjection projection() {
    return UnsafeProjection.create(expressions(columns()), output);
  }

  Iterator<Tuple2<InternalRow, Iterator<InternalRow>>> groups(Iterator<InternalRow> rows) {
    return GroupedIterator.apply(rows, expressions(CollectionConverters.asJava(keys)), output);
  }

  private static Seq<Expression> expressions(List<Attribute> attributes) {
    return CollectionConverters.asScala(List.<Expression>copyOf(attributes)).toList();
  }
}
