"""Producers: push, push_many, claim, and what happens when the ring is full."""

from __future__ import annotations

import array
import gc
import time
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pytest

import shmring


def popped(inp, count):
    return [inp.pop(timeout=0) for _ in range(count)]


def fill(out):
    with suppress(shmring.Full):
        while True:
            out.push(b"x", timeout=0)


# --- push -------------------------------------------------------------------------------------


@pytest.mark.ring(slots=16_384, checksum=True)
@pytest.mark.parametrize("size", [0, 1, 299, 300, 301, 600, 5000, 300_000, 3_000_000])
def test_message_of_any_size_comes_back_as_it_went(ring, out, inp, size):
    data = np.random.default_rng(size).bytes(size)
    for _ in range(20):  # several laps of the ring with the largest
        out.push(data, timeout=0)
        assert inp.pop(timeout=0) == data


@pytest.mark.parametrize(
    "data",
    [
        bytearray(b"abcd"),
        memoryview(b"abcd"),
        memoryview(b"xxabcdxx")[2:6],
        array.array("b", b"abcd"),
        np.frombuffer(b"abcd", "uint8"),
        np.frombuffer(b"abcd", "uint16"),
        pa.py_buffer(b"abcd"),
    ],
    ids=lambda data: type(data).__name__,
)
def test_push_takes_whatever_has_the_buffer_protocol(out, inp, data):
    out.push(data)
    assert inp.pop() == b"abcd"


def test_kind_travels_with_the_message(out, inp):
    out.push(b"x", kind=200)
    with inp.lease() as m:
        assert m.kind == 200


@pytest.mark.ring(clock="precise")
def test_time_is_wall_clock_time_of_publication(out, inp):
    before = time.time_ns()
    out.push(b"x")
    after = time.time_ns()
    with inp.lease() as message:
        assert before <= message.time <= after


# --- a full ring ------------------------------------------------------------------------------


def test_full_names_the_ring_and_the_time(ring, out, inp):
    fill(out)
    with pytest.raises(shmring.Full, match=rf'ring "{ring.name}" was full for 0\.01 s'):
        out.push(b"x", timeout=0.01)


def test_producer_that_raises_does_not_wait_unless_told(ring):
    with ring.producer(when_full="raise") as out, ring.consumer("a"):
        fill(out)
        with pytest.raises(shmring.Full):
            out.push(b"x")
        with pytest.raises(shmring.Full):
            out.push_many([b"x"])
        with pytest.raises(shmring.Full):
            out.claim(1)
        with pytest.raises(shmring.Full, match=r"0\.01 s"):
            out.push(b"x", timeout=0.01)


def test_producer_that_drops_counts_what_it_dropped(ring, participant):
    with ring.producer("lossy", when_full="drop") as out, ring.consumer("a"):
        while out.push(b"x") != -1:
            pass
        assert out.push_many([b"x"] * 5) == -1
        with pytest.raises(shmring.Full):
            out.claim(1)
        assert participant(ring, "lossy")["dropped"] == 7
        assert ring.claimed == ring.slots


# --- push_many --------------------------------------------------------------------------------


def test_push_many_rows_of_an_array_are_messages_in_order(out, inp):
    rows = np.random.default_rng(1).integers(0, 256, (500, 300), np.uint8)
    for lap in range(5):
        assert out.push_many(rows, timeout=0) == lap * 500
        assert popped(inp, 500) == [row.tobytes() for row in rows]


@pytest.mark.parametrize(
    "rows",
    [
        np.arange(40, dtype=np.uint8).reshape(8, 5),
        np.arange(80, dtype=np.uint8).reshape(8, 10)[:, 3:8],
        np.arange(80, dtype=np.uint8).reshape(16, 5)[::2],
        np.broadcast_to(np.arange(5, dtype=np.uint8), (8, 5)),
        np.asfortranarray(np.arange(8, dtype=np.uint8).reshape(8, 1)),
        np.zeros((4, 0), np.uint8),
    ],
    ids=["contiguous", "columns", "every second", "broadcast", "one column", "no bytes"],
)
def test_push_many_takes_rows_that_are_each_contiguous(out, inp, rows):
    out.push_many(rows)
    assert popped(inp, len(rows)) == [row.tobytes() for row in rows]


def test_push_many_takes_lists_of_different_lengths_and_types(out, inp):
    rows = [b"", b"x" * 300, bytearray(b"abc"), memoryview(b"defg"), np.zeros(3, np.uint8)]
    assert out.push_many(rows) == 0
    assert popped(inp, 5) == [bytes(row) for row in rows]
    assert out.push_many(tuple(rows)) == 5


def test_push_many_of_nothing_publishes_nothing(ring, out):
    out.push(b"x")
    assert out.push_many([]) == 1
    assert out.push_many(np.zeros((0, 300), np.uint8)) == 1
    assert ring.claimed == 1


def test_push_many_that_does_not_fit_now_publishes_nothing(ring, out, inp):
    out.push_many([b"x"] * 1000)
    with pytest.raises(shmring.Full):
        out.push_many([b"y"] * 25, timeout=0)
    assert ring.claimed == 1000
    assert out.push_many([b"y"] * 24, timeout=0) == 1000
    popped(inp, 1)


