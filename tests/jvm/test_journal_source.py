"""option("journal", DIRECTORY): a journal as a table, and streams from it into the ring."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from sessions import PATIENCE

import shmring
from shmring.durable import Journal, Retention, restore

SCHEMA = pa.schema([("x", pa.int64()), ("s", pa.string())])
ROWS = 10  # of a message


def write(ring: shmring.Ring, rows: range) -> None:
    with ring.arrow_writer() as out:
        for i in range(rows.start, rows.stop, ROWS):
            part = list(rows)[i - rows.start : i - rows.start + ROWS]
            out.write(pa.table([part, [str(x) for x in part]], schema=SCHEMA), timeout=PATIENCE)


def synced(ring: shmring.Ring) -> None:
    with ring.producer() as out:
        out.wait_durable(ring.claimed - 1)


def oldest(journal: Path) -> int:
    return min(int(segment.stem) for segment in journal.glob("*.journal"))


def write_apart(ring: shmring.Ring, rows: range) -> None:
    """A record of the journal for each hundred, so that segments are as small as they can be."""
    for first in range(rows.start, rows.stop, 100):
        write(ring, range(first, first + 100))
        synced(ring)


def go_around(ring: shmring.Ring) -> None:
    """Fill the ring once, with what nobody will read."""
    lap = ring.claimed + ring.slots
    while ring.claimed < lap:
        write(ring, range(-ROWS, 0))


@pytest.fixture
def ring(name: str) -> Iterator[shmring.Ring]:
    with shmring.create(name, slots=1024, schema=SCHEMA, temporary=True) as ring:
        yield ring


@pytest.fixture
def keep(until: Callable[..., None]) -> Callable[..., Any]:
    """Journals a ring for as long as a block lasts; what came before its end is on disk then."""

    @contextlib.contextmanager
    def journalled(ring: shmring.Ring, path: Path, **options: Any) -> Iterator[Journal]:
        with ring.journal(path, **{"segment_bytes": 8000, **options}) as journal:
            yield journal
            until(lambda: journal.durable == ring.claimed, "the journal")

    return journalled


@pytest.fixture
def load(spark: SparkSession) -> Callable[..., DataFrame]:
    def loaded(journal: Path | str, **options: object) -> DataFrame:
        given = {key: str(value) for key, value in options.items()}
        return spark.read.format("shmring").option("journal", str(journal)).options(**given).load()

    return loaded


def xs(frame: DataFrame) -> list[int]:
    return [row.x for row in frame.select("x").collect()]


def failure(act: Callable[[], object]) -> str:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        act()
    return str(caught.value)


# --- batches ----------------------------------------------------------------------------------


def test_a_journal_is_read_in_parallel_and_needs_no_ring(
    load: Callable[..., DataFrame],
    name: str,
    tmp_path: Path,
    keep: Callable[..., Any],
) -> None:
    with (
        shmring.create(name, slots=1024, schema=SCHEMA, temporary=True) as ring,
        keep(ring, tmp_path),
    ):
        write_apart(ring, range(8000))  # more than the ring holds
        with ring.arrow_writer() as out:
            out.end()
    frame = load(tmp_path)
    assert frame.schema.simpleString() == "struct<x:bigint,s:string>"
    assert frame.rdd.getNumPartitions() == len(list(tmp_path.glob("*.journal"))) > 5
    assert [(r.x, r.s) for r in frame.collect()] == [(i, str(i)) for i in range(8000)]
    assert frame.where("x % 2 = 0").count() == frame.where("x % 2 = 1").count() == 4000


def test_a_journal_of_bytes_is_the_queue_table(
    load: Callable[..., DataFrame], name: str, tmp_path: Path, keep: Callable[..., Any]
) -> None:
    sent = [b"x" * (n * 37 % 900) for n in range(300)]
    with (
        shmring.create(name, slots=1024, temporary=True) as ring,
        keep(ring, tmp_path),
        ring.producer() as out,
    ):
        ids = [out.push(data) for data in sent]
    rows = load(tmp_path).collect()
    assert [row.message_id for row in rows] == ids
    assert [bytes(row.message) for row in rows] == sent
    assert {(row.slot, row.reference_count) for row in rows} == {(-1, 0)}
    assert all(row.time for row in rows)
    later = load(tmp_path, start=ids[200]).select("message_id").collect()
    assert [row.message_id for row in later] == ids[200:]
    assert load(tmp_path, start=ids[-1] + 100).count() == 0


def test_what_is_there_is_read_while_the_journal_is_written_and_rotated(
    load: Callable[..., DataFrame],
    ring: shmring.Ring,
    tmp_path: Path,
    keep: Callable[..., Any],
    thread: Callable[..., Any],
) -> None:
    with keep(ring, tmp_path):
        write(ring, range(ROWS))
        synced(ring)
        writing = thread(write, ring, range(ROWS, 30_000))
        seen = 0
        while writing.is_alive() or not seen:
            found = xs(load(tmp_path))
            assert found == list(range(len(found)))
            assert len(found) >= seen
            seen = len(found)
        writing.outcome()
    assert xs(load(tmp_path)) == list(range(30_000))


def test_a_torn_end_is_the_end_and_damage_before_it_is_told(
    load: Callable[..., DataFrame], ring: shmring.Ring, tmp_path: Path, keep: Callable[..., Any]
) -> None:
    with keep(ring, tmp_path):
        write_apart(ring, range(2000))
    segments = sorted(tmp_path.glob("*.journal"))
    assert len(segments) > 2
    last = segments[-1].read_bytes()
    segments[-1].write_bytes(last[:-200])
    found = xs(load(tmp_path))
    assert found == list(range(len(found)))
    assert 0 < len(found) < 2000
    middle = bytearray(segments[1].read_bytes())
    middle[-200] ^= 255
    segments[1].write_bytes(middle)
    text = failure(lambda: xs(load(tmp_path)))
    assert segments[1].name in text
    assert "is damaged" in text
    assert "shmring journal truncate" in text


def test_a_start_that_was_forgotten_is_an_error_unless_loss_is_allowed(
    load: Callable[..., DataFrame],
    ring: shmring.Ring,
    tmp_path: Path,
    keep: Callable[..., Any],
    until: Callable[..., None],
) -> None:
    with keep(ring, tmp_path, retention=Retention(max_bytes=30_000)):
        write(ring, range(5000))
        until(lambda: oldest(tmp_path), "the first to be forgotten")
    found = xs(load(tmp_path))
    assert found == list(range(5000 - len(found), 5000))
    assert 0 < len(found) < 5000
    text = failure(lambda: xs(load(tmp_path, start=0)))
    assert "begins at sequence" in text
    assert "failOnDataLoss" in text
    assert xs(load(tmp_path, start=0, failOnDataLoss="false")) == found


def test_segments_that_go_once_they_were_planned_are_a_loss_and_not_fewer_rows(
    load: Callable[..., DataFrame],
    ring: shmring.Ring,
    tmp_path: Path,
    keep: Callable[..., Any],
) -> None:
    journal = tmp_path / "journal"
    with keep(ring, journal):
        write_apart(ring, range(3000))
    segments = sorted(journal.glob("*.journal"))
    assert len(segments) > 3

    frame = load(journal)
    planned = frame._jdf.queryExecution().toRdd()
    assert planned.getNumPartitions() == len(segments)
    segments[-2].unlink()
    assert "have been forgotten since" in failure(planned.count)
    segments[-2].touch()  # is there, and is none
    assert segments[-2].name in failure(frame.collect)
    segments[-2].unlink()
    kept = xs(load(journal, failOnDataLoss="false"))
    assert sorted(set(range(3000)) - set(kept))
    assert kept == sorted(set(kept))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"branch": "b"}, "option branch is for rings"),
        ({"until": "end"}, "option until is for rings"),
        ({"maxMessages": 5}, "option maxMessages is for rings"),
        ({"start": "latest"}, "option start must be earliest or a sequence"),
        ({"hosts": "here"}, "option hosts is for rings"),
        ({"ring": "a,b"}, "option journal is of one ring"),
    ],
)
def test_options_that_a_journal_cannot_obey_are_refused(
    load: Callable[..., DataFrame],
    name: str,
    tmp_path: Path,
    keep: Callable[..., Any],
    options: dict[str, object],
    error: str,
) -> None:
    with contextlib.ExitStack() as stack:
        for each in (name, f"{name}-2"):
            ring = stack.enter_context(shmring.create(each, schema=SCHEMA, temporary=True))
        with keep(ring, tmp_path):
            write(ring, range(ROWS))
        if "ring" in options:
            options = {"ring": f"{name},{name}-2"}
        assert error in failure(lambda: load(tmp_path, **options).collect())


def test_a_batch_is_of_a_ring_or_of_its_journal(
    load: Callable[..., DataFrame], ring: shmring.Ring, tmp_path: Path
) -> None:
    with ring.journal(tmp_path):
        text = failure(lambda: load(tmp_path, ring=ring.name).collect())
    assert "a batch read is of rings or of a journal" in text


def test_what_is_no_journal_is_told(load: Callable[..., DataFrame], tmp_path: Path) -> None:
    assert "holds no journal" in failure(lambda: load(tmp_path / "missing"))
    assert "has no message yet" in failure(lambda: load(tmp_path))
    (tmp_path / "file").write_bytes(b"")
    assert "is a file" in failure(lambda: load(tmp_path / "file"))


def test_a_schema_may_be_given_and_must_agree(
    spark: SparkSession, ring: shmring.Ring, tmp_path: Path, keep: Callable[..., Any]
) -> None:
    with keep(ring, tmp_path):
        write(ring, range(ROWS))
    reader = spark.read.format("shmring").option("journal", str(tmp_path))
    assert reader.schema("x long, s string").load().count() == ROWS
    text = failure(reader.schema("y long").load().count)
    assert f'journal "{tmp_path}" has another schema' in text


# --- streams ----------------------------------------------------------------------------------


class Stream:
    """A query that goes on from one checkpoint; what it has got, by batch."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self.checkpoint = folder / "checkpoint"
        self.batches: dict[int, list[int]] = {}
        self.query: StreamingQuery | None = None
        self.dies = False

    def _take(self, frame: DataFrame, batch: int) -> None:
        self.batches[batch] = xs(frame)
        if self.dies:
            raise RuntimeError("the driver died")

    def start(self, ring: str, *, now: bool = True, **options: object) -> StreamingQuery:
        given = {key: str(value) for key, value in options.items()}
        frame = self._spark.readStream.format("shmring").option("ring", ring).options(**given)
        writer = frame.load().writeStream.foreachBatch(self._take)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        self.query = (writer.trigger(availableNow=True) if now else writer).start()
        return self.query

    def run(self, ring: str, **options: object) -> None:
        query = self.start(ring, **options)
        assert query.awaitTermination(PATIENCE)
        error = query.exception()
        if error is not None:
            raise error

    def has(self, rows: int) -> bool:
        """Whether so many rows have come, of a query that runs."""
        assert self.query is not None
        assert self.query.isActive, self.query.exception()
        return len(self.rows) >= rows

    @property
    def rows(self) -> list[int]:
        return [row for batch in sorted(self.batches) for row in self.batches[batch]]

    def forget_last_commit(self) -> None:
        """As if the driver had died after the last batch and before it could say so."""
        commits = self.checkpoint / "commits"
        last = max(int(file.name) for file in commits.glob("[0-9]*"))
        for file in (commits / str(last), commits / f".{last}.crc"):
            file.unlink(missing_ok=True)

    def end(self) -> int:
        """The sequence that the last batch ends at."""
        offsets = (self.checkpoint / "offsets").glob("[0-9]*")
        last = max(offsets, key=lambda file: int(file.name))
        position = next(iter(json.loads(last.read_text().splitlines()[-1]).values()))
        return position["sequence"]


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Iterator[Stream]:
    stream = Stream(spark, tmp_path)
    yield stream
    if stream.query is not None:
        stream.query.stop()


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def test_a_new_stream_begins_in_the_journal_and_goes_on_in_the_ring(
    stream: Stream, ring: shmring.Ring, journal: Path, keep: Callable[..., Any]
) -> None:
    with keep(ring, journal):
        write(ring, range(12_000))  # the ring has lost the first ones
        synced(ring)
        stream.run(ring.name, journal=journal)
        assert stream.rows == list(range(12_000))
        write(ring, range(12_000, 12_500))
        synced(ring)
        stream.run(ring.name, journal=journal)
    assert stream.rows == list(range(12_500))


