"""spark.readStream.format("shmring")."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fixture_types import RunThread, Until
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from sessions import PATIENCE

import shmring
from shmring.durable import restore

SCHEMA = pa.schema([("number", pa.int64())])
pytestmark = pytest.mark.ring(slots=4096, schema=SCHEMA)
ROWS = 100


def write(ring: shmring.Ring, batches: range, timeout: float | None = PATIENCE) -> None:
    with ring.arrow_writer() as writer:
        for k in batches:
            numbers = pa.array(range(k * ROWS, (k + 1) * ROWS))
            writer.write(pa.record_batch([numbers], schema=SCHEMA), timeout=timeout)


class Stream:
    """A query from a ring into files, which may be stopped and started again."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.query: StreamingQuery | None = None

    def start(self, ring: str, *, now: bool = True, **options: object) -> StreamingQuery:
        frame = (
            self.spark.readStream.format("shmring")
            .option("ring", ring)
            .options(**{key: str(value) for key, value in options.items()})
            .load()
        )
        writer = (
            frame.writeStream.format("parquet")
            .option("path", str(self.folder / "rows"))
            .option("checkpointLocation", str(self.folder / "checkpoint"))
        )
        trigger = {"availableNow": True} if now else {"processingTime": "0 seconds"}
        self.query = writer.trigger(**trigger).start()
        return self.query

    def run(self, ring: str, **options: object) -> list[Any]:
        """Read all rows in the ring, in any number of batches; return the batches' progress."""
        query = self.start(ring, **options)
        assert query.awaitTermination(PATIENCE)
        error = query.exception()
        if error is not None:
            raise error
        return [json.loads(progress.json) for progress in query.recentProgress]

    def fail(self, ring: str, **options: object) -> str:
        with pytest.raises(Exception) as caught:  # noqa: PT011
            self.run(ring, **options)
        return str(caught.value)

    def numbers(self) -> list[int]:
        rows = self.spark.read.parquet(str(self.folder / "rows")).collect()
        return sorted(row[0] for row in rows)


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Iterator[Stream]:
    stream = Stream(spark, tmp_path)
    yield stream
    if stream.query is not None:
        stream.query.stop()


def test_a_restarted_stream_goes_on_where_it_stopped(ring: shmring.Ring, stream: Stream) -> None:
    for k in range(3):
        write(ring, range(k * 10, k * 10 + 10))
        stream.run(ring.name)
    assert stream.numbers() == list(range(3000))
    branch = ring.branches()[0]
    assert branch["exclusive"]
    assert branch["position"] < ring.claimed  # the last batch is committed with the next one


def synced(ring: shmring.Ring) -> None:
    with ring.producer() as out:
        out.wait_durable(ring.claimed - 1)


def test_a_stream_goes_on_over_a_ring_that_was_restored_from_its_journal(
    name: str, stream: Stream, tmp_path: Path
) -> None:
    journal, earlier = tmp_path / "journal", tmp_path / "earlier"
    options: dict[str, Any] = {"slots": 4096, "temporary": True}
    with shmring.create(name, schema=SCHEMA, **options) as ring, ring.journal(journal):
        write(ring, range(5))
        synced(ring)
        shutil.copytree(journal, earlier)
        write(ring, range(5, 10))
        stream.run(name)
        synced(ring)
    with restore(journal, name, **options) as ring, ring.journal(journal):
        write(ring, range(10, 20))
        stream.run(name)
        assert stream.numbers() == list(range(20 * ROWS))
        begin = ring.claimed
        write(ring, range(20, 25))
        synced(ring)
        end = ring.claimed
    with restore(earlier, name, **options):  # its numbers mean other messages
        assert "was replaced by another one" in stream.fail(name)
    with restore(journal, name, **options) as ring:
        write(ring, range(25, 30))
        assert f"the messages {begin} to {end - 1} are gone" in stream.fail(name)
        stream.run(name, failOnDataLoss=False)
    assert stream.numbers() == [*range(20 * ROWS), *range(25 * ROWS, 30 * ROWS)]


@pytest.mark.parametrize("begin", ["latest", pytest.param("a sequence", marks=pytest.mark.long)])
def test_a_stream_from_behind_an_open_claim_on_has_all_of_that_and_nothing_older(
    ring: shmring.Ring, stream: Stream, begin: str
) -> None:
    slow = ring.producer()
    claim = slow.claim(1)
    write(ring, range(10))
    start = ring.claimed if begin == "a sequence" else begin
    stream.run(ring.name, start=start)
    claim.abort()
    write(ring, range(10, 40))
    stream.run(ring.name, maxMessagesPerTrigger=3)
    write(ring, range(40, 43))
    stream.run(ring.name)
    slow.close()
    assert stream.numbers() == list(range(10 * ROWS, 43 * ROWS))


