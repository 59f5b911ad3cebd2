"""Signals whose handlers raise anywhere in a call: nothing flushed is lost, nothing is twice."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from simulated_disk import SimulatedDisk

from shmring import durable
from shmring.durable import AppendOnlyQueue, PersistentQueue
from shmring.durable.queues import session
from shmring.errors import Closed, Contended

# The queues, and the disk below them.
CODE = str(Path(durable.__file__).parent), str(Path(__file__).parents[1])
IS_GENERATOR = 0x20  # flag of a function's code: its frame is entered several times


@pytest.fixture(autouse=True)
def _writes_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "BUFFER_BYTES", 1000)


class Interrupted(KeyboardInterrupt):
    """The exception that the signal handler raises."""


def raise_interrupted() -> None:
    raise Interrupted


class Interrupt:
    """Calls a handler where Python does: where a function begins, and behind a call of C.

    Parameters
    ----------
    at : the place's number, from 1 on
    """

    def __init__(self, at: int, handler: Callable[[], object] = raise_interrupted) -> None:
        self._left = at
        self._handler = handler

    @property
    def has_come(self) -> bool:
        return self._left <= 0

    def _profile(self, frame: FrameType, event: str, called: object) -> None:
        code, caller = frame.f_code, frame.f_back
        begins = event == "call" and not code.co_flags & IS_GENERATOR
        # Python drops what is raised in a finaliser.
        dropped = "__del__" in (code.co_name, caller and caller.f_code.co_name)
        if (begins or event == "c_return") and code.co_filename.startswith(CODE) and not dropped:
            self._left -= 1
            if self._left == 0:
                sys.setprofile(None)
                self._handler()

    def during(self, work: Callable[[], object]) -> None:
        before = sys.getprofile()
        sys.setprofile(self._profile)
        try:
            with contextlib.suppress(Interrupted):
                work()
        finally:
            sys.setprofile(before)


def put(q: Any) -> None:
    q.enqueue(b"new")
    q.enqueue_many([b"new too"])
    q.flush()


def put_much(q: Any) -> None:
    """So much that it is written before the flush."""
    q.enqueue(b"new" * 400)
    put(q)


def take(q: Any) -> None:
    q.dequeue()
    q.dequeue_many(2)
    q.flush()


def turn(q: Any) -> None:
    """Take all, so that what is at the back comes to the front, with items that are in no file."""
    q.enqueue(b"new")
    q.dequeue_many(8)
    q.enqueue(b"new too")
    q.flush()


def give_back(q: Any) -> None:
    q.dequeue()
    q.enqueue(b"new" * 400)
    q.enqueue(b"new too")
    q.rollback()


def compact(q: Any) -> None:
    q.enqueue(b"new")
    q.compact()


def reset(q: Any) -> None:
    q.reset()


def close(q: Any) -> None:
    q.close()


def begin(q: Any) -> None:
    """Leave 1, 2 and 3 in it."""
    q.enqueue_many([b"0", b"1", b"2", b"3"])
    q.flush()
    q.dequeue()
    q.flush()


def go_on(q: Any, undo: bool) -> bool:
    """Whether what is flushed now is acknowledged, or the queue has stopped."""
    with contextlib.suppress(Closed):
        if undo:
            q.rollback()
        q.enqueue(b"last")
        q.flush()
        return True
    return False


def check(found: list[bytes], work: Callable[[Any], None], acknowledged: bool, at: int) -> None:
    assert len(found) == len(set(found)), at
    assert not acknowledged or found[-1] == b"last", at
    if work in (put, put_much, give_back, compact):
        assert [item for item in found if len(item) == 1] == [b"1", b"2", b"3"], at


@pytest.mark.parametrize("undo", [False, True])
@pytest.mark.parametrize("work", [put, put_much, take, turn, compact, reset, close])
def test_an_append_only_queue_that_was_interrupted_anywhere(
    work: Callable[[Any], None], undo: bool
) -> None:
    """It goes on as if the call had not come so far, or says that it has stopped."""
    for at in itertools.count(1):
        disk = SimulatedDisk()
        q = AppendOnlyQueue("/q", disk=disk)
        begin(q)
        interrupt = Interrupt(at)
        interrupt.during(lambda q=q: work(q))
        if not interrupt.has_come:
            break
        acknowledged = go_on(q, undo)
        q.close()
        with AppendOnlyQueue("/q", disk=disk) as q:
            check(list(iter(q.dequeue, None)), work, acknowledged, at)
    assert at > 4


@pytest.mark.parametrize("log_size", [300, 1 << 20], ids=["rewritten", "long"])
@pytest.mark.parametrize(
    ("work", "undo"),
    [(put, False), (put, True), (put_much, False), (take, False), (take, True), (give_back, True)],
)
def test_a_session_that_was_interrupted_anywhere(
    work: Callable[[Any], None], undo: bool, log_size: int
) -> None:
    for at in itertools.count(1):
        disk = SimulatedDisk()
        q = PersistentQueue("/q", disk=disk, log_size=log_size, log_reserve=0)
        s = q.session()
        begin(s)
        interrupt = Interrupt(at)
        interrupt.during(lambda s=s: work(s))
        if not interrupt.has_come:
            q.close()
            break
        acknowledged = go_on(s, undo)
        with contextlib.suppress(Closed):
            q.close()
        with PersistentQueue("/q", disk=disk) as q, q.session() as s:
            check(list(iter(s.dequeue, None)), work, acknowledged, at)
    assert at > 20


def opened(kind: Any, disk: SimulatedDisk) -> Any:
    return kind("/q", disk=disk, **({"log_reserve": 0} if kind is PersistentQueue else {}))


@pytest.mark.parametrize("then", [put, give_back])
@pytest.mark.parametrize("work", [put_much, take])
@pytest.mark.parametrize("kind", [AppendOnlyQueue, PersistentQueue])
def test_a_handler_that_uses_the_interrupted_queue(
    kind: Any, work: Callable[[Any], None], then: Callable[[Any], None]
) -> None:
    """The handler's calls fail where they would meet a call that is under way; no item is lost."""
    refused = 0
    for at in itertools.count(1):
        disk = SimulatedDisk()
        q = opened(kind, disk)
        s = q if kind is AppendOnlyQueue else q.session()
        begin(s)
        taken: list[bytes] = []

        def handler(s: Any = s) -> None:
            nonlocal refused
            try:
                then(s)
            except Contended:
                refused += 1

        interrupt = Interrupt(at, handler)
        interrupt.during(lambda s=s: work(s))
        assert go_on(s, False)
        while (item := s.dequeue()) is not None:
            taken.append(item)
        if work is put_much and then is put:
            assert b"new" in taken, at
            assert b"new too" in taken, at
        assert taken[-1] == b"last", at
        s.flush()
        q.close()
        with opened(kind, disk) as q:
            s = q if kind is AppendOnlyQueue else q.session()
            assert s.dequeue() is None, at
        if not interrupt.has_come:
            break
    assert refused


