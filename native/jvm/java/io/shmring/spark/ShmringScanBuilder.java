package io.shmring.spark;

import io.shmring.spark.read.ReadOptions;
import io.shmring.spark.read.ReadPlan;
import io.shmring.spark.read.RingReads;
import java.util.Arrays;
import java.util.Set;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/** Leaves out the columns that the query does not use. */
final class ShmringScanBuilder implements SupportsPushDownRequiredColumns {
  private final StructType schema;
  private final ReadOptions options;
  private final RingReads reads;
  private int[] columns;

  /**
   * @param reads of the DataFrame so far
   */
  ShmringScanBuilder(StructType schema, ReadOptions options, RingReads reads) {
    this.schema = schema;
    this.options = options;
    this.reads = reads;
    this.columns = new int[schema.length()];
    Arrays.setAll(columns, i -> i);
  }

  /** Leaves out whole columns only: a struct keeps all its fields, whichever Spark wants. */
  @Override
  public void pruneColumns(StructType required) {
    Set<String> names =
        Arrays.stream(required.fields()).map(StructField::name).collect(Collectors.toSet());
    StructField[] fields = schema.fields();
    columns =
        IntStream.range(0, fields.length)
            .filter(i -> names.contains(fields[i].name()))
            .toArray();
  }

  @Override
  public Scan build() {
    return new ShmringScan(new ReadPlan(schema, columns, options), reads);
  }
}
