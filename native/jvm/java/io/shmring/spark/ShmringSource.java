package io.shmring.spark;

import io.shmring.spark.columns.RingTypes;
import io.shmring.spark.job.RingNames;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** {@code format("shmring")}. */
public final class ShmringSource implements TableProvider, DataSourceRegister {
  @Override
  public String shortName() {
    return "shmring";
  }

  @Override
  public StructType inferSchema(CaseInsensitiveStringMap options) {
    return RingTypes.of(RingNames.of(options));
  }

  /** The user may give a schema, for rings that are only on the executors' hosts. */
  @Override
  public boolean supportsExternalMetadata() {
    return true;
  }

  @Override
  public Table getTable(
      StructType schema, Transform[] partitioning, Map<String, String> properties) {
    List<String> rings = RingNames.of(new CaseInsensitiveStringMap(properties));
    boolean here = rings.stream().allMatch(RingNames::isHere);
    return new ShmringTable(
        rings, here ? RingTypes.of(rings) : schema, schema, properties);
  }
}
