"""A reader of record batches: the slots it holds, and for how long; its beginning and end."""

from __future__ import annotations

import base64
import gc
import random

import numpy as np
import pyarrow as pa
import pytest
from batches import is_released

import shmring
from shmring.common.arguments import KIND_ARROW_BATCH, KIND_ARROW_STREAM

SCHEMA = pa.schema([("x", pa.int64())])


def numbers(first: int, rows: int = 100) -> pa.RecordBatch:
    return pa.record_batch([pa.array(np.arange(first, first + rows))], schema=SCHEMA)


@pytest.fixture
def arrow_ring(name):
    with shmring.create(name, slots=1024, schema=SCHEMA, temporary=True) as ring:
        yield ring


@pytest.fixture
def reader(arrow_ring):
    with arrow_ring.arrow_reader("r") as reader:
        yield reader


@pytest.fixture
def writer(arrow_ring):
    with arrow_ring.arrow_writer() as writer:
        yield writer


# --- leases -------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["first to last", "last to first", "random"])
def test_slots_are_free_once_the_batches_over_them_are_collected(arrow_ring, reader, writer, order):
    for i in range(20):
        writer.write(numbers(i))
    batches = [reader.read(timeout=0) for _ in range(20)]
    indices = list(range(20))
    if order == "last to first":
        indices.reverse()
    elif order == "random":
        random.Random(1).shuffle(indices)
    for n, i in enumerate(indices):
        assert not is_released(arrow_ring), n
        assert batches[i] == numbers(i)
        batches[i] = None
    assert is_released(arrow_ring)


def test_slice_or_column_or_numpy_view_holds_the_slots(arrow_ring, reader, writer):
    views = (
        lambda batch: batch.slice(3, 1),
        lambda batch: batch.column(0),
        lambda batch: batch.column(0).buffers()[1],
        lambda batch: batch.column(0).to_numpy(zero_copy_only=True),
        lambda batch: pa.Table.from_batches([batch]),
    )
    for view in views:
        writer.write(numbers(1))
        kept = view(reader.read(timeout=0))
        assert not is_released(arrow_ring)
        del kept
        assert is_released(arrow_ring)


def test_copy_releases_the_slots_at_once(arrow_ring, writer):
    with arrow_ring.arrow_reader("r", copy=True) as reader:
        kept = []
        for i in range(200):
            writer.write(numbers(i), timeout=0)
            kept.append(reader.read(timeout=0))
            assert is_released(arrow_ring)
    assert kept == [numbers(i) for i in range(200)]


def test_reader_that_maps_batches_allocates_nothing_that_grows_with_them(name):
    allocated = {}
    gc.collect()  # a collection meanwhile would free what earlier tests have left
    for rows in (100, 100_000):
        batch = numbers(0, rows)
        with (
            shmring.create(name, slots=8192, schema=SCHEMA, temporary=True) as ring,
            ring.arrow_reader("r") as reader,
            ring.arrow_writer() as writer,
        ):
            writer.write(batch)
            before = pa.total_allocated_bytes()
            got = reader.read(timeout=0)
            allocated[rows] = pa.total_allocated_bytes() - before
            assert got.num_rows == rows
            del got
    assert allocated[100_000] == allocated[100] < 1024


def test_reader_that_keeps_every_second_batch_is_told_when_its_seat_is_full(
    arrow_ring, reader, writer
):
    kept = []

    def keep_every_second():
        while True:
            writer.write(numbers(0, 10), timeout=0)
            writer.write(numbers(0, 10), timeout=0)
            kept.append(reader.read(timeout=0))
            reader.read(timeout=0)

    with pytest.raises(shmring.TooManyLeases):
        keep_every_second()
    kept.clear()
    assert reader.read(timeout=0) == numbers(0, 10)


# --- where it begins and ends -------------------------------------------------------------------


@pytest.mark.parametrize("stored", [True, False], ids=["schema stored", "no schema"])
@pytest.mark.parametrize("kind", [pa.int64(), pa.dictionary(pa.int8(), pa.string())])
def test_late_reader_starts_anywhere(name, kind, stored):
    values = pa.array([1, 2]) if kind == pa.int64() else pa.array(["a", "b"]).cast(kind)
    batch = pa.RecordBatch.from_arrays([values], ["x"])
    schema = batch.schema if stored else None
    with shmring.create(name, slots=1024, schema=schema, temporary=True) as ring:
        ring.subscribe("keeps", start="earliest")
        with ring.arrow_writer(batch.schema) as writer:
            ids = [writer.write(batch.slice(i % 2)) for i in range(4)]
            with ring.arrow_reader("late", start=ids[2], until="empty") as late:
                assert late.schema == batch.schema
                assert list(late) == [batch, batch.slice(1)]
            with ring.arrow_reader("latest", start="latest", timeout=0) as latest:
                with pytest.raises(shmring.Empty):
                    latest.read(timeout=0)
                writer.write(batch)
                assert latest.read(timeout=0) == batch


def test_iteration_stops_at_the_end_marker_and_may_go_on_behind_it(reader, writer):
    for first in (1, 2):
        writer.write(numbers(first))
        writer.end()
    assert list(reader) == [numbers(1)]
    assert list(reader) == [numbers(2)]


def test_read_raises_end_of_stream_at_the_end_marker(reader, writer):
    writer.end()
    with pytest.raises(shmring.EndOfStream):
        reader.read(timeout=0)


def test_iteration_until_empty_stops_where_there_is_nothing_more(arrow_ring, writer):
    with arrow_ring.arrow_reader("r", until="empty") as reader:
        writer.write(numbers(1))
        assert list(reader) == [numbers(1)]
        assert list(reader) == []


