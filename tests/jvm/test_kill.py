"""Executors that are killed with -9; tests/spark/test_standalone.py kills drivers, too."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest
from fixture_types import Serve, Until
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from sessions import Sessions

import shmring
from shmring.sidecars.wire import reply_ring_name
from shmring.spark import through

SCHEMA = pa.schema([("number", pa.int64())])
ROWS = 100

pytestmark = [pytest.mark.kill, pytest.mark.spark, pytest.mark.long]


def batch(k: int) -> pa.RecordBatch:
    numbers = pa.array(range(k * ROWS, (k + 1) * ROWS))
    return pa.record_batch([numbers], schema=SCHEMA)


@pytest.fixture(scope="module")
def spark(start_spark: Callable[..., SparkSession], sessions: Sessions) -> Iterator[SparkSession]:
    """A session with two executors, whose cluster is in the driver."""
    options = {
        "spark.executor.memory": "512m",
        "spark.locality.wait": "0",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
    }
    yield start_spark("local-cluster[2,1,1024]", **options)
    sessions.stop()
    shutil.rmtree(Path(pyspark.__path__[0]) / "work", ignore_errors=True)


def executors(spark: SparkSession) -> set[int]:
    """Process ids of those that live."""
    jvm = spark._jvm
    assert jvm is not None
    driver = jvm.java.lang.ProcessHandle.current().pid()
    found: set[int] = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            if int(parent) == driver and b"ExecutorBackend" in (folder / "cmdline").read_bytes():
                found.add(int(folder.name))
    return found


def with_a_death(frame: DataFrame) -> DataFrame:
    """The rows as they are; a task's first attempt kills its executor behind the third batch."""

    def executor_dies(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        assert task is not None
        for k, batch in enumerate(batches):
            if k == 3 and task.attemptNumber() == 0 and task.partitionId() == 0:
                daemon = Path(f"/proc/{os.getppid()}/stat").read_text()
                os.kill(int(daemon.rpartition(")")[2].split()[1]), signal.SIGKILL)
            yield batch

    return frame.mapInArrow(executor_dies, frame.schema)


def test_a_killed_executor_costs_a_reader_and_a_sidecars_client_no_row_and_leaves_no_ring(
    name: str, serve: Serve, spark: SparkSession, until: Until
) -> None:
    serve("identity", workers=2)
    with shmring.create(name, slots=4096, schema=SCHEMA, temporary=True) as ring:
        ring.subscribe("b", start="earliest")
        with ring.arrow_writer() as writer:
            for k in range(40):
                writer.write(batch(k))
        frame = spark.read.format("shmring").options(ring=name, branch="b").load()
        frame = frame.mapInArrow(through(name), "number long")
        assert sorted(row[0] for row in with_a_death(frame).collect()) == list(range(40 * ROWS))
        assert ring.branches()[0]["released"] == ring.claimed
    clients = reply_ring_name(name, "")

    def has_only_living_clients() -> bool:
        found = [ring for ring in shmring.rings() if ring.startswith(clients)]
        processes = {int(ring.removeprefix(clients).split("-")[0]) for ring in found}
        return processes <= executors(spark)

    until(has_only_living_clients, "the sweep of what the killed one has left")