def test_a_stream_begins_where_start_says(
    stream: Stream, ring: shmring.Ring, journal: Path, keep: Callable[..., Any]
) -> None:
    with keep(ring, journal):
        write(ring, range(1000))
        begin = ring.claimed
        write(ring, range(1000, 13_000))
        synced(ring)
        stream.run(ring.name, journal=journal, start=begin)
    assert stream.rows == list(range(1000, 13_000))


def test_a_batch_in_the_journal_has_at_most_as_many_messages_as_is_asked_for(
    stream: Stream, ring: shmring.Ring, journal: Path, keep: Callable[..., Any]
) -> None:
    with keep(ring, journal):
        write(ring, range(12_000))
        synced(ring)
        stream.run(ring.name, journal=journal, maxMessagesPerTrigger=30)
    assert stream.rows == list(range(12_000))
    assert max(map(len, stream.batches.values())) == 30 * ROWS


def test_a_stream_catches_up_with_a_journal_that_is_written(
    stream: Stream,
    ring: shmring.Ring,
    journal: Path,
    keep: Callable[..., Any],
    thread: Callable[..., Any],
    until: Callable[..., None],
) -> None:
    """From the journal into the ring while a producer, the journal and the stream all run."""
    with keep(ring, journal):
        write(ring, range(12_000))
        writing = thread(write, ring, range(12_000, 30_000))
        query = stream.start(ring.name, now=False, journal=journal)
        until(lambda: not writing.is_alive(), "the end of the writing")
        writing.outcome()
        until(lambda: stream.has(30_000), "the last batch")
        query.stop()
    assert stream.rows == list(range(30_000))


