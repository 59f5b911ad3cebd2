"""A driver for test_standalone.py: python exactly_once.py MASTER stream|batch IN OUT FOLDER.

Slow on purpose, so that what is killed is in the middle of it: a batch job until FOLDER/go is
there. A stream has its checkpoint in FOLDER.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

from shmring.spark import configure


def slowly(batches):
    for batch in batches:
        time.sleep(0.01)
        yield batch


def held_until(go):
    """A function that gives nothing before there is this file."""

    def held(batches):
        for batch in batches:
            while not go.exists():
                time.sleep(0.01)
            yield batch

    return held


def main():
    master, kind, source, target, folder = sys.argv[1:]
    spark = (
        configure(SparkSession.builder.master(master))
        .config("spark.executor.memory", "512m")
        .config("spark.task.maxFailures", "100")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    spark.range(2, numPartitions=2).mapInArrow(slowly, "id long").count()
    print("ready", flush=True)
    if kind == "batch":
        frame = spark.read.format("shmring").option("ring", source).option("branch", "b").load()
        out = frame.mapInArrow(held_until(Path(folder, "go")), "x long, s string").write
        out.format("shmring").mode("append").option("ring", target).save()
    else:
        frame = (
            spark.readStream.format("shmring")
            .option("ring", source)
            .option("branch", "b")
            .option("maxMessagesPerTrigger", "30")
            .load()
        )
        query = (
            frame.mapInArrow(slowly, "x long, s string")
            .writeStream.format("shmring")
            .option("ring", target)
            .option("checkpointLocation", folder)
            .start()
        )
        query.awaitTermination()
    print("done", flush=True)


if __name__ == "__main__":
    main()
