package io.shmring.spark.write;

import io.shmring.spark.job.RingPlace;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;
import org.apache.spark.sql.types.StructType;

/**
 * Opens a task's writer.
 *
 * @param place on the driver's host
 * @param folder that the driver has made
 */
record PartWriterFactory(
    WriteOptions options, StructType schema, RingPlace place, String folder)
    implements DataWriterFactory, StreamingDataWriterFactory {
  @Override
  public DataWriter<InternalRow> createWriter(int partition, long task) {
    return new PartWriter(this, partition + "-" + task);
  }

  @Override
  public DataWriter<InternalRow> createWriter(int partition, long task, long epoch) {
    return createWriter(partition, task);
  }
}
