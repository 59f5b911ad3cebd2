package io.shmring.spark.read;

import java.io.Serializable;
import java.util.Arrays;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/**
 * What is read, as the driver plans it and every task gets it.
 *
 * @param schema of the rings
 * @param columns numbers of the wanted ones, in the schema's order
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
