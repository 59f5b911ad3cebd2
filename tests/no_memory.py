"""Runs in a process of its own for tests/test_no_memory.py: allocations fail in all threads.

A worker of a divided test run has a thread that reads from pytest, and ends if this one cannot\
allocate.
"""

from __future__ import annotations

import _testcapi

import shmring


def without_memory(call):
    """Call with the first allocation failing, then the second and so on, until it succeeds."""
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


def messages(name, how, exclusive):
    rows = [b"%03d" % i for i in range(60)]
    with (
        shmring.attach(name) as ring,
        ring.producer() as out,
        ring.consumer("a", exclusive=exclusive) as inp,
    ):
        out.push_many(rows)
        taken = [data for _ in range(20) for data in taken_by(inp, how)]
        assert taken == rows[: len(taken)]
        assert inp.hold is None


def large_messages(name):
    rows = [bytes([i]) * (1 << 20) for i in range(3)]  # copied without the GIL
    with shmring.attach(name) as ring, ring.producer() as out, ring.consumer("a") as inp:
        for row in rows:
            out.push(row)
        assert [taken_by(inp, "pop")[0] for _ in rows] == rows
        assert inp.hold is None


def claims(name):
    with shmring.attach(name) as ring, ring.producer() as out, ring.consumer("a") as inp:
        for i in range(20):
            with without_memory(lambda: out.claim(3)) as claim:
                claim.buffer[:] = b"%03d" % i
        assert [inp.pop(timeout=0) for _ in range(20)] == [b"%03d" % i for i in range(20)]