def test_a_stream_whose_branch_drops_oldest_reads_the_journal_alone(
    stream: Stream,
    ring: shmring.Ring,
    journal: Path,
    keep: Callable[..., Any],
    thread: Callable[..., Any],
    until: Callable[..., None],
) -> None:
    """Nothing holds the producers but the journal, and nothing is lost."""
    ring.subscribe("fast", start="earliest", exclusive=True, drop_oldest=True)
    text = failure(lambda: stream.run(ring.name, journal=journal.parent, branch="fast"))
    assert "begin its journal first" in text
    with keep(ring, journal):
        options = {"journal": journal, "branch": "fast", "maxMessagesPerTrigger": 100}
        query = stream.start(ring.name, now=False, **options)
        writing = thread(write, ring, range(20_000))
        until(lambda: not writing.is_alive(), "the end of the writing")
        writing.outcome()
        until(lambda: stream.has(20_000), "the last batch")
        query.stop()
        stream.forget_last_commit()
        write(ring, range(20_000, 30_000))
        synced(ring)
        stream.run(ring.name, **options)
    assert stream.rows == list(range(30_000))


def test_a_stream_is_never_ahead_of_the_journal(
    stream: Stream, ring: shmring.Ring, journal: Path, keep: Callable[..., Any]
) -> None:
    with keep(ring, journal):
        write(ring, range(100))
    write(ring, range(100, 200))  # in the ring, and not on disk
    stream.run(ring.name, journal=journal)
    assert stream.rows == list(range(100))
    with keep(ring, journal):
        pass
    stream.run(ring.name, journal=journal)
    assert stream.rows == list(range(200))


