"""Several attempts of one task at a time, on a standalone cluster that speculates."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fixture_types import RunThread, Serve, Until
from pyspark.sql import DataFrame, SparkSession

import shmring
from shmring.sidecars.wire import reply_ring_name
from shmring.spark import arrow_udf, driver, through

SCHEMA = pa.schema([("number", pa.int64()), ("text", pa.string())])
ROWS, BATCHES = 100, 100  # rows of 10 KB: each of the two sockets holds up to 32 MB
COUNT = ROWS * BATCHES

pytestmark = [pytest.mark.kill, pytest.mark.spark, pytest.mark.long]


@pytest.fixture(scope="module")
def spark(start_on_cluster: Callable[..., SparkSession]) -> SparkSession:
    options = {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.task.duration.threshold": "500ms",
        "spark.task.maxFailures": "2",  # each attempt that comes too late waits for its end
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(ROWS),
        "spark.sql.adaptive.enabled": "false",
    }
    return start_on_cluster(**options)


@pytest.fixture
def ring(name: str) -> Iterator[shmring.Ring]:
    """A ring whose branch "b" holds more than the sockets between Spark and Python do."""
    with shmring.create(name, slots=524_288, schema=SCHEMA, temporary=True) as ring:
        ring.subscribe("b", start="earliest")
        with ring.arrow_writer() as writer:
            for first in range(0, COUNT, ROWS):
                numbers = range(first, first + ROWS)
                writer.write(pa.table([list(numbers), ["x" * 10_000] * ROWS], schema=SCHEMA))
        yield ring


class Attempts:
    """Stops the attempt of a task that is first to get so far until it is told how to end.

    Which one is first is open: where the worker of the one started first has to be forked, the
    speculative one overtakes it.
    """

    def __init__(self, folder: Path) -> None:
        self._word = folder / "word"
        self._held = folder / "held"

    def hold_first(self, frame: DataFrame) -> DataFrame:
        word, held = self._word, self._held

        def is_first() -> bool:
            try:
                held.touch(exist_ok=False)
            except FileExistsError:
                return False
            return True

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for k, batch in enumerate(batches):
                if k == 3 and is_first():
                    while not word.exists():
                        time.sleep(0.01)
                    if word.read_text() == "fail":
                        raise ValueError("told to fail")
                    if word.read_text() == "die":
                        os.kill(os.getpid(), signal.SIGKILL)
                yield batch

        return frame.mapInArrow(run, frame.schema)

    def tell_first(self, word: str) -> None:
        new = self._word.with_suffix(".new")
        new.write_text(word)
        new.rename(self._word)


@pytest.fixture
def attempts(tmp_path: Path) -> Iterator[Attempts]:
    attempts = Attempts(tmp_path)
    yield attempts
    attempts.tell_first("go")


def others(ring: shmring.Ring) -> set[int]:
    """Processes other than this one that take part."""
    return {participant["pid"] for participant in ring.participants() if participant["alive"]} - {
        os.getpid()
    }


def numbers_of(frame: DataFrame) -> list[int]:
    return sorted(row[0] for row in frame.select("number").collect())


@pytest.mark.parametrize("end", ["go", "fail", "die"])
def test_attempts_of_a_read_do_not_share_its_rows(
    spark: SparkSession,
    ring: shmring.Ring,
    attempts: Attempts,
    thread: RunThread,
    until: Until,
    end: str,
) -> None:
    frame = spark.read.format("shmring").options(ring=ring.name, branch="b").load()
    job = thread(numbers_of, attempts.hold_first(frame))
    until(lambda: len(others(ring)) == 2 or not job.is_alive(), "the speculative attempt")
    assert job.is_alive(), "one attempt has been enough"
    job.join(1)  # an attempt that took what the first one has left would win now
    attempts.tell_first(end)
    assert job.outcome() == list(range(COUNT))
    until(lambda: not others(ring), "the end of the other attempt")
    ring.recover()  # Spark kills a Python worker that waits
    (branch,) = ring.branches()
    assert branch["released"] == ring.claimed


@pytest.mark.parametrize("end", ["", "go"])
def test_one_of_several_attempts_of_a_write_is_readable(
    spark: SparkSession,
    ring: shmring.Ring,
    attempts: Attempts,
    thread: RunThread,
    until: Until,
    end: str,
) -> None:
    ring.subscribe("written", start="latest")
    frame = spark.range(0, COUNT, 1, 1).selectExpr("id number", "cast(id as string) text")
    writer = attempts.hold_first(frame).write.format("shmring").option("ring", ring.name)

    saved = threading.Event()

    def tell() -> None:
        until(lambda: len(staged(ring)) == 2 or saved.is_set(), "the speculative attempt")
        if end:  # otherwise the second one wins, and the first is killed
            attempts.tell_first(end)

    telling = thread(tell)
    writer.mode("append").save()
    saved.set()
    telling.outcome()
    assert not staged(ring)
    with ring.arrow_reader("written", until="empty", copy=True) as reader:
        numbers = [number for batch in reader for number in batch["number"].to_pylist()]
    assert sorted(numbers) == list(range(COUNT))
    until(lambda: not others(ring), "the end of what took part")


def test_one_of_several_attempts_of_a_result_is_collected(
    spark: SparkSession, attempts: Attempts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The held attempt has written a batch into the file; the result's memory lacks this batch."""
    sizes: list[tuple[int, int]] = []
    finish = driver._Files.finish

    def noting(files: driver._Files) -> None:
        finish(files)
        read = sum(length for parts in files._used.values() for _, length in parts)
        sizes.append((read, sum(os.fstat(number).st_blocks * 512 for number in files._open)))

    monkeypatch.setattr(driver._Files, "finish", noting)
    frame = spark.range(0, COUNT, 1, 1).selectExpr("id number", "repeat('x', 1000) text")
    table = attempts.hold_first(frame).toArrow()
    assert table["number"].to_pylist() == [*range(COUNT)]
    ((read, held),) = sizes
    assert 9_000_000 < read <= held <= read + 2 * 4096