@pytest.mark.ring(slots=65_536)
def test_push_many_of_megabytes_by_several_threads_of_one_producer(out, inp, thread):
    rows = np.zeros((8000, 300), np.uint8)  # over the limit beyond which the GIL is given up
    threads = [thread(out.push_many, rows) for _ in range(4)]
    assert sorted(t.outcome() for t in threads) == [0, 8000, 16_000, 24_000]
    with inp.lease_many(100_000) as batch:
        assert len(batch) == 32_000


# --- claim ------------------------------------------------------------------------------------


def test_claim_is_committed_on_leaving(out, inp):
    with out.claim(1000) as slot:
        assert slot.message_id == 0
        assert len(slot.buffer) == 1000
        slot.buffer[:] = b"z" * 1000
        with pytest.raises(shmring.Empty):
            inp.pop(timeout=0)
    assert inp.pop(timeout=0) == b"z" * 1000


def test_claim_is_aborted_by_an_exception_and_readers_step_over_it(out, inp):
    out.push(b"before")
    with pytest.raises(ZeroDivisionError), out.claim(5000):
        _ = 1 / 0
    out.push(b"after")
    assert popped(inp, 2) == [b"before", b"after"]
    with pytest.raises(shmring.Empty):
        inp.pop(timeout=0)


def test_claim_that_is_dropped_is_aborted(out, inp):
    with pytest.warns(ResourceWarning, match="the claim of message 0 was dropped"):
        out.claim(10)
    out.push(b"after")
    assert inp.pop(timeout=0) == b"after"


def test_claim_can_be_cut_and_marked(out, inp):
    slot = out.claim(1000)
    slot.buffer[:3] = b"abc"
    slot.commit(3, kind=19)
    with inp.lease(timeout=0) as m:
        assert bytes(m.data) == b"abc"
        assert m.kind == 19


def test_commit_and_abort_end_a_claim_once(out):
    for end in (lambda slot: slot.commit(), lambda slot: slot.abort()):
        with out.claim(10) as slot:
            end(slot)
            for again in (slot.commit, slot.abort, lambda slot=slot: slot.buffer):
                with pytest.raises(shmring.Closed, match="committed or aborted"):
                    again()


def test_claim_cannot_grow(ring):
    with (
        ring.producer() as out,
        out.claim(10) as slot,
        pytest.raises(ValueError, match="nbytes"),
    ):
        slot.commit(11)


@pytest.mark.parametrize("at", [0, 4, 120])
@pytest.mark.parametrize("before", [0, 1, 2, 5, 13])
def test_aligned_claim_puts_a_byte_on_a_64_byte_boundary_for_both_sides(out, inp, before, at):
    for _ in range(before):
        out.push(b"x")
        inp.pop()
    with out.claim(10_000, align=at) as slot:
        view = np.frombuffer(slot.buffer, np.uint8)
        assert (view.ctypes.data + at) % 64 == 0
        view[:] = np.arange(10_000) % 251
    with inp.lease() as m:
        view = np.frombuffer(m.data, np.uint8)
        assert (view.ctypes.data + at) % 64 == 0
        assert (view == np.arange(10_000) % 251).all()


def test_one_claim_at_a_time(ring, out, inp):
    with out.claim(10):
        for other in (
            lambda: out.push(b"x"),
            lambda: out.push(b"x" * (2 << 20)),
            lambda: out.push_many([b"x"]),
            lambda: out.claim(1),
            out.push_end,
        ):
            with pytest.raises((shmring.ClaimOpen, shmring.MessageTooLarge), match=ring.name):
                other()
    assert len(inp.pop(timeout=0)) == 10


def test_views_of_a_claim_stay_mapped_after_everything_was_closed(name):
    ring = shmring.create(name, slots=1024, temporary=True)
    out = ring.producer()
    with out.claim(100) as slot:
        view = np.frombuffer(slot.buffer, np.uint8)
        view[:] = 7
    out.close()
    ring.close()
    del ring, out, slot
    gc.collect()
    assert (view == 7).all()


def test_closed_producer_aborts_its_claim(ring, inp):
    out = ring.producer()
    slot = out.claim(10)
    out.close()
    with pytest.raises(shmring.Closed):
        slot.commit()
    with ring.producer() as other:
        other.push(b"next")
    assert inp.pop(timeout=0) == b"next"
    with pytest.warns(ResourceWarning, match=f'"{ring.name}": the claim of message 0 was dropped'):
        del slot


# --- the end ----------------------------------------------------------------------------------


def test_end_marker_ends_the_iteration_and_raises_in_pop(ring):
    with ring.producer() as out, ring.consumer("a") as a, ring.consumer("b") as b:
        out.push_many([b"1", b"2"])
        out.push_end()
        out.push(b"3")
        assert list(a) == [b"1", b"2"]
        assert a.pop() == b"3"
        assert popped(b, 2) == [b"1", b"2"]
        with pytest.raises(shmring.EndOfStream, match='"b"'):
            b.pop()
        assert b.pop() == b"3"


def test_end_marker_is_seen_by_lease_and_lease_many(ring):
    with ring.producer() as out, ring.consumer("a") as a, ring.consumer("b") as b:
        out.push_many([b"1", b"2"])
        out.push_end()
        out.push(b"3")
        with a.lease_many(10) as batch:
            assert len(batch) == 2
        with pytest.raises(shmring.EndOfStream):
            a.lease_many(10)
        with a.lease_many(10) as batch:
            assert len(batch) == 1
        popped(b, 2)
        with pytest.raises(shmring.EndOfStream):
            b.lease()
        with b.lease() as message:
            assert bytes(message.data) == b"3"