def test_a_handler_that_closes_the_interrupted_queue() -> None:
    """The handler's call is refused while a flush is under way, which then succeeds."""
    refused = 0
    for at in itertools.count(1):
        disk = SimulatedDisk()
        q = AppendOnlyQueue("/q", disk=disk)
        q.enqueue(b"new")
        ends: list[str] = []

        def handler(q: Any = q, ends: list[str] = ends) -> None:
            try:
                q.close()
                ends.append("closed")
            except Contended:
                ends.append("refused")

        def flush(q: Any = q, ends: list[str] = ends) -> None:
            with contextlib.suppress(Closed):
                q.flush()
                ends.append("flushed")

        interrupt = Interrupt(at, handler)
        interrupt.during(flush)
        q.close()
        with AppendOnlyQueue("/q", disk=disk) as q:
            assert q.dequeue() == (b"new" if "flushed" in ends else None), at
        if "refused" in ends:
            assert ends == ["refused", "flushed"], at
            refused += 1
        if not interrupt.has_come:
            break
    assert refused


@pytest.mark.parametrize("work", [reset, close])
def test_a_persistent_queue_that_was_interrupted_anywhere(work: Callable[[Any], None]) -> None:
    for at in itertools.count(1):
        disk = SimulatedDisk()
        q = PersistentQueue("/q", disk=disk)
        with q.session() as s:
            s.enqueue_many([b"0", b"1", b"2", b"3"])
            s.flush()
            interrupt = Interrupt(at)
            interrupt.during(lambda q=q: work(q))
            acknowledged = go_on(s, True)
        with contextlib.suppress(Closed):
            q.close()
        with PersistentQueue("/q", disk=disk) as q, q.session() as s:
            check(list(iter(s.dequeue, None)), work, acknowledged, at)
        if not interrupt.has_come:
            break
    assert at > 20
