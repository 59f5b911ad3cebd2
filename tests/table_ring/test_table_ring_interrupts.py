"""Ctrl-C that comes behind any call, or while SQLite is at work on a statement."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import queue
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest
import sqlalchemy as sa
from fixture_types import RunThread

from shmring.errors import Empty
from shmring.table_ring import TableRing


@pytest.mark.parametrize("change", ["subscribe", "unsubscribe"])
def test_interrupt_of_a_change_that_waits_for_a_lease(
    tmp_path: Path, thread: RunThread, change: str
) -> None:
    url = f"sqlite:///{tmp_path}/ring.db"
    statements: queue.SimpleQueue[str] = queue.SimpleQueue()
    lease = contextlib.ExitStack()

    def interrupt() -> None:
        while statements.get() != "BEGIN IMMEDIATE":
            pass
        signal.raise_signal(signal.SIGINT)
        lease.close()

    with TableRing(url, slots=9, subscribers=["main", "b"]) as ring, TableRing(url) as other:
        other.push_many([b"0", b"1"])
        lease.enter_context(other.lease())
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


def test_interrupt_of_a_statement_in_a_lease(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ring.db"
    kill = ctypes.CDLL(None)["raise"]
    with TableRing(url, slots=9) as ring, TableRing(url) as other:
        other.push_many([b"0", b"1"])
        ring._backend._driver.create_function("interrupt", 1, kill)
        with pytest.raises(KeyboardInterrupt), ring.lease() as lease:
            lease.connection.execute(sa.text(f"SELECT interrupt({signal.SIGINT:d})"))
        assert other.push(b"2", timeout=0) == 2
        assert ring.push(b"3", timeout=0) == 3
        with ring.lease(9, timeout=0) as lease:
            assert list(lease) == [b"0", b"1", b"2", b"3"]


def lease_one(ring: TableRing) -> None:
    with ring.lease() as lease:
        lease.connection.execute(sa.text("SELECT 1"))


OPERATIONS: dict[str, Callable[[TableRing], object]] = {
    "push": lambda ring: ring.push(b"a"),
    "push_many": lambda ring: ring.push_many([b"a", b"b"]),
    "pop": lambda ring: ring.pop(),
    "pop_many": lambda ring: ring.pop_many(),
    "lease": lease_one,
    "lease, alarm": lease_one,
    "subscribe": lambda ring: ring.subscribe(f"s{ring.positions()[0]}"),
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_interrupt_behind_any_call_leaves_no_transaction_open(either: str, operation: str) -> None:
    """A transaction that is left open on SQLite keeps everybody else out until the handle ends."""
    behind = 0
    # psycopg cancels its statement for Ctrl-C, and not for what another signal's handler raises.
    error = LookupError if operation.endswith("alarm") else KeyboardInterrupt
    with TableRing(either, slots=100) as ring, TableRing(either) as other:
        for behind in itertools.count(1):
            other.push_many([b"x", b"y"], timeout=0)
            if not interrupted(lambda: OPERATIONS[operation](ring), behind, error):
                break
            other.push(b"z", timeout=0)
            ring.push(b"z", timeout=0)
            with contextlib.suppress(Empty):
                while other.pop_many(timeout=0):
                    pass
            for subscriber in other.positions()[1].keys() - {"main"}:
                other.unsubscribe(subscriber)
        assert behind > 1


# Functions of PostgreSQL's driver, which send a statement, or wait for the answer.
SENDING = {"_execute_send", "_send_prepare", "_send_query_prepared", "wait"}


def interrupted(operation: Callable[[], object], behind: int, error: type[BaseException]) -> bool:
    """Let a signal come when so many calls of C have returned, or of these have begun or ended."""
    calls = 0

    def profile(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        code = frame.f_code
        ours = event == "c_return" and "table_ring" in code.co_filename
        if ours or (code.co_name in SENDING and "/psycopg/" in code.co_filename):
            calls += 1
            if calls == behind:
                sys.setprofile(None)
                raise error

    sys.setprofile(profile)
    try:
        operation()
    except error:
        return True
    finally:
        sys.setprofile(None)
    return False
