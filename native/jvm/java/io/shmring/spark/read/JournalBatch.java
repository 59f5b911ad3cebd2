package io.shmring.spark.read;

import io.shmring.RingException;
import io.shmring.Status;
import io.shmring.arrow.RingSchema;
import io.shmring.journal.Journal;
import io.shmring.spark.columns.RingTypes;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Path;
import java.util.OptionalLong;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.types.StructType;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** A read of a journal: one task for each segment. */
public final class JournalBatch implements Batch {
  private static final Logger LOG = LoggerFactory.getLogger(JournalBatch.class);

  private final ReadPlan plan;

  public JournalBatch(ReadPlan plan) {
    this.plan = plan;
  }

  /** The columns of a journal, by its newest segment. */
  public static StructType schema(String directory) {
    String label = String.format("journal \"%s\"", directory);
    try {
      byte[] schema =
          new Journal(Path.of(directory))
              .schema()
              .orElseThrow(
                  () ->
                      new RingException(
                          Status.NOT_FOUND,
                          label + " has no message yet, and so no columns: push one"));
      return RingTypes.of(label, RingSchema.of(label, schema));
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  @Override
  public InputPartition[] planInputPartitions() {
    String directory = plan.options().journal();
    return JournalPartition.of(directory, first(directory), Long.MAX_VALUE)
        .toArray(InputPartition[]::new);
  }

  private long first(String directory) {
    if (plan.options().start().equals("earliest")) {
      return 0;
    }
    long first = Long.parseLong(plan.options().start());
    OptionalLong oldest;
    try {
      oldest = new Journal(Path.of(directory)).oldest();
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
    if (oldest.orElse(0) > first) {
      String loss =
          String.format(
              "journal \"%s\" begins at sequence %d: the messages before it, from %d on, were not journalled"
                  + " or have been forgotten",
              directory, oldest.getAsLong(), first);
      if (plan.options().failOnDataLoss()) {
        throw new RingException(
            Status.OVERRUN,
            loss + "; begin later, or with .option(\"failOnDataLoss\", \"false\")");
      }
      LOG.warn("{}; reading what is there", loss);
    }
    return first;
  }

  @Override
  public PartitionReaderFactory createReaderFactory() {
    return new ColumnarReaders(plan);
  }
}
