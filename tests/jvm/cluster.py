"""A job whose executors are killed in its middle: `read RING`, `write RING`, `ask SIDECAR`."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession

from shmring.spark import configure, through


def executor_dies(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows as they are; a task's first attempt kills its executor behind the third batch."""
    import os
    import signal
    from pathlib import Path

    from pyspark import TaskContext

    task = TaskContext.get()
    assert task is not None
    for k, batch in enumerate(batches):
        if k == 3 and task.attemptNumber() == 0 and task.partitionId() == 0:
            daemon = Path(f"/proc/{os.getppid()}/stat").read_text()
            os.kill(int(daemon.rpartition(")")[2].split()[1]), signal.SIGKILL)
        yield batch


act, ring = sys.argv[1:]
builder = SparkSession.builder.master("local-cluster[2,1,1024]")
options = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
    "spark.task.maxFailures": "4",
}
for option, value in options.items():
    builder = builder.config(option, value)
spark = configure(builder).getOrCreate()
spark.sparkContext.setLogLevel("OFF")
if act == "read":
    frame = spark.read.format("shmring").options(ring=ring, branch="b").load()
    numbers = frame.mapInArrow(executor_dies, frame.schema).collect()
    print(*sorted(row[0] for row in numbers))
elif act == "ask":
    frame = spark.range(0, 10_000, 1, 4).mapInArrow(through(ring), "number long")
    numbers = frame.mapInArrow(executor_dies, frame.schema).collect()
    print(*sorted(row[0] for row in numbers))
else:
    frame = spark.range(0, 10_000, 1, 4).toDF("number")
    frame = frame.mapInArrow(executor_dies, frame.schema)
    frame.write.format("shmring").option("ring", ring).mode("append").save()
spark.stop()
