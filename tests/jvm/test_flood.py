"""Producers that are far faster than Spark: test_stream.py has one for `make test`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fixture_types import RunChild, Until
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import count, count_distinct, max, min
from pyspark.sql.streaming import StreamingQuery

import shmring

# An hour at a thousand a second is SHMRING_FLOOD=3600000.
MESSAGES = int(os.environ.get("SHMRING_FLOOD", "100000"))
PATIENCE = 300 + MESSAGES // 5000  # seconds

pytestmark = pytest.mark.long

PRODUCER = """
import sys, shmring
ring, messages = shmring.attach(sys.argv[1]), int(sys.argv[2])
with ring.producer("flood") as out:
    for first in range(0, messages, 256):
        out.push_many([b"%d" % n for n in range(first, min(first + 256, messages))])
    print("pushed", next(s["full_waits"] for s in ring.participants() if s["name"] == "flood"))
    input()
"""


@pytest.fixture
def patience() -> float:
    return PATIENCE


@pytest.fixture
def ring(name: str) -> Iterator[shmring.Ring]:
    with shmring.create(name, slots=65_536, temporary=True) as ring:
        yield ring


class Counted:
    """What the batches of a query had, each looked at as it came."""

    def __init__(self) -> None:
        self.ranges: list[tuple[int, int]] = []  # first number, and the one behind the last

    def __call__(self, frame: DataFrame, batch: int) -> None:
        numbers = frame.selectExpr("cast(cast(message as string) as long) number")
        found = numbers.agg(count("number"), count_distinct("number"), min("number"), max("number"))
        rows, distinct, first, last = found.collect()[0]
        assert rows == distinct
        if rows:
            assert last - first + 1 == rows  # each once, and without a gap
            assert not self.ranges or self.ranges[-1][1] <= first
            self.ranges.append((first, last + 1))

    @property
    def rows(self) -> int:
        return sum(end - first for first, end in self.ranges)

    @property
    def reached(self) -> int:
        return self.ranges[-1][1] if self.ranges else 0


@pytest.fixture
def start(
    spark: SparkSession, ring: shmring.Ring, tmp_path: Path
) -> Iterator[Callable[..., StreamingQuery]]:
    """Starts a query that counts what comes through branch "b"."""
    started: list[StreamingQuery] = []

    def start(counted: Counted, **options: str) -> StreamingQuery:
        frame = spark.readStream.format("shmring").options(ring=ring.name, branch="b", **options)
        writer = frame.load().writeStream.foreachBatch(counted)
        started.append(writer.option("checkpointLocation", str(tmp_path)).start())
        return started[-1]

    yield start
    for query in started:
        query.stop()


def test_a_producer_that_is_faster_waits_and_every_message_comes_once(
    ring: shmring.Ring, start: Callable[..., StreamingQuery], child: RunChild, until: Until
) -> None:
    counted = Counted()
    ring.subscribe("b", start="earliest", exclusive=True)
    producer = child(PRODUCER, ring.name, MESSAGES)
    query = start(counted)

    def arrived() -> bool:
        claimed = ring.claimed
        (branch,) = (b for b in ring.branches() if b["name"] == "b")
        assert claimed - branch["released"] <= ring.slots
        assert query.isActive, query.exception()
        return counted.reached == MESSAGES

    until(arrived, "the last message")
    assert counted.rows == MESSAGES
    assert int(producer.line().removeprefix("pushed ")) > 0


def test_a_stream_that_may_lose_data_goes_on_behind_the_gap(
    ring: shmring.Ring, start: Callable[..., StreamingQuery], child: RunChild, until: Until
) -> None:
    counted = Counted()
    ring.subscribe("b", start="earliest", exclusive=True, drop_oldest=True)
    query = start(counted, failOnDataLoss="false")
    child(PRODUCER, ring.name, MESSAGES).line()

    def arrived() -> bool:
        assert query.isActive, query.exception()
        return counted.reached == MESSAGES

    until(arrived, "the last message")
    assert counted.rows < MESSAGES
