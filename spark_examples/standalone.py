"""A job on a standalone cluster, with the plugin: sidecars beside every executor.

    python spark_examples/standalone.py

Master and two workers are started from the pip package; the sidecar ``celsius`` comes with the job
and starts beside each executor; every batch goes through it; all of it ends with the application.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

import shmring
import shmring.spark

HERE = Path(__file__).resolve().parent
ROWS = 1_000_000


def to_celsius(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The sidecar's function."""
    degrees = pc.divide(pc.multiply(pc.subtract(batch.column("fahrenheit"), 32), 5), 9)
    return batch.append_column("celsius", degrees)


def rings_left() -> list[str]:
    """The rings of the sidecar and its clients."""
    return [ring for ring in shmring.rings() if "celsius" in ring]


def main(rows: int = ROWS) -> int:
    """Run the job; 1 if a row is missing or something is left behind."""
    sys.path.insert(0, str(HERE))
    from cluster import HOST, Cluster
    from pyspark.sql import SparkSession, functions

    os.environ["PYSPARK_PYTHON"] = sys.executable
    with Cluster(workers=2, cores=1) as cluster:
        print(f"cluster {cluster.url}")
        builder = (
            SparkSession.builder.master(cluster.url)
            .appName("standalone")
            .config("spark.driver.bindAddress", HOST)
            .config("spark.driver.host", HOST)
            .config("spark.executor.memory", "512m")
            .config("spark.ui.enabled", "false")
        )
        # This file goes to the executors, and the jar too.
        sidecars = {"celsius": "standalone:to_celsius"}
        spark = shmring.spark.configure(builder, sidecars=sidecars, workers=1).getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        frame = spark.range(rows, numPartitions=4).selectExpr("cast(id as double) fahrenheit")
        through = shmring.spark.through("celsius")
        count, mean = (
            frame.mapInArrow(through, "fahrenheit double, celsius double")
            .agg(functions.count("*"), functions.avg("celsius"))
            .first()
        )
        print(f"{count:,} rows, {mean:,.1f} degrees on average, executors {cluster.executors}")
        spark.stop()
        deadline = time.monotonic() + 60
        # An executor is gone before what looks after its sidecars is.
        while (cluster.executors or rings_left()) and time.monotonic() < deadline:
            time.sleep(0.1)
    left = rings_left()
    print(f"left in /dev/shm: {', '.join(left) or 'nothing'}")
    expected = ((rows - 1) / 2 - 32) * 5 / 9
    return 0 if count == rows and abs(mean - expected) < 1e-3 and not left else 1


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
