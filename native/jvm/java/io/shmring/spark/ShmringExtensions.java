package io.shmring.spark;

import io.shmring.spark.ShmringSource.ShmringTable.ShmringScan;
import io.shmring.spark.ShmringSource.ShmringTable;
import io.shmring.spark.functions.FunctionColumns;
import io.shmring.spark.functions.FunctionStrategy;
import io.shmring.spark.functions.SettingsCheck;
import io.shmring.spark.read.ReadOptions;
import io.shmring.spark.read.RingReads;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.SparkSessionExtensionsProvider;
import org.apache.spark.sql.catalyst.analysis.ResolvedTable;
import org.apache.spark.sql.catalyst.plans.QueryPlan;
import org.apache.spark.sql.catalyst.plans.logical.AlterTableCommand;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.ReturnAnswer;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.SparkStrategy;
import org.apache.spark.sql.execution.adaptive.AdaptiveSparkPlanExec;
import org.apache.spark.sql.execution.columnar.InMemoryRelation;
import org.apache.spark.sql.execution.columnar.InMemoryTableScanExec;
import org.apache.spark.sql.execution.datasources.v2.BatchScanExec;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import org.apache.spark.sql.execution.datasources.v2.StreamingDataSourceV2ScanRelation;
import org.apache.spark.sql.internal.SQLConf;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.BoxedUnit;

/** Extends a session that was started with the jar. Spark finds this class by name. */
public final class ShmringExtensions implements SparkSessionExtensionsProvider {
  private static final Logger LOG = LoggerFactory.getLogger(ShmringExtensions.class);

  @Override
  public BoxedUnit apply(SparkSessionExtensions extensions) {
    extensions.injectPlannerStrategy(session -> new PlanCheck());
    Optional<String> missing = LinkCheck.missing();
    if (missing.isEmpty()) {
      Functions.addTo(extensions);
    } else {
      LOG.warn(
          "Python functions take Spark's own way, not rings: this Spark lacks {}", missing.get());
    }
    return BoxedUnit.UNIT;
  }

  /**
   * Keeps the references to shmring's plan nodes out of ShmringExtensions. So the JVM loads the
   * nodes only when addTo() is called. Loading the nodes fails if Spark lacks a member that they
   * use.
   */
  private static final class Functions {
    static void addTo(SparkSessionExtensions extensions) {
      extensions.injectPlannerStrategy(session -> new FunctionStrategy());
      extensions.injectColumnar(session -> new FunctionColumns());
    }
  }

  /**
   * Refuses plans that read a branch twice, because the two reads would share the branch's
   * messages. Refuses changes of a table's columns, because a table has the columns of its ring.
   * Logs wrong settings.
   *
   * <p>The strategy plans nothing. It is a strategy only because Spark calls strategies after the
   * optimizer has run and after cached results were put into the plan.
   */
  static final class PlanCheck extends SparkStrategy {
    @Override
    public Seq<SparkPlan> apply(LogicalPlan plan) {
      if (plan instanceof ReturnAnswer) {
        SettingsCheck.tellWrong(SQLConf.get());
        new PlannedReads().add(plan);
      }
      if (plan instanceof AlterTableCommand command
          && command.table() instanceof ResolvedTable resolved
          && resolved.table() instanceof ShmringTable
          && command.changes().exists(change -> change instanceof TableChange.ColumnChange)) {
        throw new UnsupportedOperationException(
            String.format(
                "the columns of table %s are those of its ring, and cannot change: make a ring"
                    + " with the new schema, and a table of that",
                resolved.identifier().name()));
      }
      return CollectionConverters.<SparkPlan>asScala(List.of()).toList();
    }
  }

  /** The reads of branches in a plan, also in subqueries and in caches that are not filled yet. */
  static final class PlannedReads {
    // Each key is a list of two elements: a ring's identity and the name of a branch.
    private final Map<Object, Scan> scans = new HashMap<>();

    /**
     * Adds the reads of a plan. The reads below a cache count only if the cache is not filled yet,
     * because the plan then runs these reads to fill the cache.
     *
     * @throws IllegalArgumentException if there is another read of the same branch
     */
    <P extends QueryPlan<P>> void add(P plan) {
      plan.foreachWithSubqueries(
          node -> {
            if (node instanceof DataSourceV2ScanRelation relation) {
              add(relation.scan());
            } else if (node instanceof StreamingDataSourceV2ScanRelation relation) {
              add(relation.scan());
            } else if (node instanceof BatchScanExec read) {
              add(read.scan());
            } else if (node instanceof InMemoryRelation cached) {
              add(cached);
            } else if (node instanceof InMemoryTableScanExec cached) {
              add(cached.relation());
            } else if (node instanceof AdaptiveSparkPlanExec adaptive) {
              add(adaptive.inputPlan());
            }
            return BoxedUnit.UNIT;
          });
    }

    private void add(InMemoryRelation cached) {
      if (!cached.cacheBuilder().isCachedColumnBuffersLoaded()) {
        add(cached.cachedPlan());
      }
    }

    private void add(Scan scan) {
      if (!(scan instanceof ShmringScan ours) || ours.options().branch().isEmpty()) {
        return;
      }
      ReadOptions options = ours.options();
      for (String ring : options.rings()) {
        for (Object identity : options.identities(ring)) {
          Scan other = scans.putIfAbsent(List.of(identity, options.branch()), scan);
          if (other != null && other != scan) { // the same scan may be in a plan twice and run once
            throw new IllegalArgumentException(
                String.format(
                    "ring \"%s\": branch \"%s\" is read twice in this plan, and gives each message"
                        + " once: its two reads would share them. %s",
                    ring, options.branch(), RingReads.WAYS_OUT));
          }
        }
      }
    }
  }
}