def staged(ring: shmring.Ring) -> list[Path]:
    """Return the files that the attempts of a write have left beside the ring so far."""
    return list(Path("/dev/shm").glob(f".shmring-staging-shmring.{ring.name}-*/*"))


def test_a_read_whose_rows_are_released_and_lost_says_so(
    spark: SparkSession, cluster: Any, ring: shmring.Ring, until: Until
) -> None:
    frame = spark.read.format("shmring").options(ring=ring.name, branch="b").load()
    rows = frame.select("number").repartition(2)._jdf.queryExecution().toRdd()
    assert rows.count() == COUNT
    before = cluster.executors
    for executor in before:  # the output of the stage that has read is gone with them
        os.kill(executor, signal.SIGKILL)
    until(lambda: len(set(cluster.executors) - set(before)) == 2, "new executors")
    missing = "rows would be missing from its result"
    with pytest.raises(Exception, match=missing):
        rows.count()


@pytest.mark.parametrize("kind", ["map", "udf"])
def test_attempt_that_waits_for_a_sidecar_loses_and_leaves_nothing(
    spark: SparkSession, serve: Serve, name: str, marker: Path, until: Until, kind: str
) -> None:
    sidecar = serve("hold_the_first", workers=2)
    frame = spark.range(0, COUNT, 1, 1)
    if kind == "map":
        frame = frame.mapInArrow(through(name), "id long")
    else:
        frame = frame.select(arrow_udf(name, "long")("id").alias("id"))
    totals = frame.selectExpr("count(*)", "sum(id)")
    assert tuple(totals.first()) == (COUNT, sum(range(COUNT)))
    until(marker.with_suffix(".unwanted").exists, "the end of the first attempt's request")
    assert sidecar.restarts == 0
    sidecar.stop()
    replies = reply_ring_name(name, "")
    until(lambda: not any(ring.startswith(replies) for ring in shmring.rings()), "no reply rings")
