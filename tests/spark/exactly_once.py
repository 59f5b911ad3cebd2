"""A driver for test_standalone.py: python exactly_once.py MASTER KIND IN OUT FOLDER.

The kind is stream, batch or functions. Slow on purpose, so that what is killed is in the middle of
it: a batch job, and one of functions, until FOLDER/go is there. A stream has its checkpoint in
FOLDER. Tasks of functions write FOLDER/begun-*.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from uuid import uuid4

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


def compare_functions(spark, folder):
    """Run functions over rings, held, and again without rings."""
    held = held_until(folder / "go")

    def begin(batches):
        (folder / f"begun-{uuid4()}").touch()
        return held(batches)

    def totals(frame):
        # By the ids, because rows come in the order in which executors were asked for them.
        return frame.assign(total=frame.id.sort_values().cumsum())

    rows = spark.range(0, 4000, 1, 4).mapInPandas(begin, "id long")
    groups = rows.selectExpr("id", "id % 7 key").groupBy("key")
    frame = groups.applyInPandas(totals, "id long, key long, total long")
    results = []
    for switch in ("on", "off"):
        spark.conf.set("spark.shmring.functions", switch)
        plan = frame.select("*")  # planned anew
        assert ("over rings" in plan._jdf.queryExecution().toString()) == (switch == "on")
        results.append(sorted(plan.collect()))
    assert results[0] == results[1]
    assert len(results[0]) == 4000


# Executors come and go, as on clusters that many jobs share.
ELASTIC = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.executorIdleTimeout": "1s",
    "spark.decommission.enabled": "true",
}


def main():
    master, kind, source, target, folder = sys.argv[1:]
    builder = configure(SparkSession.builder.master(master))
    for option, value in (ELASTIC if kind == "functions" else {}).items():
        builder = builder.config(option, value)
    spark = (
        builder.config("spark.executor.memory", "512m")
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
    elif kind == "functions":
        compare_functions(spark, Path(folder))
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
