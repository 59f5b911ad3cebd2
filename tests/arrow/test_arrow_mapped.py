"""Batches that the binding maps over the slots: bounds, and how long they hold them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from batches import BATCH, is_released
from damage import overwrite

import shmring
from shmring._shmring import ArrowLayout, Lease, arrow_layout, map_batch
from shmring.common.arguments import KIND_ARROW_BATCH

FOREIGN = 16  # messages of users, whose bytes no producer checks


@pytest.fixture
def lease_of(
    arrow_ring: shmring.Ring,
) -> Iterator[Callable[..., Lease]]:
    """Publishes a message and takes it."""
    with arrow_ring.producer() as out, arrow_ring.consumer("r") as inp:

        def publish(data: bytes | pa.Buffer, kind: int = FOREIGN) -> Lease:
            with out.claim(len(data), align=8) as claim:
                claim.buffer[:] = memoryview(data).cast("B")
                claim.commit(len(data), kind=kind)
            return inp.lease(timeout=0)

        yield publish


def layout_of(schema: pa.Schema) -> ArrowLayout:
    layout = arrow_layout(schema)
    assert layout
    return layout


def mapped(lease: Lease, schema: pa.Schema, *, every_offset: bool = False) -> pa.RecordBatch | None:
    importer = pa.RecordBatch._import_from_c  # pyright: ignore[reportAttributeAccessIssue]
    return map_batch(lease, layout_of(schema), 0, b"", False, every_offset, importer, schema)


def test_a_released_lease_is_no_batch(lease_of):
    lease = lease_of(BATCH.serialize())
    lease.release()
    with pytest.raises(shmring.Closed):
        mapped(lease, BATCH.schema)


def test_a_body_that_is_not_aligned_is_copied(arrow_ring):
    with arrow_ring.producer() as out, arrow_ring.consumer("r") as inp:
        out.push(b"moves what follows by 300 bytes")
        inp.pop(timeout=0)
        out.push(BATCH.serialize(), kind=KIND_ARROW_BATCH)
        with inp.lease(timeout=0) as lease:
            batch = mapped(lease, BATCH.schema)
        del lease
        assert is_released(arrow_ring)
        assert batch == BATCH
        assert batch.column(0).buffers()[1].address % 8 == 0


# --- bounds -------------------------------------------------------------------------------------


def damaged(message: bytes, at: int, value: bytes) -> bytes:
    return message[:at] + value + message[at + len(value) :]


@pytest.mark.slow
@pytest.mark.parametrize("every_offset", [False, True])
def test_whatever_the_metadata_says_the_arrays_lie_in_the_message(lease_of, every_offset):
    message = BATCH.serialize().to_pybytes()
    metadata = 8 + int.from_bytes(message[4:8], "little")
    outcomes = {"mapped": 0, "refused": 0}

    def check(lease: Lease) -> None:
        first = np.frombuffer(lease, np.uint8).ctypes.data
        batch = mapped(lease, BATCH.schema, every_offset=every_offset)
        if batch is None:
            outcomes["refused"] += 1
            return
        outcomes["mapped"] += 1
        for array in batch.columns:
            for buffer in filter(None, array.buffers()):
                inside = first <= buffer.address <= first + len(lease) - buffer.size
                assert inside or (buffer.size and (every_offset or len(array) == 0))

    for at in range(metadata):
        for value in (0, 1, 4, 0x7F, 0x80, 0xFF):
            with lease_of(damaged(message, at, bytes([value]))) as lease:
                check(lease)
    for at in range(0, metadata - 8, 4):
        for number in (2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 8, 2**63, 2**64 - 8):
            width = 4 if number < 2**32 else 8
            with lease_of(damaged(message, at, number.to_bytes(width, "little"))) as lease:
                check(lease)
    assert all(outcomes.values()), outcomes


def test_a_message_that_is_cut_off_anywhere_is_refused(lease_of):
    message = BATCH.serialize().to_pybytes()
    for length in range(0, len(message) - 8, 7):
        with lease_of(message[:length]) as lease:
            assert mapped(lease, BATCH.schema) is None


def test_offsets_that_lead_outside_are_refused(lease_of):
    batch = pa.record_batch({"s": ["abc", "def", "ghi"]})
    message = batch.serialize().to_pybytes()
    offsets = np.array([0, 3, 6, 9], np.int32).tobytes()
    at = message.index(offsets)
    for entry, value, found in ((0, -1, False), (3, 10**6, False), (3, -1, False), (2, 2, True)):
        wrong = damaged(message, at + 4 * entry, value.to_bytes(4, "little", signed=True))
        with lease_of(wrong) as lease:
            assert mapped(lease, batch.schema, every_offset=True) is None
            without = mapped(lease, batch.schema)  # the first and the last are always checked
            assert (without is not None) is found
            del without


def test_what_is_validated_is_what_is_used(arrow_ring, lease_of):
    """Offsets that a peer changes after they have been checked."""
    batch = pa.record_batch({"s": ["abc", "def", "ghi"]})
    with lease_of(batch.serialize()) as lease:
        safe = mapped(lease, batch.schema, every_offset=True)
        assert safe
        offsets = np.array([0, 3, 6, 9], np.int32).tobytes()
        at = Path(arrow_ring.path).read_bytes().index(offsets)
        overwrite(arrow_ring.path, at + 8, (2**31 - 1).to_bytes(4, "little"))
        assert safe.column(0).to_pylist() == ["abc", "def", "ghi"]
        del safe


def test_what_pyarrow_decodes_for_a_reader_that_validates_is_a_copy(both_ends):
    batch = pa.record_batch({"v": pa.array(["a text that a view refers to"], pa.string_view())})
    with both_ends(batch.schema, validate=True) as (ring, out, reader):
        out.write(batch)
        got = reader.read(timeout=0)
        assert is_released(ring)
        assert got == batch


def test_a_ring_without_a_schema_learns_it_and_unlearns_it(ring):
    other = pa.record_batch({"y": ["text"]})
    with (
        ring.arrow_reader("r") as reader,
        ring.arrow_writer(BATCH.schema) as first,
        ring.arrow_writer(other.schema) as second,
    ):
        for _ in range(3):
            for writer, batch in ((first, BATCH), (first, BATCH), (second, other)):
                writer.write(batch)
                assert reader.read(timeout=0) == batch


# --- how long they hold the slots ---------------------------------------------------------------


def test_a_lease_is_handed_back_when_its_last_array_is_gone(arrow_ring):
    with arrow_ring.arrow_writer() as out, arrow_ring.consumer("r") as inp:
        out.write(BATCH)
        lease = inp.lease(timeout=0)
        frame = mapped(lease, BATCH.schema)
        lease.nack()
        del lease
        with pytest.raises(shmring.Empty):
            inp.lease(timeout=0)
        del frame
        with inp.lease(timeout=0) as again:
            assert again.redelivered
            assert mapped(again, BATCH.schema) == BATCH


def test_arrays_outlive_consumer_and_ring(name):
    with (
        shmring.create(name, slots=1024, schema=BATCH.schema, temporary=True) as ring,
        ring.arrow_writer() as out,
        ring.consumer("r") as inp,
    ):
        out.write(BATCH)
        with inp.lease(timeout=0) as lease:
            batch = mapped(lease, BATCH.schema)
    del lease, inp, out, ring
    gc.collect()
    assert batch == BATCH


def test_other_threads_drop_arrays_while_this_one_reads_on(both_ends, thread):
    count = 300
    with both_ends(BATCH.schema) as (ring, out, reader):
        piles: list[list[pa.RecordBatch]] = [[] for _ in range(3)]
        for i in range(count):
            out.write(BATCH)
            piles[i % 3].append(reader.read(timeout=0))

        def drop(pile: list[pa.RecordBatch]) -> None:
            while pile:
                column = pile.pop().column("l")
                assert column.to_pylist() == [[1, 2], [], None]

        dropping = [thread(drop, pile) for pile in piles]
        for _ in range(count):
            out.write(BATCH, timeout=60)
            assert reader.read(timeout=0) == BATCH
        for each in dropping:
            each.outcome()
        assert is_released(ring)


def test_a_thread_that_python_does_not_know_drops_arrays(arrow_ring, lease_of):
    """polars' threads, of which each drops a piece."""
    for _ in range(20):
        with lease_of(BATCH.serialize(), KIND_ARROW_BATCH) as lease:
            frame = pl.DataFrame(mapped(lease, BATCH.schema)).lazy()
        del lease
        assert frame.select(pl.col("x").sum(), pl.col("s").len()).collect().rows() == [(4, 3)]
        del frame
        gc.collect()
        assert is_released(arrow_ring)


def test_a_child_by_fork_drops_what_its_parent_holds(arrow_ring, lease_of, in_child):
    with lease_of(BATCH.serialize(), KIND_ARROW_BATCH) as lease:
        batch = mapped(lease, BATCH.schema)
    del lease

    def child() -> None:
        nonlocal batch
        assert batch == BATCH
        del batch
        gc.collect()

    in_child(child)
    assert not is_released(arrow_ring)
    assert batch == BATCH
    del batch
    assert is_released(arrow_ring)
