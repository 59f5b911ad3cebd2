package io.shmring.spark.read;

import java.io.Serializable;
import java.util.Arrays;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/**
 * The plan of a read, which the driver makes and every task gets.
 *
 * @param schema of the rings
 * @param columns numbers of the wanted columns, in the schema's order
 */
public record ReadPlan(StructType schema, int[] columns, ReadOptions options)
    implements Serializable {
  /** The wanted columns. */
  public StructType wanted() {
    StructField[] fields = schema.fields();
    return new StructType(
        Arrays.stream(columns).mapToObj(i -> fields[i]).toArray(StructField[]::new));
  }
}
