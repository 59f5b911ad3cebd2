"""Group commit: who shares a sync, and what an interrupt does to the others."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import threading
from types import FrameType

import pytest
from fixture_types import RunThread, Until
from simulated_disk import SimulatedDisk

from shmring.durable import PersistentQueue
from shmring.durable.base.items import Packing
from shmring.durable.queues.session import GroupCommit, Transaction
from shmring.errors import Closed


def nothing() -> Transaction:
    return Transaction([], Packing(), [])


def test_those_who_come_while_a_group_is_committed_share_the_next(
    thread: RunThread, until: Until
) -> None:
    groups: list[int] = []
    first, go_on = threading.Event(), threading.Event()

    def commit(group: list[Transaction]) -> None:
        groups.append(len(group))
        first.set()
        assert go_on.wait(120)
        for each in group:
            each.finish(None)

    shared = GroupCommit(commit)
    threads = [thread(shared.commit, nothing())]
    assert first.wait(120)
    threads += [thread(shared.commit, nothing()) for _ in range(9)]
    until(lambda: len(shared._waiting) == 9)
    go_on.set()
    for each in threads:
        each.outcome()
    assert groups == [1, 9]


def test_one_error_of_a_group_is_only_its_own(thread: RunThread) -> None:
    def commit(group: list[Transaction]) -> None:
        for each in group:
            each.finish(ValueError("mine") if each is bad else None)

    bad = nothing()
    shared = GroupCommit(commit)
    others = [thread(shared.commit, nothing()) for _ in range(5)]
    failing = thread(shared.commit, bad)
    for other in others:
        other.outcome()
    with pytest.raises(ValueError, match="mine"):
        failing.outcome()


class Interrupted(BaseException):
    pass


class Flushes:
    """Numbered items of one thread: tried, and known to be committed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.tried: list[bytes] = []
        self.known: list[bytes] = []

    def flush(self, q: PersistentQueue) -> None:
        with q.session() as s:
            item = b"%s %d" % (self.name.encode(), len(self.tried))
            self.tried.append(item)
            s.enqueue(item)
            s.flush()
        self.known.append(item)


def flush_until_closed(flushes: Flushes, q: PersistentQueue, stop: threading.Event) -> None:
    with contextlib.suppress(Closed):
        while not stop.is_set():
            flushes.flush(q)


@pytest.mark.kill
@pytest.mark.parametrize("seed", range(int(os.environ.get("SHMRING_KILLS", "40"))))
def test_an_interrupt_anywhere_in_a_flush_stops_no_other_thread_and_loses_nothing(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may close the queue, if it comes in the middle of writing; then it says so to all."""
    armed = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal armed
        if armed:
            armed = False
            raise Interrupted

    def dropped(unraisable: sys.UnraisableHookArgs) -> None:
        # Python drops what is raised in a finaliser or a weak reference's callback: once more.
        nonlocal armed
        if unraisable.exc_type is Interrupted:
            armed = True
        else:
            report(unraisable)

    report = sys.unraisablehook
    monkeypatch.setattr(sys, "unraisablehook", dropped)
    disk = SimulatedDisk()
    q = PersistentQueue("/q", disk=disk)
    stop = threading.Event()
    mine, *others = (Flushes(name) for name in ("mine", "a", "b", "c"))
    threads = [
        threading.Thread(target=flush_until_closed, args=(each, q, stop), daemon=True)
        for each in others
    ]
    # The handler stays: a last signal may have come to a thread that did not run yet, and Python
    # complains of one whose handler is gone.
    signal.signal(signal.SIGALRM, interrupt)
    try:
        for each in threads:
            each.start()
        signal.setitimer(signal.ITIMER_REAL, 1e-4 + random.Random(seed).random() * 3e-3, 1e-4)
        with contextlib.suppress(Interrupted, Closed):
            armed = True
            while True:
                mine.flush(q)
    finally:
        armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        stop.set()
        for each in threads:
            each.join(120)
    assert not any(each.is_alive() for each in threads)
    with contextlib.suppress(Closed):
        q.close()
    with PersistentQueue("/q", disk=disk) as q, q.session() as s:
        found = list(iter(s.dequeue, None))
    assert len(found) == len(set(found))
    for flushes in (mine, *others):
        own = [item for item in found if item.startswith(flushes.name.encode())]
        assert own[: len(flushes.known)] == flushes.known
        assert set(own) <= set(flushes.tried)
