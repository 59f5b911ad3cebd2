"""Ctrl-C that comes while SQLite is at work on a statement."""

from __future__ import annotations

import contextlib
import ctypes
import queue
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from shmring.durable.table_ring import TableRing


@pytest.mark.parametrize("change", ["subscribe", "unsubscribe"])
def test_interrupt_of_a_change_that_waits_for_a_claim(
    tmp_path: Path, thread: Callable[..., Any], change: str
) -> None:
    url = f"sqlite:///{tmp_path}/ring.db"
    statements: queue.SimpleQueue[str] = queue.SimpleQueue()
    claim = contextlib.ExitStack()

    def interrupt() -> None:
        while statements.get() != "BEGIN IMMEDIATE":
            pass
        signal.raise_signal(signal.SIGINT)
        claim.close()

    with TableRing(url, slots=9, subscribers=["main", "b"]) as ring, TableRing(url) as other:
        other.push_many([b"0", b"1"])
        claim.enter_context(other.claim())
        # Written in C: the main thread sees the signal only when BEGIN has returned.
        ring._backend._driver.set_trace_callback(statements.put)
        interrupting = thread(interrupt)
        with pytest.raises(KeyboardInterrupt):
            getattr(ring, change)("a" if change == "subscribe" else "b")
        interrupting.outcome()
        assert other.push(b"2", timeout=0) == 2
        assert ring.push(b"3", timeout=0) == 3
        assert ring.pop_many(timeout=0) == [b"1", b"2", b"3"]
        assert ring.positions() == (4, {"main": 4, "b": 0})
        ring.subscribe("a")


def test_interrupt_of_a_statement_in_a_claim(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ring.db"
    kill = ctypes.CDLL(None)["raise"]
    with TableRing(url, slots=9) as ring, TableRing(url) as other:
        other.push_many([b"0", b"1"])
        ring._backend._driver.create_function("interrupt", 1, kill)
        with pytest.raises(KeyboardInterrupt), ring.claim() as claim:
            claim.connection.execute(sa.text(f"SELECT interrupt({signal.SIGINT:d})"))
        assert other.push(b"2", timeout=0) == 2
        assert ring.push(b"3", timeout=0) == 3
        with ring.claim(9, timeout=0) as claim:
            assert list(claim) == [b"0", b"1", b"2", b"3"]
