"""A head start for the producers: what a consumer waits for, and what it does not."""

from __future__ import annotations

import math
import signal
import threading

import numpy as np
import pytest

import shmring

PATIENCE = 60.0  # longer than any of this takes: only what is meant to end a wait does


def joined(ring, messages=10, **options):
    return ring.consumer("a", name="c", head_start=messages, head_start_timeout=PATIENCE, **options)


def is_empty(ring, seat):
    """Whether the consumer has found nothing, and so is about to wait."""
    return lambda: seat(ring, "c")["empty_waits"] > 0


@pytest.mark.parametrize("wait", ["default", "spin", "yield", "sleep", "futex"])
def test_a_take_waits_until_so_many_lie_ahead(ring, thread, until, seat, wait):
    with ring.producer() as out, joined(ring, wait=wait) as inp:
        taker = thread(lambda: len(inp.lease_many(100)))
        until(is_empty(ring, seat))
        for _ in range(10):
            out.push(b"x")
        assert taker.outcome() == 10


@pytest.fixture
def handled():
    """How often SIGUSR1 has been handled so far."""
    numbers = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: numbers.append(number))
    yield numbers
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("wait", ["default", "spin", "yield", "sleep", "futex"])
def test_signals_do_not_cut_it_short(ring, thread, until, seat, handled, wait):
    taker = threading.get_ident()

    def push_with_signals(out):
        until(is_empty(ring, seat))
        for n in range(10):
            out.push(b"x")
            signal.pthread_kill(taker, signal.SIGUSR1)
            until(lambda n=n: len(handled) > n)

    with ring.producer() as out, joined(ring, wait=wait) as inp:
        pusher = thread(push_with_signals, out)
        with inp.lease_many(100) as batch:
            assert len(batch) == 10
        pusher.outcome()
        assert seat(ring, "c")["empty_waits"] == 1


def test_a_look_for_the_dead_does_not_cut_it_short(ring, thread, until, seat, child):
    with ring.producer() as out, joined(ring) as inp:
        taker = thread(lambda: len(inp.lease_many(100)))
        until(is_empty(ring, seat))
        for _ in range(2):
            out.push(b"x")
            dies(ring, child, until)
        for _ in range(8):
            out.push(b"x")
        assert taker.outcome() == 10


def dies(ring, child, until):
    """Somebody whom the consumer clears away between two slices of its wait."""
    process = child(
        """
        import sys, shmring
        other = shmring.attach(sys.argv[1]).consumer("other", name="dies", ephemeral=True)
        print("joined")
        sys.stdin.read()
        """,
        ring.name,
    )
    assert process.line() == "joined"
    process.kill()
    until(lambda: all(seat["name"] != "dies" for seat in ring.seats()))


def test_a_push_that_is_refused_ends_it(ring, thread, until, seat):
    ring.subscribe("slow")
    with ring.producer(when_full="drop") as out, joined(ring, 512) as inp:
        for _ in range(ring.slots - 100):
            out.push(b"x")
        inp.lease_many(ring.slots, timeout=0).release()
        taker = thread(lambda: len(inp.lease_many(ring.slots)))
        until(is_empty(ring, seat))
        for _ in range(100):
            out.push(b"x")

        def is_taken():
            out.push(b"lost")  # "slow" leaves no room
            return not taker.is_alive()

        until(is_taken)
        assert taker.outcome() == 100


def test_what_is_there_can_be_taken_at_once(ring):
    with ring.producer() as out, joined(ring) as inp:
        with pytest.raises(shmring.Empty):
            inp.pop(timeout=0)
        out.push(b"1")
        out.push(b"2")
        assert inp.pop(timeout=0) == b"1"
        assert inp.pop() == b"2"
        with pytest.raises(shmring.Empty):
            inp.pop(timeout=0.01)


def test_an_end_is_not_waited_for(ring, thread, until, seat):
    with ring.producer() as out, joined(ring) as inp:
        taker = thread(lambda: list(inp))
        until(is_empty(ring, seat))
        out.push(b"x")
        out.push_end()
        assert taker.outcome() == [b"x"]


def test_a_producer_that_leaves_is_not_waited_for(ring, thread, until, seat):
    with joined(ring) as inp:
        with ring.producer() as out:
            taker = thread(inp.pop)
            until(is_empty(ring, seat))
            out.push(b"x")
        assert taker.outcome() == b"x"


def test_closing_the_consumer_ends_the_wait(ring, thread, until, seat):
    with ring.producer() as out:
        inp = joined(ring)
        taker = thread(lambda: inp.lease_many(100))
        until(is_empty(ring, seat))
        out.push(b"x")
        inp.close()
        with pytest.raises(shmring.Closed):
            taker.outcome()


def test_after_its_time_one_message_is_enough(ring, thread, until, seat):
    with (
        ring.producer() as out,
        ring.consumer("a", name="c", head_start=10, head_start_timeout=1e-9) as inp,
    ):
        taker = thread(inp.pop)
        until(is_empty(ring, seat))
        out.push(b"x")
        assert taker.outcome() == b"x"


@pytest.mark.parametrize("seconds", [np.float32(0.5), np.float64(0.5), np.int64(1), 1])
def test_numbers_of_numpy_are_seconds_too(ring, seconds):
    with ring.consumer("a", head_start=1, head_start_timeout=seconds) as inp:
        assert inp.branch == "a"


def test_a_consumer_that_the_core_refuses_leaves_its_branch(ring):
    join = ring.core.join
    options = {"start": 0, "sequence": 0, "exclusive": True, "ephemeral": False, "lapse": False}
    for head_start, patience in [(600, 1), (1, 0)]:
        with pytest.raises(ValueError, match="head start"):
            join(
                branch="a",
                name=None,
                upstream=0,
                wait=0,
                head_start=head_start,
                patience_ns=patience,
                **options,
            )
        assert [branch["members"] for branch in ring.branches()] == [0]


@pytest.mark.parametrize("messages", [513, -1, 2**64])
def test_more_than_half_of_the_ring_is_refused_and_no_branch_made(ring, messages):
    with pytest.raises(ValueError, match="head_start must be from 0 to 512"):
        ring.consumer("a", head_start=messages)
    assert ring.branches() == []


@pytest.mark.parametrize("timeout", [0, -1, math.nan, math.inf, 60.1])
def test_time_that_is_no_bound_is_refused_and_no_branch_made(ring, timeout):
    with pytest.raises(ValueError, match="head_start_timeout must be more than 0 and at most 60"):
        ring.consumer("a", head_start=1, head_start_timeout=timeout)
    assert ring.branches() == []


@pytest.mark.parametrize(
    "options", [{"head_start": "1"}, {"head_start": True}, {"head_start_timeout": "1"}]
)
def test_what_is_no_number_is_refused(ring, options):
    with pytest.raises(TypeError, match="must be"):
        ring.consumer("a", **options)
