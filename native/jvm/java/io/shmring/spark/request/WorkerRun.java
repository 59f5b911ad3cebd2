package io.shmring.spark.request;

import io.shmring.sidecar.WorkerClient;
import io.shmring.sidecar.WorkerRings;
import org.apache.spark.TaskContext;

/** One of Spark's Python workers that runs the functions of a task. */
interface WorkerRun extends WorkerClient.Control {
  /** Lets a worker begin, and waits until it has attached to its rings. */
  WorkerRings begin();

  /** The number of the batches' stream. */
  long stream();

  /**
   * @param bytes of a request
   */
  static WorkerRun of(PythonCall call, TaskContext context, long bytes) {
    try { // it extends a class that is another one before Spark 4.3, where no such call is made
      return (WorkerRun)
          Class.forName("io.shmring.spark.request.PythonRun")
              .getDeclaredConstructor(PythonCall.class, TaskContext.class, long.class)
              .newInstance(call, context, bytes);
    } catch (ReflectiveOperationException error) {
      throw new IllegalStateException("this jar was made for Spark before 4.3", error);
    }
  }
}
