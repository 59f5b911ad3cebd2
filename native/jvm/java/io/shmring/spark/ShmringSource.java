package io.shmring.spark;

import io.shmring.spark.columns.RingTypes;
import io.shmring.spark.job.Options;
import io.shmring.spark.job.RingNames;
import io.shmring.spark.read.ReadOptions;
import io.shmring.spark.read.ReadPlan;
import io.shmring.spark.read.RingReader;
import io.shmring.spark.read.RingReads.RingBatch;
import io.shmring.spark.read.RingReads;
import io.shmring.spark.stream.BranchStream;
import io.shmring.spark.write.RingWrite.WriteMetrics;
import io.shmring.spark.write.RingWrite;
import io.shmring.spark.write.WriteOptions;
import java.util.Arrays;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.ReportsSinkMetrics;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** The data source {@code format("shmring")}. */
public final class ShmringSource implements TableProvider, DataSourceRegister {
  @Override
  public String shortName() {
    return "shmring";
  }

  @Override
  public StructType inferSchema(CaseInsensitiveStringMap options) {
    return RingTypes.of(RingNames.of(options));
  }

  /**
   * Returns true: the user may give a schema, for rings that exist only on the executors' hosts.
   */
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

  /** A table of one ring, or of several rings with the same schema. */
  static final class ShmringTable implements SupportsRead, SupportsWrite, ReportsSinkMetrics {
    private final List<String> rings;
    private final StructType schema;
    private final StructType given;
    private final Map<String, String> options;
    private final RingReads reads = new RingReads();
    private final WriteMetrics written = new WriteMetrics();

    /**
     * @param schema schema of the rings; if the driver's host lacks one of the rings, the given
     *     schema
     * @param given schema that the user gave, or that the rows to be written have
     * @param options options of the table; a query may give other ones
     */
    ShmringTable(
        List<String> rings, StructType schema, StructType given, Map<String, String> options) {
      this.rings = rings;
      this.schema = schema;
      this.given = given;
      this.options = options;
    }

    @Override
    public String name() {
      return "shmring " + String.join(", ", rings);
    }

    @Override
    @SuppressWarnings("deprecation") // deprecated, but Spark's default columns() calls it
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
        // Rows of one column become messages of a ring of bytes, so Spark must not demand that the
        // rows have the queue table's columns.
        capabilities.add(TableCapability.ACCEPT_ANY_SCHEMA);
      }
      return capabilities;
    }

    @Override
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap query) {
      if (!DataType.equalsIgnoreNullability(given, schema)) {
        throw new IllegalArgumentException(
            String.format(
                "ring \"%s\" has another schema than the one that was given:%n%sinstead of%n%sleave the"
                    + " schema out, select the columns behind it, and cast them",
                String.join("\", \"", rings), schema.treeString(), given.treeString()));
      }
      return new ShmringScan(schema, ReadOptions.of(with(query)), reads);
    }

    @Override
    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
      return new RingWrite(info, WriteOptions.of(with(info.options())), schema, written);
    }

    /** Returns the metrics of the last epoch. */
    @Override
    public Map<String, String> metrics() {
      return written.progress();
    }

    /** Returns the properties from which SHOW CREATE TABLE makes the clauses USING and OPTIONS. */
    @Override
    public Map<String, String> properties() {
      return options;
    }

    private CaseInsensitiveStringMap with(CaseInsensitiveStringMap query) {
      Options.check(query.asCaseSensitiveMap().keySet());
      Options.check( // check the clause OPTIONS only: a table may have any other properties
          options.keySet().stream()
              .filter(name -> name.startsWith(TableCatalog.OPTION_PREFIX))
              .map(name -> name.substring(TableCatalog.OPTION_PREFIX.length()))
              .toList());
      Map<String, String> all = new HashMap<>(new CaseInsensitiveStringMap(options));
      all.putAll(query);
      return new CaseInsensitiveStringMap(all);
    }

    static final class ShmringScan implements SupportsPushDownRequiredColumns, Scan {
      private final RingReads reads;
      private ReadPlan plan;

      ShmringScan(StructType schema, ReadOptions options, RingReads reads) {
        this.reads = reads;
        this.plan = new ReadPlan(schema, IntStream.range(0, schema.length()).toArray(), options);
      }

      /**
       * Leaves out whole columns only: a struct keeps all its fields, whichever fields Spark wants.
       */
      @Override
      public void pruneColumns(StructType required) {
        Set<String> names =
            Arrays.stream(required.fields()).map(StructField::name).collect(Collectors.toSet());
        StructField[] fields = plan.schema().fields();
        int[] columns =
            IntStream.range(0, fields.length)
                .filter(i -> names.contains(fields[i].name()))
                .toArray();
        plan = new ReadPlan(plan.schema(), columns, options());
      }

      @Override
      public Scan build() {
        return this;
      }

      @Override
      public StructType readSchema() {
        return plan.wanted();
      }

      @Override
      public String description() {
        return "shmring "
            + String.join(", ", options().rings())
            + " "
            + Arrays.toString(readSchema().fieldNames());
      }

      ReadOptions options() {
        return plan.options();
      }

      @Override
      public Batch toBatch() {
        return new RingBatch(plan, reads);
      }

      @Override
      public MicroBatchStream toMicroBatchStream(String checkpointLocation) {
        return new BranchStream(plan, checkpointLocation);
      }

      @Override
      public CustomMetric[] supportedCustomMetrics() {
        return RingReader.supportedMetrics();
      }
    }
  }
}
