"""Waiting: it ends in time, lets other threads run, and Ctrl-C and close() end it."""

from __future__ import annotations

import os
import time

import pytest

import shmring
from shmring.common.arguments import WAITS

# Every call that waits, on a producer of a full ring and on a consumer of an empty one.
PUSHES = {
    "push": lambda out, **t: out.push(b"x", **t),
    "push_large": lambda out, **t: out.push(b"x" * 100_000, **t),
    "push_many": lambda out, **t: out.push_many([b"x"] * 10, **t),
    "push_end": lambda out, **t: out.push_end(**t),
    "claim": lambda out, **t: out.claim(1000, **t).abort(),
}
POPS = {
    "pop": lambda inp, **t: inp.pop(**t),
    "lease": lambda inp, **t: inp.lease(**t).release(),
    "lease_many": lambda inp, **t: inp.lease_many(10, **t).release(),
}


def fill(ring):
    with ring.producer() as out:
        out.push_many([b"old"] * ring.slots)


def waits(ring, name, counter, participant, before=0):
    """Whether the participant has found the ring full or empty, and so is about to wait."""
    return lambda: participant(ring, name)[counter] > before


@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.parametrize("call", PUSHES.values(), ids=PUSHES.keys())
def test_push_waits_without_the_gil_until_there_is_room(
    ring, thread, until, participant, call, wait
):
    with ring.producer("p", wait=wait) as out, ring.consumer("a") as inp:
        fill(ring)
        pusher = thread(call, out)
        until(waits(ring, "p", "full_waits", participant))
        inp.lease_many(ring.slots).release()
        pusher.outcome()


@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.parametrize("call", POPS.values(), ids=POPS.keys())
def test_pop_waits_without_the_gil_until_there_is_a_message(
    ring, thread, until, participant, call, wait
):
    with ring.producer() as out, ring.consumer("a", name="c", wait=wait) as inp:
        popper = thread(call, inp)
        until(waits(ring, "c", "empty_waits", participant))
        out.push(b"x")
        popper.outcome()


@pytest.mark.parametrize("wait", WAITS)
def test_waits_end_in_time_and_not_before(ring, wait, patience):
    begun = time.monotonic()
    with ring.producer(wait=wait) as out, ring.consumer("a", wait=wait) as inp:
        for call in POPS.values():
            start = time.monotonic()
            with pytest.raises(shmring.Empty):
                call(inp, timeout=0.03)
            assert 0.03 <= time.monotonic() - start < patience
        assert 0 < inp.waited_ns <= (time.monotonic() - begun) * 1e9
        fill(ring)
        for call in PUSHES.values():
            start = time.monotonic()
            with pytest.raises(shmring.Full):
                call(out, timeout=0.03)
            assert 0.03 <= time.monotonic() - start < patience
        assert ring.claimed == ring.slots


@pytest.mark.parametrize("timeout", [1e9, 1e300, float("inf"), None, 10**12])
def test_huge_timeouts_are_for_ever(ring, thread, until, participant, timeout):
    with ring.producer() as out, ring.consumer("a", name="c") as inp:
        popper = thread(lambda: inp.pop(timeout=timeout))
        until(waits(ring, "c", "empty_waits", participant))
        out.push(b"x")
        assert popper.outcome() == b"x"


@pytest.mark.parametrize("timeout", [-1, -1e-9, float("nan"), float("-inf")])
def test_timeout_that_is_no_time_is_refused(ring, out, inp, timeout):
    for call in PUSHES.values():
        with pytest.raises(ValueError, match="timeout"):
            call(out, timeout=timeout)
    for call in POPS.values():
        with pytest.raises(ValueError, match="timeout"):
            call(inp, timeout=timeout)
    assert ring.claimed == 0


@pytest.mark.parametrize(
    ("end", "error"),
    [
        (lambda ring, inp: inp.close(), shmring.Closed),
        (lambda ring, inp: ring.close(), shmring.Closed),
        (lambda ring, inp: ring.drop_branch("a"), shmring.BranchDropped),
    ],
    ids=["consumer", "ring", "branch"],
)
def test_closing_or_dropping_ends_a_consumers_waits(ring, thread, until, participant, end, error):
    inp = ring.consumer("a", name="c")
    poppers = [thread(inp.pop) for _ in range(3)]
    until(waits(ring, "c", "empty_waits", participant, 2))
    end(ring, inp)
    for popper in poppers:
        with pytest.raises(error):
            popper.outcome()


def test_closing_the_producer_ends_its_waits(ring, inp, thread, until, participant):
    out = ring.producer("p")
    fill(ring)
    pushers = [thread(out.push, b"x") for _ in range(3)]
    until(waits(ring, "p", "full_waits", participant, 2))
    out.close()
    for pusher in pushers:
        with pytest.raises(shmring.Closed):
            pusher.outcome()


