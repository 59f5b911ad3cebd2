package io.shmring.spark.read;

import io.shmring.spark.job.RingPlace;
import java.io.Serializable;
import java.util.Arrays;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/**
 * The plan of a read. The driver makes the plan, and every task gets it.
 *
 * @param schema schema of the rings
 * @param columns numbers of the wanted columns, in the schema's order
 */
public record ReadPlan(StructType schema, int[] columns, ReadOptions options)
    implements Serializable {
  public StructType wanted() {
    StructField[] fields = schema.fields();
    return new StructType(
        Arrays.stream(columns).mapToObj(i -> fields[i]).toArray(StructField[]::new));
  }

  public interface ColumnarPartition extends PlacedPartition {
    PartitionReader<ColumnarBatch> open(ReadPlan plan);
  }

  public interface RowPartition extends PlacedPartition {
    PartitionReader<InternalRow> open(ReadPlan plan);
  }

  /** Opens partitions in their tasks. */
  public record Readers(ReadPlan plan) implements PartitionReaderFactory {
    @Override
    public boolean supportColumnarReads(InputPartition partition) {
      return !(partition instanceof RowPartition);
    }

    @Override
    public PartitionReader<ColumnarBatch> createColumnarReader(InputPartition partition) {
      return ((ColumnarPartition) partition).open(plan);
    }

    @Override
    public PartitionReader<InternalRow> createReader(InputPartition partition) {
      return ((RowPartition) partition).open(plan);
    }
  }

  /** A partition that is read on the host of its ring. */
  public interface PlacedPartition extends InputPartition {
    RingPlace place();

    @Override
    default String[] preferredLocations() {
      return new String[] {place().host()};
    }
  }
}
