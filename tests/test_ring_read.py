"""Consumers: pop, lease, lease_many, and how long what they lend stays."""

from __future__ import annotations

import asyncio
import itertools

import numpy as np
import pytest

import shmring


def free_slots(ring, out):
    """How many messages can be pushed before the ring is full."""
    count = 0
    try:
        while True:
            out.push(b"", timeout=0)
            count += 1
    except shmring.Full:
        return count


# --- pop --------------------------------------------------------------------------------------


def test_empty_names_branch_ring_and_time(ring):
    text = rf'"billing" of ring "{ring.name}" within 0\.02 s'
    with ring.consumer("billing") as inp, pytest.raises(shmring.Empty, match=text):
        inp.pop(timeout=0.02)


def test_branch_with_drop_oldest_loses_the_oldest_and_says_which(ring):
    with ring.producer() as out, ring.consumer("viewer", drop_oldest=True) as inp:
        for i in range(3 * ring.slots):
            out.push(b"%d" % i, timeout=0)
        with pytest.raises(shmring.Overrun, match=ring.name) as overrun:
            inp.pop(timeout=0)
        assert overrun.value.first == 0
        assert ring.slots <= overrun.value.last < 3 * ring.slots
        assert inp.pop(timeout=0) == b"%d" % (overrun.value.last + 1)


# --- lease ------------------------------------------------------------------------------------


def test_lease_reads_in_place(out, inp):
    out.push(b"abc" * 200)
    with inp.lease(timeout=0) as m:
        assert m.data == b"abc" * 200
        assert len(m) == 600
        assert m.data.readonly
        assert m.message_id == 0
        assert m.kind == 0
        assert not m.redelivered
        assert inp.hold == 0
    assert inp.hold is None


def test_release_twice_is_once(out, inp):
    out.push_many([b"1", b"2"])
    first, second = inp.lease(), inp.lease()
    first.release()
    first.release()
    assert inp.hold == 1
    second.release()


def test_released_lease_gives_its_data_no_more(out, inp):
    out.push(b"x")
    with inp.lease() as m:
        pass
    with pytest.raises(shmring.Closed, match="released"):
        _ = m.data
    with pytest.raises((BufferError, shmring.Closed)):
        memoryview(m)
    assert m.message_id == 0


def test_view_that_outlives_the_with_keeps_the_message(ring, out, inp):
    out.push(b"old" * 50)
    with inp.lease() as m:
        view = np.frombuffer(m.data, np.uint8)
    part = view[3:6]
    del view, m
    assert free_slots(ring, out) == ring.slots - 1
    assert part.tobytes() == b"old"
    del part
    assert inp.hold is None
    inp.pop(timeout=0)
    out.push(b"x", timeout=0)


def test_last_of_several_views_releases_in_any_order(ring):
    for order in itertools.permutations(range(3)):
        with ring.producer() as out, ring.consumer("a") as inp:
            out.push(b"abcdef")
            with inp.lease() as m:
                views = {0: m.data, 1: memoryview(m)[1:], 2: np.frombuffer(m, np.uint8)}
            del m
            for i in order:
                assert inp.hold is not None
                del views[i]
            assert inp.hold is None


def test_consumer_closed_while_views_live_leaves_when_they_are_gone(ring, out):
    inp = ring.consumer("a")
    out.push(b"kept")
    with inp.lease() as m:
        view = m.data
    inp.close()
    with pytest.raises(shmring.Closed):
        inp.pop()
    assert ring.branches()[0]["consumers"] == 1
    assert bytes(view) == b"kept"
    del view, m
    assert ring.branches()[0]["consumers"] == 0


def test_too_many_separate_leases_are_refused_and_lose_nothing(ring, out, inp):
    out.push_many([b"%d" % i for i in range(200)])
    held = []
    for _ in range(48):
        held.append(inp.lease(timeout=0))
        inp.pop(timeout=0)
    with pytest.raises(shmring.TooManyLeases, match=ring.name):
        inp.lease(timeout=0)
    held.pop(0).release()
    assert inp.pop(timeout=0) == b"96"
    inp.abandon()


# --- lease_many -------------------------------------------------------------------------------


def test_batch_is_one_array_without_a_copy(out, inp):
    rows = np.random.default_rng(2).integers(0, 256, (400, 300), np.uint8)
    for lap in range(6):  # across the wrap
        out.push_many(rows)
        with inp.lease_many(1024, timeout=0) as b:
            assert len(b) == 400
            assert b.array.shape == (400, 300)
            assert b.array.dtype == np.uint8
            assert not b.array.flags.owndata
            assert not b.array.flags.writeable
            assert (b.array == rows).all()
            assert (b.lengths == 300).all()
            assert b.lengths.dtype == np.uint32
            assert (b.message_ids == np.arange(lap * 400, lap * 400 + 400)).all()
            assert b.message_ids.dtype == np.uint64
            assert (b.times > 0).all()
            assert not b.redelivered
        assert b.redelivered is False
        del b


def test_batch_takes_no_more_slots_than_its_consumer_is_to(out, inp):
    lengths = [300, 300, 300, 300, 3000, 300, 300]
    for nbytes in lengths:
        out.push(bytes(nbytes))
    assert inp.max_slots == 0
    inp.max_slots = 3
    taken = [inp.lease_many(100, timeout=0) for _ in range(4)]
    assert [len(batch) for batch in taken] == [3, 1, 1, 2]
    with pytest.raises(ValueError, match="max_slots"):
        inp.max_slots = -1
    inp.max_slots = 0
    out.push_many([b"x"] * 25)
    taken.append(inp.lease_many(100))
    assert len(taken[-1]) == 25
    inp.abandon()


