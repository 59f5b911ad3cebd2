package io.shmring.spark.request;

import io.shmring.sidecar.WorkerRings;
import java.nio.file.Path;
import java.util.IdentityHashMap;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.spark.SparkEnv;
import org.apache.spark.api.python.PythonWorker;

/** The rings of this executor's Python workers, which Spark uses for task after task. */
final class PythonRings {
  private static final long LOOK_MILLIS = TimeUnit.SECONDS.toMillis(1);
  private static final Map<PythonWorker, WorkerRings> RINGS = new IdentityHashMap<>();
  private static boolean swept;

  private PythonRings() {}

  /**
   * Those of a worker, new ones if it has none or they are small.
   *
   * @param bytes of a request
   */
  static synchronized WorkerRings of(PythonWorker worker, long bytes) {
    WorkerRings rings = RINGS.get(worker);
    if (rings == null || !rings.fits(bytes)) {
      if (rings != null) {
        RINGS.remove(worker).close();
      }
      String folder = SparkEnv.get().blockManager().diskBlockManager().localDirs()[0].toString();
      rings = WorkerRings.make(bytes, Path.of(folder));
      RINGS.put(worker, rings);
      if (!swept) {
        swept = true;
        Sweeper.start(
            "shmring-python-rings", LOOK_MILLIS, PythonRings::closeUnused, PythonRings::closeAll);
      }
    }
    return rings;
  }

  /** Those whose worker Spark has given up. */
  private static synchronized void closeUnused() {
    RINGS
        .entrySet()
        .removeIf(
            each -> {
              boolean unused = !each.getKey().channel().isOpen();
              if (unused) {
                each.getValue().close();
              }
              return unused;
            });
  }

  private static synchronized void closeAll() {
    RINGS.values().forEach(WorkerRings::close);
    RINGS.clear();
  }
}
