"""Streams by the Python data source, on a real Spark: both ends, restarts, losses, the journal."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.types import LongType, StructField, StructType
from sessions import PATIENCE

import shmring
from shmring.durable import restore
from shmring.spark import register
from shmring.spark.source.options import ReadOptions
from shmring.spark.source.stream import RingStreamReader

# Before, Spark limits no batch of a Python stream and makes one batch of availableNow.
with_limits = pytest.mark.spark_version(since="4.2")
SCHEMA = pa.schema([("x", pa.int64()), ("s", pa.string())])


class Sink:
    """What a query has got, by batch: one that is done again counts once."""

    def __init__(self):
        self.batches = {}

    def __call__(self, frame, batch):
        self.batches[batch] = [row[0] for row in frame.collect()]

    @property
    def rows(self):
        return [row for batch in sorted(self.batches) for row in self.batches[batch]]


class Failing(Sink):
    """Takes a batch, and fails as if the driver had died before it could say so."""

    def __call__(self, frame, batch):
        super().__call__(frame, batch)
        raise RuntimeError("the driver died")


@pytest.fixture
def stream(spark, tmp_path):
    """Starts queries that go on from one checkpoint; they end with the test."""
    register(spark)
    started = []

    def start(ring, sink, *, available_now=True, **options):
        options = {"branch": "stream", **{key: str(value) for key, value in options.items()}}
        frame = spark.readStream.format("shmring_py").option("ring", ring).options(**options)
        query = (
            frame.load()
            .writeStream.foreachBatch(sink)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
        )
        query = query.trigger(availableNow=True) if available_now else query
        started.append(query.start())
        if available_now:
            started[-1].awaitTermination()
        return started[-1]

    yield start
    for query in started:
        query.stop()


@pytest.fixture
def arrow(name):
    with shmring.create(name, slots=4096, schema=SCHEMA, temporary=True) as ring:
        ring.subscribe("keep", start="earliest")
        yield ring


def write(ring, rows, rows_per_message=10):
    rows = list(rows)
    with ring.arrow_writer() as out:
        for i in range(0, len(rows), rows_per_message):
            part = rows[i : i + rows_per_message]
            out.write(pa.table([part, [str(x) for x in part]], schema=SCHEMA))


def go_around(ring):
    """Fill the ring once, with what nobody will read."""
    lap = ring.claimed + ring.slots
    while ring.claimed < lap:
        write(ring, range(-100, 0), rows_per_message=100)


def branch(ring, name="stream"):
    return next(b for b in ring.branches() if b["name"] == name)


def offsets(tmp_path):
    """The end of each batch, from the checkpoint."""
    files = sorted((tmp_path / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda f: int(f.name))
    return [
        next(iter(json.loads(file.read_text().splitlines()[-1]).values()))["sequence"]
        for file in files
    ]


def forget_last_commit(tmp_path):
    """As if the driver had died after the last batch and before it could say so."""
    commits = tmp_path / "checkpoint" / "commits"
    last = max(int(file.name) for file in commits.glob("[0-9]*"))
    for file in (commits / str(last), commits / f".{last}.crc"):
        file.unlink(missing_ok=True)


# --- reading --------------------------------------------------------------------------------------


@with_limits
def test_batches_have_at_most_so_many_messages(stream, arrow, tmp_path):
    write(arrow, range(500))
    sink = Sink()
    stream(arrow.name, sink, maxMessagesPerTrigger=7)
    assert sink.rows == list(range(500))
    assert [len(batch) for batch in sink.batches.values()] == [70] * 7 + [10]
    assert offsets(tmp_path)[-1] == arrow.claimed


def test_batch_is_a_quarter_of_the_ring_at_most(stream, arrow, tmp_path):
    write(arrow, range(9000), rows_per_message=100)
    sink = Sink()
    stream(arrow.name, sink)
    assert sink.rows == list(range(9000))
    ends = offsets(tmp_path)
    assert all(end - begin <= 1024 for begin, end in zip([0, *ends], ends, strict=False))


def test_producer_that_is_much_faster_waits_and_nothing_jams(stream, name, thread, until):
    with shmring.create(name, slots=1024, schema=SCHEMA, temporary=True) as ring:
        ring.subscribe("stream", exclusive=True)
        sink = Sink()
        query = stream(name, sink, available_now=False)
        producer = thread(write, ring, range(30_000))  # several times around
        producer.outcome()
        until(lambda: len(sink.rows) == 30_000, "the last batch")
        query.stop()
    assert sink.rows == list(range(30_000))


@with_limits
def test_restart_goes_on_exactly_where_the_stream_stood(stream, arrow):
    sink = Sink()
    for first in range(0, 500, 100):
        write(arrow, range(first, first + 100))
        stream(arrow.name, sink, maxMessagesPerTrigger=5)
    assert sink.rows == list(range(500))
    assert len(sink.batches) == 10


@pytest.mark.spark_version(before="4.2")
def test_runs_of_one_batch_each_go_on_where_the_stream_stood(stream, arrow, tmp_path):
    sink = Sink()
    for first in range(0, 500, 100):
        write(arrow, range(first, first + 100))
        stream(arrow.name, sink)
        forget_last_commit(tmp_path)
        stream(arrow.name, sink)
    while len(sink.rows) < 500:
        seen = len(sink.rows)
        stream(arrow.name, sink)
        assert len(sink.rows) > seen
    assert sink.rows == list(range(500))


@with_limits
def test_batch_that_was_not_committed_is_done_again_as_it_was(stream, arrow, tmp_path):
    write(arrow, range(100))
    sink = Sink()
    stream(arrow.name, sink, maxMessagesPerTrigger=4)
    before = dict(sink.batches)
    forget_last_commit(tmp_path)
    write(arrow, range(100, 200))
    sink.batches.popitem()
    stream(arrow.name, sink, maxMessagesPerTrigger=5)
    assert sink.rows == list(range(200))
    assert {batch: sink.batches[batch] for batch in before} == before


@with_limits
def test_driver_that_dies_over_each_batch_neither_loses_nor_repeats(stream, arrow):
    write(arrow, range(60))
    failing = Failing()
    for restart in range(6):
        with pytest.raises(StreamingQueryException, match="the driver died"):
            stream(arrow.name, failing, maxMessagesPerTrigger=1)
        assert failing.rows == list(range(10))
        write(arrow, range(60 + restart * 10, 70 + restart * 10))
    sink = Sink()
    stream(arrow.name, sink)
    assert sink.rows == list(range(120))


@with_limits
def test_what_is_committed_is_released(stream, arrow, until):
    arrow.drop_branch("keep")
    sink = Sink()
    query = stream(arrow.name, sink, available_now=False, maxMessagesPerTrigger=1)
    write(arrow, range(50))
    until(lambda: len(sink.rows) == 50, "the rows")
    until(lambda: branch(arrow)["released"] >= 2 * 4, "the release of all but the last")
    query.stop()
    until(lambda: arrow.recover() or not branch(arrow)["members"], "the end of its process")
    assert [b["name"] for b in arrow.branches()] == ["stream"]


def test_ring_of_bytes_streams_as_the_queue_table(spark, stream, ring):
    ring.subscribe("keep", start="earliest")
    with ring.producer() as out:
        ids = [out.push(b"x" * size) for size in range(0, 900, 100)]
    rows = []
    stream(ring.name, lambda frame, _: rows.extend(frame.collect()))
    assert [row.message_id for row in rows] == ids
    assert [len(row.message) for row in rows] == list(range(0, 900, 100))


@with_limits
def test_several_rings_are_one_stream(stream, name):
    rings = [shmring.create(f"{name}-{i}", schema=SCHEMA, temporary=True) for i in range(2)]
    try:
        sink = Sink()
        for round_ in range(2):
            for i, ring in enumerate(rings):
                ring.subscribe("keep", start="earliest")
                write(ring, range(1000 * i + 100 * round_, 1000 * i + 100 * round_ + 100))
            stream(f"{name}-*", sink, maxMessagesPerTrigger=6)
        assert sorted(sink.rows) == [*range(200), *range(1000, 1200)]
        assert {len(batch) for batch in sink.batches.values()} <= {60, 40, 20}
    finally:
        for ring in rings:
            ring.close()


def test_end_markers_are_no_rows_and_no_end(stream, arrow):
    for first in (0, 10):
        write(arrow, range(first, first + 10))
        with arrow.arrow_writer() as out:
            out.end()
    sink = Sink()
    stream(arrow.name, sink)
    assert sink.rows == list(range(20))


@with_limits
def test_progress_tells_where_the_stream_is_and_what_is_there(stream, arrow):
    write(arrow, range(30))
    query = stream(arrow.name, Sink())
    source = query.lastProgress.sources[0]
    assert json.loads(source.endOffset)[arrow.name]["sequence"] == arrow.claimed
    assert json.loads(source.latestOffset)[arrow.name]["sequence"] == arrow.claimed


def test_restart_where_spark_does_not_tell_the_start(arrow):
    """Spark 4.0 and 4.1 call latestOffset() without it."""

    def reader():
        options = {"ring": arrow.name, "branch": "stream", "maxMessagesPerTrigger": "3"}
        return RingStreamReader(ReadOptions.of(options), StructType([StructField("x", LongType())]))

    def sequence(offset):
        return offset[arrow.name]["sequence"]

    write(arrow, range(200))
    first = reader()
    ends = [first.initialOffset()]
    for _ in range(3):
        ends.append(first.latestOffset())
        (partition,) = first.partitions(*ends[-2:])
        assert sum(batch.num_rows for batch in first.read(partition)) == 30
    first.commit(ends[1])
    first.stop()
    second = reader()
    end = second.latestOffset()
    assert sequence(end) >= sequence(ends[-1])
    assert sum(p.end - p.first for p in second.partitions(ends[-1], end)) == sequence(
        end
    ) - sequence(ends[-1])
    second.stop()
    third = reader()  # after a batch that was planned and not committed
    (partition,) = third.partitions(ends[1], ends[2])
    assert sum(batch.num_rows for batch in third.read(partition)) == 30
    assert sequence(third.latestOffset()) > sequence(ends[2])
    third.stop()


def test_first_batch_may_be_planned_before_the_stream_begins(arrow):
    """In this order Spark 4.0 and 4.1 call: what follows goes on behind that batch."""
    options = {"ring": arrow.name, "branch": "stream", "maxMessagesPerTrigger": "3"}
    stream = RingStreamReader(ReadOptions.of(options), StructType([StructField("x", LongType())]))
    write(arrow, range(200))
    end = stream.latestOffset()
    assert stream.initialOffset()[arrow.name]["sequence"] == 0
    write(arrow, range(200, 400))
    assert stream.latestOffset()[arrow.name]["sequence"] > end[arrow.name]["sequence"]
    stream.stop()


# --- losses ---------------------------------------------------------------------------------------


@pytest.fixture
def gap(stream, arrow):
    """A stream that has read 0 to 99, over a ring that holds 200 to 299 and has lost the rest."""
    sink = Sink()
    write(arrow, range(100))
    stream(arrow.name, sink)
    arrow.drop_branch("stream")
    arrow.drop_branch("keep")
    go_around(arrow)
    arrow.subscribe("stream", start="latest", exclusive=True)
    write(arrow, range(200, 300))
    return sink


def test_gap_is_an_error(stream, arrow, gap):
    with pytest.raises(StreamingQueryException, match=r"the messages \d+ to \d+ are gone"):
        stream(arrow.name, gap)
    assert gap.rows == list(range(100))


def test_gap_may_be_accepted(stream, arrow, gap):
    stream(arrow.name, gap, failOnDataLoss="false")
    assert gap.rows == [*range(100), *range(200, 300)]


def test_ring_that_was_made_anew_is_told_from_the_old_one(stream, name):
    sink = Sink()
    for first, options in ((0, {}), (100, {}), (100, {"failOnDataLoss": "false"})):
        with shmring.create(name, schema=SCHEMA, temporary=True) as ring:
            ring.subscribe("keep", start="earliest")
            write(ring, range(first, first + 100))
            if first and not options:
                with pytest.raises(StreamingQueryException, match="was replaced by another one"):
                    stream(name, sink)
            else:
                stream(name, sink, **options)
    assert sink.rows == list(range(200))


def test_ring_that_is_unlinked_ends_the_query(stream, arrow, until):
    sink = Sink()
    query = stream(arrow.name, sink, available_now=False)
    write(arrow, range(10))
    until(lambda: sink.rows == list(range(10)), "the rows")
    shmring.unlink(arrow.name)
    with pytest.raises(StreamingQueryException, match="was unlinked while it was read"):
        query.awaitTermination(PATIENCE)


def test_second_query_on_the_branch_is_refused(stream, arrow, until):
    write(arrow, range(10))
    sink = Sink()
    stream(arrow.name, sink, available_now=False)
    until(lambda: len(sink.rows) == 10, "the query's rows")
    with pytest.raises(shmring.SecondMember):
        arrow.consumer("stream")


# --- the journal ----------------------------------------------------------------------------------


@with_limits
def test_stream_goes_on_from_the_journal_over_a_restored_ring(stream, name, tmp_path, until):
    journal = tmp_path / "journal"
    sink = Sink()
    with (
        shmring.create(name, slots=4096, schema=SCHEMA, temporary=True) as ring,
        ring.journal(journal) as writer,
    ):
        write(ring, range(100))
        until(lambda: writer.durable == ring.claimed, "the journal")
        stream(name, sink, journal=journal, maxMessagesPerTrigger=3)
        write(ring, range(100, 200))
        until(lambda: writer.durable == ring.claimed, "the journal")
    assert sink.rows == list(range(100))
    with restore(journal, name, slots=4096, temporary=True) as ring:
        ring.subscribe("keep", start="earliest")
        write(ring, range(200, 300))
        with pytest.raises(StreamingQueryException, match="was replaced by another one"):
            stream(name, sink)
        stream(name, sink, journal=journal, maxMessagesPerTrigger=3)
        assert sink.rows == list(range(300))
        assert {len(batch) for batch in sink.batches.values()} <= {30, 10}


def test_journal_that_has_forgotten_is_a_gap(stream, name, tmp_path, until):
    journal = tmp_path / "journal"
    sink = Sink()
    with shmring.create(name, slots=4096, schema=SCHEMA, temporary=True) as ring:
        ring.subscribe("keep", start="earliest")
        write(ring, range(100))
        stream(name, sink)
        ring.drop_branch("keep")
        ring.drop_branch("stream")
        go_around(ring)
        ring.subscribe("keep", start="latest")
        with ring.journal(journal) as writer:
            write(ring, range(200, 300))
            until(lambda: writer.durable == ring.claimed, "the journal")
    with restore(journal, name, slots=4096, temporary=True) as ring:
        ring.subscribe("keep", start="earliest")
        with pytest.raises(StreamingQueryException, match=r"the messages \d+ to \d+ are gone"):
            stream(name, sink, journal=journal)