def test_batch_of_different_lengths_says_them(out, inp):
    rows = [b"a" * n for n in (3, 0, 300, 17)]
    out.push_many(rows)
    with inp.lease_many(10) as b:
        assert b.lengths.tolist() == [3, 0, 300, 17]
        assert [bytes(m) for m in b] == rows
        assert bytes(b[2]) == rows[2]
        assert bytes(b[-1]) == rows[3]
        assert [b.array[i, :n].tobytes() for i, n in enumerate(b.lengths)] == rows
        with pytest.raises(IndexError):
            b[4]


def test_batch_with_long_messages_is_iterated(out, inp):
    rows = [b"a" * 10, b"b" * 1000, b"c" * 301]
    for row in rows:
        out.push(row)
    with inp.lease_many(10) as b:
        assert [bytes(m) for m in b] == rows
        assert b.message_ids.tolist() == [0, 1, 5]
        with pytest.raises(ValueError, match=r"1000 bytes.*iterate"):
            _ = b.array
        with pytest.raises(BufferError):
            memoryview(b)


def test_batch_around_an_aborted_claim_is_copied(out, inp):
    out.push(b"one")
    out.claim(1).abort()
    out.push(b"two")
    with inp.lease_many(10) as b:
        assert [bytes(row[:3]) for row in b.array] == [b"one", b"two"]
        assert not b.array[:, 3:].any()
        assert b.message_ids.tolist() == [0, 2]


def test_batch_view_that_outlives_the_with_keeps_all_of_it(ring, out, inp):
    out.push_many(np.full((100, 300), 5, np.uint8))
    with inp.lease_many(100) as b:
        row = b.array[50]
        one = b[3]
    del b
    assert inp.hold == 0
    assert free_slots(ring, out) == ring.slots - 100
    assert (row == 5).all()
    del row
    assert inp.hold == 0
    assert bytes(one) == b"\5" * 300
    del one
    assert inp.hold is None


def test_what_a_loop_over_a_batch_was_given_ends_with_the_block(ring, out, inp):
    for _ in range(2 * ring.slots // 100):  # more than the ring has room for
        out.push_many([b"%03d" % i for i in range(100)], timeout=0)
        with inp.lease_many(100) as batch:
            for message in batch:
                assert len(message) == 3
        assert inp.hold is None
        with pytest.raises(ValueError, match="released"):
            bytes(message)


@pytest.mark.parametrize("end", ["release", "nack", "exception"])
def test_all_that_was_given_by_iteration_ends_with_the_lease(ring, out, inp, end):
    out.push_many([b"x"] * 50)
    batch = inp.lease_many(50)
    views = list(batch)
    copy = memoryview(views[0])[:1]
    assert inp.hold == 0
    if end == "exception":
        with pytest.raises(KeyError), batch:
            raise KeyError
    else:
        getattr(batch, end)()
    with pytest.raises(ValueError, match="released"):
        views[49].tobytes()
    assert bytes(copy) == b"x"
    assert inp.hold == 0
    del copy
    assert inp.hold is None
    assert len(ring.branches()) == 1


def test_who_keeps_views_that_fill_the_ring_is_told_so(out, inp):
    out.push_many([b"x"] * 1024)
    with inp.lease_many(1024) as batch:
        arrays = [np.frombuffer(m, np.uint8) for m in itertools.islice(batch, 17, 18)]
        kept = batch[21]
    with pytest.raises(shmring.Full, match=r"this process: .* or a view of one lives"):
        out.push(b"y", timeout=0.01)
    assert arrays[0].tobytes() == bytes(kept) == b"x"
    del kept
    with pytest.raises(shmring.Full, match=r"not released sequence 0.*this process"):
        out.push(b"y", timeout=0.01)
    del arrays
    out.push(b"y", timeout=0)


def test_loop_over_a_batch_in_a_coroutine_that_waits_leaves_room(ring, patience):
    async def main():
        with ring.producer() as out, ring.consumer("a") as inp:

            async def consume():
                taken = 0
                while taken < 4 * ring.slots:
                    await inp.ready()
                    with inp.lease_many(256, timeout=0) as batch:
                        for message in batch:
                            taken += len(message)

            consumer = asyncio.create_task(consume())
            for _ in range(4 * ring.slots):
                await out.put(b"x")
            await consumer

    asyncio.run(asyncio.wait_for(main(), patience))


def test_released_batch_gives_nothing_more(out, inp):
    out.push_many([b"x"] * 3)
    with inp.lease_many(3) as b:
        pass
    for use in (lambda: b.array, lambda: b.lengths, lambda: b[0], lambda: list(b)):
        with pytest.raises(shmring.Closed, match="released"):
            use()


def test_batch_takes_back_what_a_loop_that_goes_on_was_lent(out, inp):
    out.push_many([b"%d" % i for i in range(8)])
    batch = inp.lease_many(8)
    turns = iter(batch)
    kept = next(turns)
    next(turns)
    released = next(turns)
    released.release()
    array = np.frombuffer(next(turns), np.uint8)
    assert [bytes(next(turns)) for _ in range(2)] == [b"4", b"5"]
    last = next(turns)
    assert (bytes(kept), bytes(last)) == (b"0", b"6")
    batch.release()
    for view in (kept, released, last):
        with pytest.raises(ValueError, match="released memoryview"):
            bytes(view)
    with pytest.raises(shmring.Closed):
        next(turns)
    assert inp.hold == 0
    assert array.tobytes() == b"3"
    del array
    assert inp.hold is None
