package io.shmring.spark;

import java.util.EnumSet;
import java.util.List;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** One ring, or several with the same schema. */
final class ShmringTable implements SupportsRead, SupportsWrite {
  private final List<String> rings;
  private final StructType schema;

  ShmringTable(List<String> rings, StructType schema) {
    this.rings = rings;
    this.schema = schema;
  }

  @Override
  public String name() {
    return "shmring " + String.join(", ", rings);
  }

  @Override
  @SuppressWarnings("deprecation") // columns() of the interface is made from it
  public StructType schema() {
    return schema;
  }

  @Override
  public Set<TableCapability> capabilities() {
    Set<TableCapability> capabilities =
        EnumSet.of(
            TableCapability.BATCH_READ,
            TableCapability.MICRO_BATCH_READ,
            TableCapability.BATCH_WRITE,
            TableCapability.STREAMING_WRITE);
    if (schema.equals(RingTypes.QUEUE_TABLE)) {
      capabilities.add(TableCapability.ACCEPT_ANY_SCHEMA); // one column makes a message
    }
    return capabilities;
  }

  @Override
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
    return new ShmringScanBuilder(schema, ReadOptions.of(options));
  }

  @Override
  public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    return new ShmringWrite(info, schema);
  }
}
