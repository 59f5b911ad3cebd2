"""Rings of the same name on two hosts: a cluster whose second worker has a /dev/shm of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from cluster import Cluster
from fixture_types import Load, RunThread, Until
from pyspark.sql import DataFrame, SparkSession
from sessions import HERE, THERE, Clusters, failure

import shmring

SCHEMA = pa.schema([("number", pa.int64())])

pytestmark = [pytest.mark.kill, pytest.mark.spark, pytest.mark.long]

MAKE = """
import sys, pyarrow as pa, shmring
name, column, first, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
schema = pa.schema([(column, pa.int64())])
ring = shmring.create(name, slots=4096, schema=schema)
ring.subscribe("b", start="earliest")
with ring.arrow_writer() as writer:
    writer.write(pa.table([list(range(first, first + count))], schema=schema))
"""


@pytest.fixture(scope="module")
def cluster(clusters: Clusters) -> Cluster:
    return clusters.start(apart=True)


@pytest.fixture(scope="module")
def spark(start_on_cluster: Callable[..., SparkSession]) -> SparkSession:
    return start_on_cluster()


@pytest.fixture
def there(cluster: Cluster, name: str) -> Callable[..., None]:
    """Makes a ring of the test's name on the other host, which goes with the cluster."""

    def make(first: int, count: int, column: str = "number") -> None:
        worker = (
            "--target",
            str(cluster.daemons[2]),
            "--user",
            "--preserve-credentials",
            "--mount",
        )
        program = (sys.executable, "-c", MAKE, name, column, str(first), str(count))
        subprocess.run(["nsenter", *worker, *program], check=True)

    return make


@pytest.fixture
def ring(name: str) -> Iterator[shmring.Ring]:
    """Numbers 0 to 99 on this host, the driver's."""
    with shmring.create(name, slots=4096, schema=SCHEMA, temporary=True) as ring:
        ring.subscribe("b", start="earliest")
        with ring.arrow_writer() as writer:
            writer.write(pa.table([list(range(100))], schema=SCHEMA))
        yield ring


@pytest.fixture
def load(spark: SparkSession, name: str) -> Callable[..., DataFrame]:
    def load(**options: str) -> DataFrame:
        return spark.read.format("shmring").options(ring=name, **options).load()

    return load


def numbers_of(frame: DataFrame) -> list[int]:
    return sorted(row[0] for row in frame.collect())


def kill_executor_here(cluster: Cluster, until: Until) -> None:
    """Kills the one that shares this process's /dev/shm."""
    mine = os.readlink("/proc/self/ns/mnt")
    (here,) = [p for p in cluster.executors if os.readlink(f"/proc/{p}/ns/mnt") == mine]
    os.kill(here, signal.SIGKILL)
    until(lambda: here not in cluster.executors, "the executor's end")


def test_a_read_is_of_the_drivers_ring(
    ring: shmring.Ring, there: Callable[..., None], load: Load
) -> None:
    there(1000, 50)
    for _ in range(4):
        assert numbers_of(load()) == list(range(100))
    assert numbers_of(load(branch="b")) == list(range(100))


def test_hosts_have_a_ring_each(ring: shmring.Ring, there: Callable[..., None], load: Load) -> None:
    there(1000, 50)
    both = [*range(100), *range(1000, 1050)]
    assert numbers_of(load(hosts=f"{HERE},{THERE}")) == both
    assert numbers_of(load(hosts=f"{HERE},{THERE}", branch="b")) == both


@pytest.mark.parametrize("python", [False, True])
def test_a_read_waits_until_its_host_has_an_executor_again(
    cluster: Cluster,
    ring: shmring.Ring,
    there: Callable[..., None],
    load: Load,
    until: Until,
    python: bool,
) -> None:
    there(1000, 50)
    frame = load(branch="b", hostWait="10 minutes")
    if python:
        frame = frame.mapInArrow(lambda batches: batches, frame.schema)
    kill_executor_here(cluster, until)
    assert numbers_of(frame) == list(range(100))


def test_an_error_is_not_hidden_behind_a_wrong_host(
    spark: SparkSession, ring: shmring.Ring, there: Callable[..., None], load: Load
) -> None:
    there(0, 10, column="other")
    for _ in range(3):
        text = failure(load(hosts=f"{HERE},{THERE}").collect)
        assert "another schema" in text


def test_a_write_stays_on_the_drivers_host(
    spark: SparkSession, ring: shmring.Ring, there: Callable[..., None]
) -> None:
    there(1000, 50)
    frame = spark.range(1000, 1300, numPartitions=6).toDF("number")
    frame.write.format("shmring").option("ring", ring.name).mode("append").save()
    with ring.arrow_reader("b", until="empty", copy=True) as reader:
        found = [n for batch in reader for n in batch["number"].to_pylist()]
    assert sorted(found) == [*range(100), *range(1000, 1300)]


def test_a_write_that_cannot_be_here_says_so(
    spark: SparkSession, ring: shmring.Ring, thread: RunThread, until: Until, tmp_path: Path
) -> None:
    here, held, go = os.readlink("/proc/self/ns/mnt"), tmp_path / "held", tmp_path / "go"

    def hold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if os.readlink("/proc/self/ns/mnt") == here:
            held.touch()
            while not go.exists():
                time.sleep(0.01)
        yield from batches

    job = thread(spark.range(2, numPartitions=2).mapInArrow(hold, "id long").count)
    until(held.exists, "the task that holds the driver's host")
    writer = spark.range(0, 100, numPartitions=1).toDF("number").write.format("shmring")
    text = failure(writer.options(ring=ring.name, hostWait="0").mode("append").save)
    go.touch()
    assert job.outcome() == 2
    assert "all tasks of a write run on the driver's host" in text
    assert "create it with" not in text


def test_a_stream_goes_on_when_its_host_has_an_executor_again(
    cluster: Cluster, spark: SparkSession, ring: shmring.Ring, until: Until, tmp_path: Path
) -> None:
    options = {"ring": ring.name, "hostWait": "10 minutes"}
    stream = spark.readStream.format("shmring").options(**options).load()
    query = (
        stream.writeStream.format("parquet")
        .option("path", str(tmp_path / "rows"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="0 seconds")
        .start()
    )
    try:
        until(lambda: query.lastProgress and query.lastProgress["batchId"] >= 0, "the first batch")
        kill_executor_here(cluster, until)
        with ring.arrow_writer() as writer:
            writer.write(pa.table([list(range(100, 200))], schema=SCHEMA))
        query.processAllAvailable()
    finally:
        query.stop()
    assert numbers_of(spark.read.parquet(str(tmp_path / "rows"))) == list(range(200))
