package io.shmring.spark.request;

/** A thread of the executor that looks after what is kept from task to task. */
final class Sweeper {
  private Sweeper() {}

  /**
   * Begins to look, for as long as the JVM lives.
   *
   * @param millis between two looks
   * @param sweep closes what nobody uses
   * @param closeAll for the JVM's end
   */
  static void start(String name, long millis, Runnable sweep, Runnable closeAll) {
    Thread sweeper = new Thread(() -> run(millis, sweep), name);
    sweeper.setDaemon(true);
    sweeper.start();
    Runtime.getRuntime().addShutdownHook(new Thread(closeAll));
  }

  private static void run(long millis, Runnable sweep) {
    while (true) {
      try {
        Thread.sleep(millis);
      } catch (InterruptedException error) {
        return;
      }
      sweep.run();
    }
  }
}
