"""Python refuses an allocation, each in turn: MemoryError, and no message is lost or held by it."""

from __future__ import annotations

import pytest

import shmring

_testcapi = pytest.importorskip("_testcapi", reason="CPython's own tests are not installed")


def without_memory(call):
    """What it returns without the first allocation, the second and so on, until it succeeds."""
    for nth in range(1000):
        _testcapi.set_nomemory(nth, nth + 1)
        try:
            return call()
        except MemoryError:
            continue
        finally:
            _testcapi.remove_mem_hooks()
    raise AssertionError("every allocation is one too many")


def taken_by(inp, how):
    """One message, taken in some way, and released."""
    if how == "next":
        sequence = without_memory(inp.next)
        data = bytes(inp.slot(sequence)[:3])
        inp.done(sequence)
        return [data]
    if how == "lease":
        with without_memory(lambda: inp.lease(timeout=0)) as lease:
            return [bytes(lease.data)]
    if how == "lease_many":
        with without_memory(lambda: inp.lease_many(3, timeout=0)) as batch:
            return [bytes(view) for view in batch]
    if how == "iterate":
        return [without_memory(lambda: next(iter(inp)))]
    return [without_memory(lambda: inp.pop(timeout=0))]


@pytest.mark.parametrize("exclusive", [False, True], ids=["shared", "exclusive"])
@pytest.mark.parametrize("how", ["pop", "iterate", "lease", "lease_many", "next"])
def test_a_message_that_there_is_no_memory_for_comes_again(ring, how, exclusive):
    rows = [b"%03d" % i for i in range(60)]
    with ring.producer() as out, ring.consumer("a", exclusive=exclusive) as inp:
        out.push_many(rows)
        taken = [data for _ in range(20) for data in taken_by(inp, how)]
        assert taken == rows[: len(taken)]
        assert inp.hold is None


def test_large_messages_that_there_is_no_memory_for_come_again(name):
    rows = [bytes([i]) * (1 << 20) for i in range(3)]  # copied without the GIL
    with (
        shmring.create(name, slots=16_384, temporary=True) as ring,
        ring.producer() as out,
        ring.consumer("a") as inp,
    ):
        for row in rows:
            out.push(row)
        assert [taken_by(inp, "pop")[0] for _ in rows] == rows
        assert inp.hold is None


def test_a_claim_that_there_is_no_memory_for_is_aborted(ring):
    with ring.producer() as out, ring.consumer("a") as inp:
        for i in range(20):
            with without_memory(lambda: out.claim(3)) as claim:
                claim.buffer[:] = b"%03d" % i
        assert [inp.pop(timeout=0) for _ in range(20)] == [b"%03d" % i for i in range(20)]