def test_a_stream_waits_for_a_journal_that_is_behind_its_branch(
    stream: Stream, ring: shmring.Ring, journal: Path, keep: Callable[..., Any]
) -> None:
    with keep(ring, journal):
        write(ring, range(100))
    write(ring, range(100, 200))
    ring.subscribe("ahead", start="latest", exclusive=True)
    stream.run(ring.name, journal=journal, branch="ahead")
    assert stream.rows == list(range(100))
    with keep(ring, journal):
        write(ring, range(200, 300))
        synced(ring)
    stream.run(ring.name, journal=journal, branch="ahead")
    assert stream.rows == list(range(300))


def test_a_journal_that_has_no_message_yet(
    stream: Stream, ring: shmring.Ring, journal: Path, keep: Callable[..., Any]
) -> None:
    with keep(ring, journal):
        stream.run(ring.name, journal=journal)
        assert stream.rows == []
        write(ring, range(100))
        synced(ring)
    stream.run(ring.name, journal=journal)
    assert stream.rows == list(range(100))


def test_aborted_claims_behind_the_journals_end_are_no_gap(
    stream: Stream,
    ring: shmring.Ring,
    journal: Path,
    keep: Callable[..., Any],
    until: Callable[..., None],
) -> None:
    with keep(ring, journal):
        write(ring, range(100))
    end = ring.claimed
    with ring.producer() as first, ring.producer() as second:
        one, other = first.claim(3000), second.claim(300)
        one.abort()
        other.abort()
    assert ring.claimed > end
    ring.subscribe("ahead", start="latest", exclusive=True)
    with ring.journal(journal) as journalled:
        until(lambda: ring.branches()[0]["released"] == ring.claimed, "the journal")
        assert journalled.durable == end
        stream.run(ring.name, journal=journal, branch="ahead")
        assert stream.rows == list(range(100))
        write(ring, range(100, 200))
        synced(ring)
        stream.run(ring.name, journal=journal, branch="ahead")
    assert stream.rows == list(range(200))


