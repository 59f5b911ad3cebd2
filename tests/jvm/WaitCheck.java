package io.shmring.spark.read;

/** Prints after how many milliseconds of a wait of ten seconds a garbage collection is due. */
public final class WaitCheck {
  private WaitCheck() {}

  public static void main(String[] arguments) {
    for (long waited = 100; waited <= 10_000; waited += 100) {
      if (BatchReader.isCollectionDue(waited)) {
        System.out.println(waited);
      }
    }
  }
}