def test_a_batch_that_was_not_committed_is_done_again_as_it_was(
    ring: shmring.Ring, spark: SparkSession, tmp_path: Path
) -> None:
    """A driver that dies over each batch neither loses nor repeats."""
    done: dict[int, list[int]] = {}

    def take(frame: DataFrame, batch: int) -> None:
        done.setdefault(batch, []).extend(row[0] for row in frame.collect())
        if len(done[batch]) == 3 * ROWS:
            raise RuntimeError("the driver died")

    for first in range(0, 30, 10):
        write(ring, range(first, first + 10))
        source = spark.readStream.format("shmring").option("maxMessagesPerTrigger", 3)
        query = (
            source.load(ring.name)
            .writeStream.foreachBatch(take)
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
        )
        while True:
            try:
                query.start().awaitTermination()
                break
            except StreamingQueryException as error:
                assert "the driver died" in str(error)  # noqa: PT017
    seen = []
    for batch in done.values():
        half = batch[: len(batch) // 2]
        seen += half if batch == half * 2 else batch
    assert seen == list(range(3000))


@pytest.mark.long
def test_a_batch_has_at_most_a_quarter_of_the_ring(ring: shmring.Ring, stream: Stream) -> None:
    write(ring, range(900))  # four slots each
    progress = stream.run(ring.name)
    positions = [p["sources"][0]["endOffset"][ring.name]["sequence"] for p in progress]
    steps = [b - a for a, b in zip([0, *positions], positions, strict=False)]
    assert len(steps) >= 4
    assert max(steps) <= 1024
    assert stream.numbers() == list(range(90_000))


def test_a_batch_has_at_most_as_many_messages_as_is_asked_for(
    ring: shmring.Ring, stream: Stream
) -> None:
    write(ring, range(10))
    progress = stream.run(ring.name, maxMessagesPerTrigger=3)
    assert [p["numInputRows"] for p in progress if p["numInputRows"]] == [300, 300, 300, 100]


def test_a_stream_that_may_lose_data_goes_on_behind_the_gap(
    ring: shmring.Ring, stream: Stream, thread: RunThread, until: Until
) -> None:
    ring.subscribe("b", start="earliest", exclusive=True, drop_oldest=True)
    write(ring, range(2000))  # twice what the ring holds
    query = stream.start(ring.name, now=False, branch="b", failOnDataLoss=False)
    batches = 5000
    writing = thread(write, ring, range(2000, batches))
    until(lambda: not writing.is_alive(), "the end of the writing")
    writing.outcome()
    query.processAllAvailable()
    query.stop()
    numbers = stream.numbers()
    assert numbers[-1] == batches * ROWS - 1
    assert len(numbers) < batches * ROWS
    assert numbers == [k + i for k in numbers[::ROWS] for i in range(ROWS)]  # whole messages
    assert len(numbers) == len(set(numbers))


def test_producers_wait_for_a_task_only_while_it_reads(
    ring: shmring.Ring, spark: SparkSession, tmp_path: Path
) -> None:
    ring.subscribe("b", start="earliest", exclusive=True, drop_oldest=True)
    write(ring, range(10))
    name, found = ring.name, tmp_path / "found"

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        with shmring.attach(name, read_only=True) as ring:
            found.write_text(json.dumps([branch["name"] for branch in ring.branches()]))

    read = spark.readStream.format("shmring").option("ring", name).option("branch", "b").load()
    writer = read.mapInArrow(look, read.schema).writeStream.format("noop")
    query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True)
    assert query.start().awaitTermination(PATIENCE)
    assert json.loads(found.read_text()) == ["b"]


def test_progress_shows_the_lag_and_the_producers(ring: shmring.Ring, stream: Stream) -> None:
    with ring.arrow_writer() as writer:
        writer.write(pa.record_batch([pa.array(range(ROWS))], schema=SCHEMA))
        metrics = stream.run(ring.name)[0]["sources"][0]["metrics"]
    assert metrics["lagSlots"] == "0"
    assert int(metrics["producedBytes"]) > ROWS * 8
    assert set(metrics) == {"lagSlots", "heldSlots", "producedBytes", "producerWaits"}


def test_a_dropped_branch_is_a_gap_and_an_error(name: str, stream: Stream, until: Until) -> None:
    with shmring.create(name, slots=1024, schema=SCHEMA, temporary=True) as ring:
        write(ring, range(10))
        stream.run(name)
        ring.drop_branch(ring.branches()[0]["name"])
        write(ring, range(10, 1000))  # nobody holds it: the oldest is overwritten
        text = stream.fail(name)
        assert "are gone" in text
        assert "failOnDataLoss" in text
        stream.run(name, failOnDataLoss="false")
        write(ring, range(1000, 1010))
        stream.run(name)
        numbers = stream.numbers()
        assert numbers[:1000] == list(range(1000))
        assert numbers[-1000:] == list(range(100_000, 101_000))
        assert len(numbers) == len(set(numbers))