@pytest.mark.parametrize("dies", [False, True])
def test_a_stream_goes_on_over_a_ring_that_was_restored(
    stream: Stream, name: str, journal: Path, keep: Callable[..., Any], dies: bool
) -> None:
    with (
        shmring.create(name, slots=1024, schema=SCHEMA, temporary=True) as ring,
        keep(ring, journal),
    ):
        write(ring, range(100))
        synced(ring)
        stream.run(name, journal=journal, maxMessagesPerTrigger=3)
        write(ring, range(100, 200))
    if dies:  # over its last batch, which it does again as it was
        stream.forget_last_commit()
        last = max(stream.batches)
        done = stream.batches.pop(last)
    with restore(journal, name, slots=1024, temporary=True) as ring:
        ring.subscribe("keep", start="earliest")
        write(ring, range(200, 300))
        with keep(ring, journal):
            assert "was replaced by another one" in failure(lambda: stream.run(name))
            synced(ring)
            stream.run(name, journal=journal, maxMessagesPerTrigger=3)
            assert stream.rows == list(range(300))
            if dies:
                assert stream.batches[last] == done
            write(ring, range(300, 400))
    with restore(journal, name, slots=1024, temporary=True):  # twice
        stream.run(name, journal=journal)
    assert stream.rows == list(range(400))


def test_a_driver_that_dies_over_each_batch_neither_loses_nor_repeats(
    stream: Stream, ring: shmring.Ring, journal: Path, keep: Callable[..., Any]
) -> None:
    with keep(ring, journal):
        write(ring, range(12_000))
        synced(ring)
        stream.dies = True
        for _ in range(3):
            text = failure(lambda: stream.run(ring.name, journal=journal))
            assert "the driver died" in text
            first = stream.rows
            assert first == list(range(len(first)))
        stream.dies = False
        stream.run(ring.name, journal=journal)
    assert stream.rows == list(range(12_000))


def test_a_stream_that_was_ahead_of_the_journal_is_told_so_over_the_restored_ring(
    stream: Stream, name: str, journal: Path, keep: Callable[..., Any]
) -> None:
    """The ring's numbers from there on are given to other messages."""
    with shmring.create(name, slots=1024, schema=SCHEMA, temporary=True) as ring:
        with keep(ring, journal):
            write(ring, range(100))
        write(ring, range(100, 200))
        stream.run(name)  # without the journal
        assert stream.rows == list(range(200))
    with restore(journal, name, slots=1024, temporary=True) as ring:
        ring.subscribe("keep", start="earliest")
        write(ring, range(500, 600))
        with keep(ring, journal):
            text = failure(lambda: stream.run(name, journal=journal))
            assert "was replaced by another one" in text
            synced(ring)
            stream.run(name, journal=journal, failOnDataLoss="false")
    assert stream.rows == [*range(200), *range(500, 600)]


def test_a_journal_that_has_forgotten_is_a_gap(
    stream: Stream,
    ring: shmring.Ring,
    journal: Path,
    keep: Callable[..., Any],
    until: Callable[..., None],
) -> None:
    with keep(ring, journal, retention=Retention(max_bytes=600_000)):
        write(ring, range(100))
        synced(ring)
        stream.run(ring.name, journal=journal)
        ring.drop_branch(next(b["name"] for b in ring.branches() if b["name"] != "journal"))
        end = ring.claimed
        write(ring, range(100, 40_000))
        until(lambda: oldest(journal) > end, "the first to be forgotten")
        text = failure(lambda: stream.run(ring.name, journal=journal))
        assert "are gone" in text
        assert "failOnDataLoss" in text
        assert stream.rows == list(range(100))
    stream.run(ring.name, journal=journal, failOnDataLoss="false")
    found = stream.rows[100:]
    assert found == list(range(40_000 - len(found), 40_000))
    assert len(found) > 1024 // 2 * ROWS  # of the journal, too


