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
 * Describes a child whose rows are sent in groups.
 *
 * @param keys keys by which the child's rows are sorted and grouped
 * @param output the child's columns
 * @param columns expressions computed from each row, whose values are sent
 * @param sent types of the rows that are sent
 */
public record GroupedSide(
    Seq<Expression> keys, Seq<Attribute> output, Seq<Expression> columns, StructType sent)
    implements Serializable {
  /**
   * Returns a side that sends some of the child's columns unchanged.
   *
   * @param columns attributes of the child
   */
  public static GroupedSide of(
      Seq<Attribute> keys, Seq<Attribute> output, List<? extends Expression> columns) {
    return new GroupedSide(
        expressions(CollectionConverters.asJava(keys)),
        output,
        expressions(columns),
        types(columns));
  }

  /**
   * Returns the columns as a sequence of expressions.
   *
   * @param columns expressions, in a list of any type
   */
  public static Seq<Expression> expressions(List<?> columns) {
    return CollectionConverters.asScala(columns.stream().map(Expression.class::cast).toList())
        .toList();
  }

  /**
   * Returns the names and types of columns.
   *
   * @param columns attributes
   */
  public static StructType types(List<? extends Expression> columns) {
    StructType types = new StructType();
    for (Expression column : columns) {
      types = types.add(((Attribute) column).name(), column.dataType(), column.nullable());
    }
    return types;
  }

  Iterator<Tuple2<InternalRow, Iterator<InternalRow>>> groups(
      java.util.Iterator<InternalRow> rows) {
    return GroupedIterator.apply(CollectionConverters.asScala(rows), keys, output);
  }

  /** Pairs the groups of two children that have equal keys. */
  @SuppressWarnings("unchecked") // the keys of cogroups are attributes
  Iterator<Tuple3<InternalRow, Iterator<InternalRow>, Iterator<InternalRow>>> cogroups(
      java.util.Iterator<InternalRow> rows,
      GroupedSide right,
      java.util.Iterator<InternalRow> rightRows) {
    return new CoGroupedIterator(
        groups(rows), right.groups(rightRows), (Seq<Attribute>) (Seq<?>) keys);
  }

  UnsafeProjection projection() {
    return UnsafeProjection.create(columns, output);
  }
}
