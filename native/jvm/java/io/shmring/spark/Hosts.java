package io.shmring.spark;

import org.apache.spark.SparkEnv;

/** The names by which Spark's scheduler knows hosts. */
final class Hosts {
  private Hosts() {}

  static String here() {
    return SparkEnv.get().blockManager().blockManagerId().host();
  }
}
