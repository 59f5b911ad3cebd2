"""A fork while another thread is inside a call: the child is told so, and waits for no lock."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fixture_types import RunThread
from queue_items import contents, put

from shmring.durable import AppendOnlyQueue, PersistentQueue
from shmring.durable.base.files import File
from shmring.errors import ForkedHandle

InChild = Callable[[Callable[[], object]], None]
HANGS = 60  # seconds until a child that waits for a lock is ended


class Gate:
    """Holds calls of a file's method until it opens."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.entered, self._go_on = threading.Event(), threading.Event()
        self._method = getattr(File, name)
        monkeypatch.setattr(File, name, lambda *arguments: self._pass(*arguments))

    def _pass(self, *arguments: Any) -> Any:
        self.entered.set()
        assert self._go_on.wait(120)
        return self._method(*arguments)

    def open(self) -> None:
        self._go_on.set()


def refused(*uses: Callable[[], object]) -> None:
    signal.alarm(HANGS)
    for use in uses:
        with pytest.raises(ForkedHandle):
            use()


def test_a_child_forked_inside_an_append_only_flush_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, thread: RunThread, in_child: InChild
) -> None:
    q = AppendOnlyQueue(tmp_path / "q")
    q.enqueue(b"a")
    gate = Gate(monkeypatch, "sync")
    flushing = thread(q.flush)
    assert gate.entered.wait(120)

    def child() -> None:
        refused(
            lambda: q.enqueue(b"b"),
            lambda: q.enqueue_many([b"b"]),
            q.dequeue,
            lambda: q.dequeue_many(2),
            lambda: len(q),
            q.flush,
            q.rollback,
            q.compact,
            q.reset,
            q.overhead,
        )
        q.close()

    in_child(child)
    gate.open()
    flushing.outcome()
    assert contents(q) == [b"a"]
    q.close()


def test_a_child_forked_inside_a_session_s_flush_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, thread: RunThread, in_child: InChild
) -> None:
    q = PersistentQueue(tmp_path)
    s = q.session()
    s.enqueue(b"a")
    gate = Gate(monkeypatch, "sync")
    flushing = thread(s.flush)
    assert gate.entered.wait(120)

    def child() -> None:
        refused(
            lambda: s.enqueue(b"b"),
            lambda: s.enqueue_many([b"b"]),
            s.dequeue,
            lambda: s.dequeue_many(2),
            s.flush,
            q.session,
            lambda: len(q),
            q.sync,
            q.reset,
        )
        s.rollback()
        q.close()

    in_child(child)
    gate.open()
    flushing.outcome()
    assert contents(q) == [b"a"]
    q.close()


def test_a_view_is_read_in_a_child_unless_a_thread_was_reading_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, thread: RunThread, in_child: InChild
) -> None:
    with AppendOnlyQueue(tmp_path / "q") as q:
        put(q, b"a", b"b")
    view = AppendOnlyQueue(tmp_path / "q", readonly=True)

    def reads() -> None:
        signal.alarm(HANGS)
        assert view.dequeue_many(2) == [b"a", b"b"]

    in_child(reads)
    gate = Gate(monkeypatch, "read")
    reading = thread(view.dequeue)
    assert gate.entered.wait(120)
    in_child(lambda: refused(view.dequeue, lambda: len(view)))
    gate.open()
    assert reading.outcome() == b"a"
    assert contents(view) == [b"b"]
    view.close()