def test_a_dropped_branch_is_made_again_while_nothing_is_overwritten(
    ring: shmring.Ring, stream: Stream
) -> None:
    write(ring, range(10))
    stream.run(ring.name)
    ring.drop_branch(ring.branches()[0]["name"])
    write(ring, range(10, 20))
    stream.run(ring.name)
    assert stream.numbers() == list(range(2000))


def test_a_replaced_ring_is_an_error_unless_loss_is_allowed(name: str, stream: Stream) -> None:
    with shmring.create(name, schema=SCHEMA, temporary=True) as ring:
        write(ring, range(10))
        stream.run(name)
    with shmring.create(name, schema=SCHEMA, temporary=True) as ring:
        write(ring, range(50, 55))
        assert "was replaced by another one" in stream.fail(name)
        stream.run(name, failOnDataLoss="false")
        write(ring, range(55, 60))
        stream.run(name)
        assert stream.numbers() == [*range(1000), *range(5000, 6000)]


def test_a_missing_ring_is_an_error(name: str, stream: Stream) -> None:
    with shmring.create(name, schema=SCHEMA, temporary=True) as ring:
        write(ring, range(1))
        stream.run(name)
        frame = stream.spark.readStream.format("shmring").option("ring", name).load()
        shmring.unlink(name)
    query = frame.writeStream.format("noop").start()
    with pytest.raises(Exception, match="no ring"):
        query.awaitTermination(PATIENCE)


@pytest.mark.long  # the second query waits ten seconds for the first one to leave
def test_two_queries_cannot_share_a_branch(
    ring: shmring.Ring, stream: Stream, spark: SparkSession, until: Until
) -> None:
    query = stream.start(ring.name, now=False, branch="mine")
    until(lambda: any(b["consumers"] for b in ring.branches()), "the query's consumer")
    other = spark.readStream.format("shmring").option("ring", ring.name).option("branch", "mine")
    second = other.load().writeStream.format("noop").start()
    with pytest.raises(Exception, match="exclusive"):
        second.awaitTermination(PATIENCE)
    assert query.isActive
    query.stop()


def test_several_rings_are_one_stream(name: str, stream: Stream) -> None:
    rings = [
        shmring.create(f"{name}-{i}", slots=4096, schema=SCHEMA, temporary=True) for i in range(3)
    ]
    try:
        for i, ring in enumerate(rings):
            write(ring, range(i * 10, i * 10 + 10))
        stream.run(f"{name}-*", maxMessagesPerTrigger=6)
        write(rings[1], range(30, 40))
        stream.run(f"{name}-*")
        assert stream.numbers() == list(range(4000))
    finally:
        for ring in rings:
            ring.close()


def test_end_markers_and_aborted_claims_are_stepped_over(
    ring: shmring.Ring, stream: Stream
) -> None:
    with ring.producer() as producer:
        for k in range(5):
            write(ring, range(k, k + 1))
            producer.push_end()
            producer.claim(1000).abort()
    stream.run(ring.name)
    write(ring, range(5, 6))
    stream.run(ring.name)
    assert stream.numbers() == list(range(600))


def test_a_ring_of_bytes_streams_as_the_queue_table(
    name: str, spark: SparkSession, tmp_path: Path, until: Until
) -> None:
    with (
        shmring.create(name, slots=4096, temporary=True) as ring,
        ring.producer() as producer,
    ):
        frame = spark.readStream.format("shmring").option("ring", name).load()
        query = (
            frame.selectExpr("message_id", "cast(message as string) text")
            .writeStream.format("memory")
            .queryName("messages")
            .option("checkpointLocation", str(tmp_path))
            .start()
        )
        until(ring.branches, "the stream's branch, which holds what is pushed")
        for i in range(10_000):
            producer.push(b"%d" % i, timeout=600)
        query.processAllAvailable()
        query.stop()
        rows = spark.sql("select * from messages").collect()
        assert sorted((r[0], r[1]) for r in rows) == [(i, str(i)) for i in range(10_000)]


def test_a_message_that_would_end_the_stream_is_an_error(name: str, stream: Stream) -> None:
    with shmring.create(name, slots=1024, schema=SCHEMA, temporary=True) as ring:
        large = pa.record_batch([pa.array(range(25_000))], schema=SCHEMA).serialize()
        with ring.producer() as producer, producer.claim(large.size, align=0) as claim:
            claim.buffer[:] = memoryview(large).cast("B")
            claim.commit(kind=3)
        assert "create the ring with more slots" in stream.fail(name)