def test_dropping_the_branch_frees_the_producer(ring, thread, until, participant):
    with ring.producer("p") as out, ring.consumer("a"):
        fill(ring)
        pusher = thread(out.push, b"x")
        until(waits(ring, "p", "full_waits", participant))
        ring.drop_branch("a")
        assert pusher.outcome() == ring.slots


CTRL_C = """
import sys
import shmring
from shmring.common.arguments import WAITS

ring = shmring.attach(sys.argv[1])
full = shmring.attach(sys.argv[2])
calls = [
    lambda inp, out: inp.pop(),
    lambda inp, out: inp.lease(),
    lambda inp, out: inp.lease_many(10),
    lambda inp, out: next(inp),
    lambda inp, out: list(inp),
    lambda inp, out: inp.pop(timeout=100),
    lambda inp, out: out.push(b"x"),
    lambda inp, out: out.push(b"x" * 5000, timeout=100),
    lambda inp, out: out.push_many([b"x"]),
    lambda inp, out: out.push_end(),
    lambda inp, out: out.claim(1),
]
for wait in WAITS:
    with ring.consumer("a", name=f"c-{wait}", wait=wait) as inp, full.producer(
        f"p-{wait}", wait=wait
    ) as out:
        for number, call in enumerate(calls if wait == "default" else calls[:1] + calls[6:7]):
            try:
                print("ready", flush=True)
                call(inp, out)
                print("returned", flush=True)
            except KeyboardInterrupt:
                print("interrupted", flush=True)
"""


def test_ctrl_c_ends_every_wait(ring, name, child, until, participant):
    with shmring.create(f"{name}-full", slots=1024, temporary=True) as full:
        full.subscribe("a")
        fill(full)
        process = child(CTRL_C, ring.name, full.name)
        for wait in WAITS:
            pops, pushes = (6, 5) if wait == "default" else (1, 1)
            for count, where, who, counter in (
                (pops, ring, f"c-{wait}", "empty_waits"),
                (pushes, full, f"p-{wait}", "full_waits"),
            ):
                for n in range(count):
                    # A call that waits for a message finds nothing once, however long it waits.
                    before = n if where is ring else _count(where, who, counter)
                    assert process.line() == "ready"
                    until(lambda: _count(where, who, counter) > before)  # noqa: B023
                    process.interrupt()
                    assert process.line() == "interrupted"
        process.end()
        assert full.claimed == full.slots


def _count(ring, who, counter):
    return sum(
        participant[counter] for participant in ring.participants() if participant["name"] == who
    )


@pytest.mark.parametrize("call", POPS.values(), ids=POPS.keys())
def test_consumer_of_a_file_that_was_removed_does_not_wait_for_ever(ring, thread, call):
    with ring.consumer("a") as inp:
        os.unlink(ring.path)
        with pytest.raises(shmring.RingNotFound, match=r"was removed .* no producer is attached"):
            thread(call, inp).outcome()
    with ring.consumer("a") as inp, pytest.raises(shmring.Empty, match="was removed"):
        inp.pop(timeout=0.01)


def test_ring_that_was_removed_and_made_anew_is_left(ring, out, inp, name, thread):
    os.unlink(ring.path)
    with shmring.create(name, slots=1024, temporary=True):
        with pytest.raises(shmring.RingNotFound, match="and made anew"):
            thread(inp.pop).outcome()
        out.push_many([b"x"] * ring.slots)
        with pytest.raises(shmring.RingNotFound, match="and made anew"):
            thread(out.push, b"x").outcome()
        inp.lease_many(ring.slots).release()
        with pytest.raises(shmring.RingNotFound, match="and made anew"):
            thread(lambda: shmring.wait([inp]) and inp.pop()).outcome()


def push_and_take(out, inp, messages):
    for _ in range(messages):
        out.push(b"x")
        inp.pop()


def test_producer_that_never_waits_is_told_within_a_round(ring, out, inp, name):
    os.unlink(ring.path)
    push_and_take(out, inp, 3 * ring.slots)  # attached participants go on
    with shmring.create(name, slots=1024, temporary=True):
        for _ in range(2):  # not once and for all
            with pytest.raises(shmring.RingNotFound, match="and made anew"):
                push_and_take(out, inp, 2 * ring.slots)


def test_producer_without_readers_is_told_within_a_round(ring, out):
    ring.subscribe("nobody", drop_oldest=True)
    os.unlink(ring.path)
    with pytest.raises(shmring.RingNotFound, match=r"was removed .* no consumer is attached"):
        any(out.push_many([b"x"] * 512) < 0 for _ in range(6))
