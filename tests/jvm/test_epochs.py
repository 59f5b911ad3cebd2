"""Epochs of a streaming write whose driver dies: each is readable once, or in doubt."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from companion import place
from fixture_types import RunChild
from java_programs import Java, check
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

import shmring
from shmring.durable import replay_batches, restore
from shmring.ring.names import SINK

SCHEMA = pa.schema([("x", pa.int64()), ("s", pa.string())])
pytestmark = pytest.mark.ring(slots=4096, schema=SCHEMA, branch="keep")


def rows(ring: shmring.Ring) -> list[int]:
    with ring.arrow_reader("keep", until="empty") as batches:
        return [x for batch in batches for x in batch.column("x").to_pylist()]


def record(ring: shmring.Ring, query: StreamingQuery) -> Path:
    return Path(place(ring.path, SINK, str(query.id)))


def begin(ring: shmring.Ring, query: StreamingQuery, epoch: int, sequence: int) -> None:
    """Note an epoch as the driver does before its one store."""
    line = f"{uuid.UUID(ring.info.uuid)} {epoch} {sequence} begun".ljust(127) + "\n"
    record(ring, query).write_text(line)


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Callable[..., StreamingQuery]:
    """Streams the files of a folder into a ring, one an epoch."""
    source = tmp_path / "source"
    source.mkdir()

    def run(ring: str, *epochs: range, **options: str) -> StreamingQuery:
        for epoch in epochs:
            (source / f"{epoch}.csv").write_text("".join(f"{x},{x}\n" for x in epoch))
            os.utime(source / f"{epoch}.csv", (epoch.start, epoch.start))
        query = (
            spark.readStream.option("maxFilesPerTrigger", 1)
            .schema("x long, s string")
            .csv(str(source))
            .writeStream.format("shmring")
            .options(ring=ring, checkpointLocation=str(tmp_path / "checkpoint"), **options)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return query

    return run


@pytest.fixture
def again(tmp_path: Path) -> Callable[[int], None]:
    """Forget an epoch's commit, as if the driver had died after the ring got the epoch."""

    def forget(epoch: int) -> None:
        for file in (tmp_path / "checkpoint" / "commits").glob(f"*{epoch}*"):
            file.unlink()

    return forget


def test_an_epoch_begun_by_a_driver_that_died_before_its_store_is_written(
    stream: Callable[..., StreamingQuery],
    ring: shmring.Ring,
    again: Callable[[int], None],
    child: RunChild,
) -> None:
    query = stream(ring.name, range(100))
    again(0)
    begun = child(
        """
        import sys, shmring
        claim = shmring.attach(sys.argv[1]).producer().claim(300)
        print(claim.message_id)
        input()
        """,
        ring.name,
    )
    begin(ring, query, 0, int(begun.line()))
    begun.kill()
    stream(ring.name)
    assert rows(ring) == list(range(100)) * 2  # the first ones were those of "another" driver


def test_an_epoch_whose_driver_died_after_its_store_is_not_written_again(
    stream: Callable[..., StreamingQuery], ring: shmring.Ring, again: Callable[[int], None]
) -> None:
    query = stream(ring.name, range(100))
    again(0)
    begin(ring, query, 0, 0)
    stream(ring.name, range(100, 200))
    assert rows(ring) == list(range(200))


@pytest.mark.parametrize(("choice", "written"), [("skip", 0), ("write", 100)])
def test_an_epoch_in_doubt_is_a_question(
    stream: Callable[..., StreamingQuery],
    ring: shmring.Ring,
    again: Callable[[int], None],
    choice: str,
    written: int,
) -> None:
    query = stream(ring.name, range(100))
    again(0)
    begin(ring, query, 0, 0)
    ring.drop_branch("keep")
    with ring.producer() as out:
        for _ in range(ring.slots):  # the store's place has been used again
            out.push_end()
    ring.subscribe("keep", start="latest")
    with pytest.raises(StreamingQueryException, match="was killed at that moment"):
        stream(ring.name)
    stream(ring.name, inDoubt=choice)
    assert len(rows(ring)) == written


@pytest.mark.parametrize(("choice", "written"), [("skip", 200), ("write", 300)])
def test_an_epoch_that_the_journal_of_a_lost_ring_may_have_is_a_question(
    stream: Callable[..., StreamingQuery],
    name: str,
    again: Callable[[int], None],
    tmp_path: Path,
    choice: str,
    written: int,
) -> None:
    journal = tmp_path / "journal"
    with shmring.create(name, slots=4096, schema=SCHEMA, temporary=True) as ring:
        with ring.journal(journal), ring.producer() as out:
            query = stream(name, range(100))
            out.wait_durable(ring.claimed - 1)
        record(ring, query).unlink()  # the record goes with the ring
    again(0)
    with restore(journal, name, slots=4096, temporary=True) as ring:
        with pytest.raises(StreamingQueryException, match="may have epoch 0 already"):
            stream(name)
        with ring.journal(journal), ring.producer() as out:
            stream(name, range(100, 200), inDoubt=choice)
            out.wait_durable(ring.claimed - 1)
        record(ring, query).unlink()
    found = [x for batch in replay_batches(journal) for x in batch.column("x").to_pylist()]
    assert len(found) == written
    assert set(found) == set(range(200))


def test_a_ring_that_was_made_anew_has_seen_no_epoch(
    stream: Callable[..., StreamingQuery], name: str, again: Callable[[int], None]
) -> None:
    for run in range(2):
        with shmring.create(name, slots=4096, schema=SCHEMA, temporary=True) as ring:
            ring.subscribe("keep", start="earliest")
            query = stream(name, *([] if run else [range(100)]))
            assert rows(ring) == list(range(100))
            text = record(ring, query).read_text()
            assert text.startswith(f"{uuid.UUID(ring.info.uuid)} 0 0 done")
        again(0)


def test_record_is_written_whole_or_not_at_all(
    java: Java, with_small_shm: Callable[..., list[str]]
) -> None:
    command = with_small_shm("1m", *java("io.shmring.spark.write.SinkRecordCheck"))
    full, *lines = check(command).splitlines()
    said, (foreign, *planted, sparse) = lines[:6], lines[6:]
    assert "cannot note epoch 0" in full
    assert 'ring "check"' in full
    assert "No space left on device" in full
    assert said == [
        "false Optional.empty",
        "Optional.empty",
        "rw-------",
        "Optional[0 true]",
        "Optional.empty",
        "Optional[1 true]",
    ]
    assert ".shmring-sink-shmring.check-" in foreign
    assert "is no record of a query" in foreign
    assert "is no record of a query" in sparse
    for refused in planted:
        assert 'ring "check": cannot ' in refused
    causes = [
        "it has a second name (hard link)",
        *["it is not a regular file"] * 3,
        "other users may write it (mode 0666)",
    ]
    for cause, read, write in zip(causes, planted[::2], planted[1::2], strict=True):
        assert f": {cause}" in read
        assert f": {cause}" in write


@pytest.mark.skipif(os.getuid() != 0, reason="wants a file of another user")
def test_record_that_another_user_has_planted_stops_the_query(
    stream: Callable[..., StreamingQuery], ring: shmring.Ring
) -> None:
    query = stream(ring.name, range(100))
    planted = record(ring, query)
    planted.write_text(planted.read_text().replace(" 0 0 done", " 9 0 done"))
    os.chown(planted, 65534, -1)
    with pytest.raises(StreamingQueryException, match="it belongs to user 65534, not to you"):
        stream(ring.name, range(100, 200))
    planted.unlink()
    stream(ring.name)
    assert rows(ring) == list(range(200))
