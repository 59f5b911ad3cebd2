"""Reads up to the end of the stream: one marker for all readers, tasks that fail, later runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from fixture_types import Load, RunThread, Until
from pyspark.sql import DataFrame, SparkSession
from sessions import PATIENCE

import shmring

SCHEMA = pa.schema([("number", pa.int64())])
pytestmark = pytest.mark.ring(slots=4096, schema=SCHEMA, branch="b")


@pytest.fixture(scope="module")
def spark(start_spark: Callable[..., SparkSession]) -> SparkSession:
    """A session that runs four tasks at a time, and a task that fails once more."""
    return start_spark("local[4,2]")


@pytest.fixture
def load(spark: SparkSession) -> Callable[..., DataFrame]:
    """A read up to the end marker."""

    def load(ring: str, **options: object) -> DataFrame:
        given = {"ring": ring, "until": "end", "timeout": str(PATIENCE)}
        given |= {key: str(value) for key, value in options.items()}
        return spark.read.format("shmring").options(**given).load()

    return load


def push(ring: shmring.Ring, first: int, last: int) -> None:
    """Two numbers a batch, so that several readers get some of them."""
    with ring.arrow_writer() as writer:
        for number in range(first, last, 2):
            writer.write(pa.record_batch([[number, number + 1]], schema=SCHEMA))


def push_end(ring: shmring.Ring) -> None:
    with ring.producer() as out:
        out.push_end()


def consumers(ring: shmring.Ring, branch: str = "b") -> int:
    return sum(b["consumers"] for b in ring.branches() if b["name"] == branch)


def numbers_of(*frames: DataFrame) -> list[int]:
    rows = [frame.collect() for frame in frames]
    return sorted(row[0] for group in rows for row in group)


def test_one_marker_ends_all_readers_run_after_run(
    ring: shmring.Ring, load: Load, thread: RunThread, until: Until
) -> None:
    """Two reads and another consumer share a branch, a third read has one of its own."""
    ring.subscribe("own", start="earliest")
    for run in range(2):
        reads = [thread(numbers_of, load(ring.name, branch="b")) for _ in range(2)]
        alone = thread(numbers_of, load(ring.name, branch="own"))
        other = ring.arrow_reader("b", copy=True)
        until(lambda: (consumers(ring), consumers(ring, "own")) == (3, 1), "the readers' start")
        sent = list(range(run * 100, run * 100 + 100))
        push(ring, sent[0], sent[-1] + 1)
        push_end(ring)
        shared = [n for batch in other for n in batch["number"].to_pylist()]
        other.close()
        for read in reads:
            shared += read.outcome()
        assert sorted(shared) == sent
        assert alone.outcome() == sent
        until(lambda: not consumers(ring) and not consumers(ring, "own"), "the readers' end")


def test_partitions_of_one_read_end_by_the_marker_of_their_ring(
    name: str, load: Load, thread: RunThread, until: Until
) -> None:
    rings = [shmring.create(f"{name}-{i}", schema=SCHEMA, temporary=True) for i in range(3)]
    try:
        frame = load(",".join(ring.name for ring in rings), branch="b")
        job = thread(numbers_of, frame)
        until(lambda: [consumers(ring) for ring in rings] == [1, 1, 1], "the tasks' start")
        for i, ring in enumerate(rings):
            push(ring, i * 10, i * 10 + 10)
            push_end(ring)
        assert job.outcome() == list(range(30))
    finally:
        for ring in rings:
            ring.close()


def test_an_old_end_does_not_end_the_next_run(
    ring: shmring.Ring, load: Load, thread: RunThread, until: Until
) -> None:
    """Neither on the branch that had it, nor on a new one that begins with what comes."""
    push(ring, 0, 10)
    push_end(ring)
    assert numbers_of(load(ring.name, branch="b")) == list(range(10))
    again = thread(numbers_of, load(ring.name, branch="b"))
    new = thread(numbers_of, load(ring.name, branch="new", start="latest"))
    until(lambda: consumers(ring) == consumers(ring, "new") == 1, "the tasks' start")
    push(ring, 10, 20)
    push_end(ring)
    for job in (again, new):
        assert job.outcome() == list(range(10, 20))


def test_a_new_branch_at_earliest_reads_the_old_run_with_its_end(
    ring: shmring.Ring, load: Load
) -> None:
    for run in range(2):
        push(ring, run * 10, run * 10 + 10)
        push_end(ring)
    for run in range(2):
        read = load(ring.name, branch="new")
        assert numbers_of(read) == list(range(run * 10, run * 10 + 10))


def test_an_attempt_after_one_that_was_told_of_the_end_is_told_of_it(
    ring: shmring.Ring, load: Load, thread: RunThread, until: Until, tmp_path: Path
) -> None:
    """Another consumer comes to the marker; then the task fails, and all is read again."""

    heard = tmp_path / "heard"

    def fail_first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        task = TaskContext.get()
        assert task is not None
        yield from batches
        if task.attemptNumber() == 0:
            while not heard.exists():  # messages handed back would go to the other consumer
                time.sleep(0.01)
            raise ValueError("told to fail")

    push(ring, 0, 100)
    frame = load(ring.name, branch="b", release="task")
    job = thread(numbers_of, frame.mapInArrow(fail_first, frame.schema))
    until(lambda: ring.branches()[0]["position"] == ring.claimed, "the read of all messages")
    with ring.consumer("b") as other:
        push_end(ring)
        others = list(other)
    heard.touch()
    assert others == []
    assert job.outcome() == list(range(100))
    (branch,) = ring.branches()
    assert branch["released"] == ring.claimed


def test_a_read_of_a_branch_fails_with_its_timeout_although_its_task_runs_again(
    load: Load, ring: shmring.Ring
) -> None:
    """Another attempt lacks the messages that the first one has released."""
    push(ring, 0, 10)
    with pytest.raises(Exception, match=r"no message and no end marker in 0\.5 s") as caught:
        load(ring.name, branch="b", timeout="500ms").collect()
    assert "has moved on" not in str(caught.value)