def test_what_neither_the_journal_nor_the_ring_has_is_a_gap(
    stream: Stream, ring: shmring.Ring, journal: Path, keep: Callable[..., Any]
) -> None:
    with keep(ring, journal):
        write(ring, range(100))
    end = ring.claimed
    ring.drop_branch("journal")
    go_around(ring)
    ring.subscribe("keep", start="latest")
    write(ring, range(200, 300))
    text = failure(lambda: stream.run(ring.name, journal=journal))
    assert f"the messages {end} to " in text
    assert stream.rows == list(range(100))  # what is there before the gap
    stream.run(ring.name, journal=journal, failOnDataLoss="false")
    assert stream.rows[:100] == list(range(100))
    assert stream.rows[-100:] == list(range(200, 300))


def test_an_end_that_was_torn_off_the_journal_is_a_gap(
    stream: Stream, ring: shmring.Ring, journal: Path, keep: Callable[..., Any]
) -> None:
    with keep(ring, journal, segment_bytes=1 << 20):
        write_apart(ring, range(12_000))
    ring.subscribe("stream", start="latest", exclusive=True)
    (segment,) = journal.glob("*.journal")
    segment.write_bytes(segment.read_bytes()[:-200])
    text = failure(lambda: stream.run(ring.name, journal=journal, branch="stream"))
    assert "are gone" in text
    assert stream.rows == list(range(len(stream.rows)))


def test_the_journal_of_another_ring_is_refused(
    stream: Stream, name: str, journal: Path, keep: Callable[..., Any]
) -> None:
    with (
        shmring.create(f"{name}-2", schema=SCHEMA, temporary=True) as other,
        keep(other, journal),
    ):
        write(other, range(100))
    with shmring.create(name, schema=SCHEMA, temporary=True) as ring:
        ring.subscribe("keep", start="earliest")
        write(ring, range(100))
        text = failure(lambda: stream.run(name, journal=journal))
        assert "is the journal of another ring" in text
        stream.run(name)
    with shmring.create(name, schema=SCHEMA, temporary=True) as ring:
        ring.subscribe("keep", start="earliest")
        write(ring, range(100, 200))
        assert "was replaced" in failure(lambda: stream.run(name, journal=journal))
        stream.run(name, journal=journal, failOnDataLoss="false")
    assert stream.rows == list(range(200))


def test_a_stream_needs_the_ring_too(spark: SparkSession, journal: Path) -> None:
    journal.mkdir()
    frame = spark.readStream.format("shmring").option("journal", str(journal))
    frame = frame.schema("x long, s string")
    assert "has no message yet" in failure(frame.load)


def test_end_markers_are_no_rows_of_a_stream(
    stream: Stream, ring: shmring.Ring, journal: Path, keep: Callable[..., Any]
) -> None:
    with keep(ring, journal):
        for first in range(0, 12_000, 400):
            write(ring, range(first, first + 400))
            with ring.arrow_writer() as out:
                out.end()
        synced(ring)
        stream.run(ring.name, journal=journal)
    assert stream.rows == list(range(12_000))


def test_a_stream_over_segments_that_are_forgotten_once_it_has_read_them(
    stream: Stream,
    ring: shmring.Ring,
    journal: Path,
    keep: Callable[..., Any],
    thread: Callable[..., Any],
    until: Callable[..., None],
) -> None:
    retention = Retention(consumed_by=("stream",))
    begun = threading.Event()

    def produce() -> None:
        begun.wait()
        write(ring, range(20_000))

    with keep(ring, journal, retention=retention):
        writing = thread(produce)
        query = stream.start(ring.name, now=False, journal=journal, branch="stream")
        begun.set()
        until(lambda: not writing.is_alive(), "the end of the writing")
        writing.outcome()
        until(lambda: stream.has(20_000), "the last batch")
        query.stop()
    assert stream.rows == list(range(20_000))
