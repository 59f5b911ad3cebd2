package io.shmring.spark;

import io.shmring.spark.columns.RingTypes;
import io.shmring.spark.job.RingNames;
import io.shmring.spark.read.JournalBatch;
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
  private static final String JOURNAL = "journal";

  @Override
  public String shortName() {
    return "shmring";
  }

  @Override
  public StructType inferSchema(CaseInsensitiveStringMap options) {
    return isOfJournal(options)
        ? JournalBatch.schema(options.get(JOURNAL))
        : RingTypes.of(RingNames.of(options));
  }

  private static boolean isOfJournal(CaseInsensitiveStringMap options) {
    return !RingNames.isGiven(options) && !options.getOrDefault(JOURNAL, "").isBlank();
  }

  /** The user may give a schema, for rings that are only on the executors' hosts. */
  @Override
  public boolean supportsExternalMetadata() {
    return true;
  }

  @Override
  public Table getTable(
      StructType schema, Transform[] partitioning, Map<String, String> properties) {
    CaseInsensitiveStringMap options = new CaseInsensitiveStringMap(properties);
    if (isOfJournal(options)) {
      return new ShmringTable(List.of(), inferSchema(options), schema, properties);
    }
    List<String> rings = RingNames.of(options);
    boolean here = rings.stream().allMatch(RingNames::isHere);
    return new ShmringTable(
        rings, here ? RingTypes.of(rings) : schema, schema, properties);
  }
}