@pytest.mark.parametrize("timeout", [0.01, 0.6])
def test_iteration_with_a_timeout_raises_empty(arrow_ring, timeout):
    with (
        arrow_ring.arrow_reader("r", timeout=timeout) as reader,
        pytest.raises(shmring.Empty, match=f"within {timeout} s"),
    ):
        list(reader)


def test_schema_of_a_ring_without_one_is_that_of_the_first_batch(ring):
    with ring.arrow_reader("r") as reader, ring.arrow_writer(SCHEMA) as writer:
        writer.write(numbers(1))
        assert reader.schema == SCHEMA
        assert reader.read(timeout=0) == numbers(1)


def test_schema_of_a_ring_without_one_is_known_once_a_batch_was_read(ring):
    with ring.arrow_reader("r", timeout=0) as reader, ring.arrow_writer(SCHEMA) as writer:
        writer.write(numbers(1))
        reader.read(timeout=0)
        assert reader.schema == SCHEMA


# --- foreign and damaged messages ---------------------------------------------------------------

FOREIGN = {
    "bytes": (b"hello", 0),
    "an empty message": (b"", KIND_ARROW_BATCH),
    "rubbish as a batch": (b"\xff" * 500, KIND_ARROW_BATCH),
    "rubbish as a stream": (b"\xff" * 500, KIND_ARROW_STREAM),
    "a schema without a batch": (SCHEMA.serialize().to_pybytes(), KIND_ARROW_STREAM),
    "half a batch": (numbers(0).serialize().to_pybytes()[:300], KIND_ARROW_BATCH),
    "a schema as a batch": (SCHEMA.serialize().to_pybytes(), KIND_ARROW_BATCH),
}


@pytest.mark.parametrize(("data", "kind"), FOREIGN.values(), ids=FOREIGN.keys())
def test_foreign_message_is_damaged_and_passed_over(arrow_ring, reader, writer, forge, data, kind):
    forge(arrow_ring, data, kind)
    writer.write(numbers(1))
    with pytest.raises(shmring.Damaged, match=arrow_ring.name) as caught:
        reader.read(timeout=0)
    assert reader.read(timeout=0) == numbers(1)
    assert is_released(arrow_ring)
    del caught


def test_batch_without_schema_in_a_ring_without_one_is_refused(ring):
    with ring.producer() as out, pytest.raises(ValueError, match="made without one"):
        out.push(numbers(0).serialize(), kind=KIND_ARROW_BATCH)
    assert ring.claimed == 0


def test_batch_without_schema_in_a_ring_without_one_is_damaged(ring, forge):
    with ring.arrow_reader("r") as reader:
        forge(ring, numbers(0).serialize(), KIND_ARROW_BATCH)
        with pytest.raises(shmring.Damaged, match="is not an Arrow batch"):
            reader.read(timeout=0)


def test_stream_of_another_schema_than_the_ring_is_damaged(arrow_ring, reader):
    other = pa.record_batch({"y": ["a"]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, other.schema) as stream:
        stream.write_batch(other)
    with arrow_ring.producer() as out:
        out.push(sink.getvalue(), kind=KIND_ARROW_STREAM)
    with pytest.raises(shmring.Damaged, match="but the ring is for"):
        reader.read(timeout=0)


# A schema message as pyarrow writes none: one nullable column "x" of int64, big-endian.
BIG_ENDIAN = base64.b64decode(
    "/////9AAAAAUAAAAAAAAAAwAJAAEAAwAFAAcAAwAAAAEAAAAAAAAAAEAAAAAAAAAHAAAAAAAAAAAAAAAAAAAAAAA"
    "AAAIABQABAAMAAgAAAABAAAAAAAAAAgAAAAAAAAAAQAAABgAAAAAAAAAEAAsAAQADAAUABwAAAAkABAAAAAoAAAAA"
    "AAAAAEAAAAAAAAAAgAAAAAAAAAkAAAAAAAAADAAAAAAAAAAAQAAAHgAAAAAAAAACAAUAAQADAAIAAAAQAAAAAAAA"
    "AABAAAAAAAAAAAAAAAAAAAA"
)


def test_reader_swaps_the_bytes_of_every_big_endian_batch(ring):
    swapped = pa.record_batch({"x": np.array([1, 2, 3], ">i8").view("<i8")})
    with ring.arrow_reader("r") as reader, ring.producer() as out:
        for _ in range(3):
            out.push(BIG_ENDIAN + swapped.serialize().to_pybytes(), kind=KIND_ARROW_STREAM)
            assert reader.read(timeout=0).to_pydict() == {"x": [1, 2, 3]}


def offsets(*values: int) -> bytes:
    return np.array(values, np.int32).tobytes()


@pytest.mark.parametrize(
    ("sound", "damaged"),
    [
        (offsets(0, 3, 6), offsets(0, 3, 2**31 - 1)),
        (b"def", b"d\xff\xff"),
    ],
    ids=["offsets that lead outside of the batch", "what is no text"],
)
def test_validation_finds(name, sound, damaged):
    batch = pa.record_batch({"s": ["abc", "def"]})
    message = batch.serialize().to_pybytes()
    assert message.count(sound) == 1
    message = message.replace(sound, damaged)
    with (
        shmring.create(name, slots=1024, schema=batch.schema, temporary=True) as ring,
        ring.arrow_reader("r", validate=True) as reader,
        ring.producer() as out,
    ):
        out.push(message, kind=KIND_ARROW_BATCH)
        with pytest.raises(shmring.Damaged, match="is damaged"):
            reader.read(timeout=0)
        assert is_released(ring)
