"""shmring.wait(): several consumers and producers, of one ring or of many, by one thread."""

from __future__ import annotations

from typing import get_args

import pytest
from layout_reader import LayoutReader

import shmring
from shmring._shmring import ends_of, wait_any
from shmring.common.arguments import WAITS, Wait


@pytest.fixture
def rings(name):
    """Three rings."""
    with (
        shmring.create(f"{name}-0", slots=1024, temporary=True) as first,
        shmring.create(f"{name}-1", slots=1024, temporary=True) as second,
        shmring.create(f"{name}-2", slots=1024, temporary=True) as third,
    ):
        yield [first, second, third]


def test_the_wait_strategies_of_the_core_are_those_that_type_checkers_know():
    assert get_args(Wait) == tuple(WAITS)


@pytest.mark.parametrize("strategy", WAITS)
def test_it_says_who_has_something(rings, strategy):
    inputs = [ring.consumer("a") for ring in rings]
    outputs = [ring.producer() for ring in rings]
    assert shmring.wait(inputs, 0, wait=strategy) == []
    outputs[1].push(b"x")
    assert shmring.wait(inputs, wait=strategy) == [inputs[1]]
    assert shmring.wait(inputs, 0, wait=strategy) == [inputs[1]]
    outputs[0].push_end()
    assert shmring.wait(iter(inputs), 10, wait=strategy) == inputs[:2]
    assert inputs[1].pop() == b"x"
    with pytest.raises(shmring.EndOfStream):
        inputs[0].pop()
    assert shmring.wait(inputs, 0.01, wait=strategy) == []


def test_it_waits_for_room_and_for_messages(rings):
    inp = rings[0].consumer("a")
    out = rings[1].producer()
    rings[1].subscribe("a")
    assert shmring.wait([inp, out], 0) == [out]
    out.push_many([b"x"] * rings[1].slots)
    assert shmring.wait([inp, out], 0.01) == []
    rings[1].consumer("a").lease_many(1024).release()
    assert shmring.wait([inp, out]) == [out]


def test_a_dropped_branch_ends_the_wait(rings, thread):
    inputs = [ring.consumer("a") for ring in rings]
    waiter = thread(shmring.wait, inputs)
    rings[2].drop_branch("a")
    assert waiter.outcome() == [inputs[2]]
    with pytest.raises(shmring.BranchDropped):
        inputs[2].pop()


def test_a_closed_one_is_refused_and_ends_the_wait(rings, thread):
    inputs = [ring.consumer("a") for ring in rings]
    waiter = thread(shmring.wait, inputs)
    inputs[1].close()
    with pytest.raises(shmring.Closed, match="was closed"):
        waiter.outcome()
    with pytest.raises(shmring.Closed, match="was closed"):
        shmring.wait(inputs)
    assert shmring.wait([inputs[0]], 0) == []


def test_what_cannot_be_waited_for_is_refused(ring):
    inp = ring.consumer("a")
    with pytest.raises(ValueError, match="nothing to wait for"):
        shmring.wait([])
    with pytest.raises(TypeError, match="consumers and producers"):
        shmring.wait([ring])
    with ring.producer() as out:
        out.push(b"stays")
        for one in (inp, out):
            with pytest.raises(TypeError, match="a wait is for a list of consumers or producers"):
                shmring.wait(one, timeout=0)
    assert inp.pop(timeout=0) == b"stays"
    with pytest.raises(ValueError, match="wait must be one of"):
        shmring.wait([inp], wait="soon")
    for timeout in (-1, float("nan")):
        with pytest.raises(ValueError, match="timeout"):
            shmring.wait([inp], timeout)


def test_a_wait_ends_with_a_stream_whose_end_another_thread_was_told_of(out, inp, thread):
    ends = ends_of(inp)
    waiter = thread(wait_any, [(inp, ends)], None, WAITS["futex"], None, 0)
    out.push_end()
    with pytest.raises((shmring.EndOfStream, shmring.Empty)):  # the core's wait may be in time
        inp.pop(timeout=0)
    assert waiter.outcome() == [inp]
    assert wait_any([(inp, ends)], None, WAITS["futex"], None, 0) == [inp]
    assert wait_any([(inp, ends_of(inp))], 0, WAITS["futex"], None, 0) == []


CTRL_C = """
import sys
import shmring

inputs = [shmring.attach(name).consumer("a") for name in sys.argv[1:]]
try:
    print("ready", flush=True)
    shmring.wait(inputs)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_ctrl_c_ends_the_wait(rings, child):
    process = child(CTRL_C, *(ring.name for ring in rings))
    assert process.line() == "ready"
    process.interrupt()
    assert process.line() == "interrupted"
    process.end()


def test_a_forked_child_is_refused(rings, in_child):
    inputs = [ring.consumer("a") for ring in rings]

    def child():
        with pytest.raises(shmring.ForkedHandle):
            shmring.wait(inputs, 0)

    in_child(child)
    assert shmring.wait(inputs, 0) == []


WOKEN = """
    import os, signal, sys, threading, shmring

    def raises(number, frame):
        raise RuntimeError

    def wake():
        sys.stdin.readline()
        sys.setswitchinterval(1000)  # the main thread goes on when this one has ended
        out.push(b"x")
        os.kill(os.getpid(), signal.SIGUSR1)

    signal.signal(signal.SIGUSR1, raises)
    with (
        shmring.attach(sys.argv[1]) as ring,
        ring.producer() as out,
        ring.consumer("b", wait="futex") as inp,
    ):
        threading.Thread(target=wake).start()
        print("there", flush=True)
        try:
            inp.pop() if sys.argv[2] == "pop" else shmring.wait([inp], wait="futex")
        except RuntimeError:
            print("raised", flush=True)
            sys.stdin.readline()
"""


@pytest.mark.parametrize("call", ["pop", "wait"])
def test_wake_up_is_passed_on_if_a_signals_handler_raises_first(ring, child, until, call):
    """Others of the branch that sleep would else find the message when they next look."""
    with ring.consumer("b") as other:
        first = child(WOKEN, ring.name, call)
        first.line()
        (branch,) = ring.branches()
        seats = [p["seat"] for p in ring.participants() if p["pid"] == first.pid and p["branch"]]

        def wake_ups():
            return LayoutReader(ring.path).branch(branch["id"], "futex.v")

        until(lambda: LayoutReader(ring.path).seat(*seats, "waits") == 1)
        before = wake_ups()
        first.say()
        assert first.line() == "raised"
        assert wake_ups() == before + 2
        assert other.pop(timeout=60) == b"x"
        first.say()
        first.end()
