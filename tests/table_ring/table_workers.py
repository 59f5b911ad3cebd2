"""Processes that push to a table ring and pop from it, to be killed; and what they left."""

from __future__ import annotations

import os
import signal
import struct
import traceback
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

from shmring.errors import Empty
from shmring.table_ring import TableRing

Record = tuple[int, int]  # worker, its message
RECORD = struct.Struct("<qq")


class Worker:
    """A child process that reports through a pipe what it has done; killed on leaving."""

    def __init__(self, work: Callable[[Callable[[int, int], None]], None]) -> None:
        self._read, write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                os.close(self._read)
                work(lambda a, b: void(os.write(write, RECORD.pack(a, b))))
                status = 0
            except sa.exc.OperationalError:
                status = 2  # the server is gone, as some tests want it
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        os.close(write)
        self._status: int | None = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exception: Any) -> None:
        if self._status is None:
            self.kill()
        os.close(self._read)

    def take(self, count: int) -> list[Record]:
        """Read so many reports, waiting for each."""
        return [RECORD.unpack(self._read_exactly()) for _ in range(count)]

    def kill(self) -> list[Record]:
        """End it with SIGKILL; return what it reported and nobody read."""
        os.kill(self.pid, signal.SIGKILL)
        return self.finish(expect=None)

    def finish(self, expect: int | None = 0) -> list[Record]:
        """Read all reports until its end, and wait for it."""
        found: list[Record] = []
        while data := self._read_exactly():
            found.append(RECORD.unpack(data))
        self._status = os.waitpid(self.pid, 0)[1]
        assert expect is None or self._status == expect
        return found

    def _read_exactly(self) -> bytes:
        return os.read(self._read, RECORD.size)  # pipe writes this small are never split


def void(_: object) -> None:
    """Take a result nobody needs."""


def pusher(url: str, worker: int, count: int, batch: int = 1, durability: Any = "sync") -> Worker:
    def work(report: Callable[[int, int], None]) -> None:
        with TableRing.attach(url, durability=durability) as ring:
            for first in range(0, count, batch):
                rows = [RECORD.pack(worker, n) for n in range(first, first + batch)]
                ring.push_many(rows) if batch > 1 else ring.push(rows[0])
                for n in range(first, first + batch):
                    report(worker, n)

    return Worker(work)


def popper(url: str, subscriber: str = "main", limit: int = 1, until: int = 1 << 60) -> Worker:
    def work(report: Callable[[int, int], None]) -> None:
        with TableRing.attach(url, subscriber=subscriber) as ring:
            taken = 0
            while taken < until:
                for data in ring.pop_many(limit) if limit > 1 else [ring.pop()]:
                    taken += 1
                    report(*RECORD.unpack(data))

    return Worker(work)


def settle(url: str) -> None:
    """Wait until the last statements of the dead have ended, one way or the other.

    PostgreSQL finishes what a killed client had sent; then only the test's own session is left.
    """
    if url.startswith("sqlite"):
        return
    engine = sa.create_engine(url, poolclass=sa.pool.NullPool, isolation_level="AUTOCOMMIT")
    others = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
    )
    with engine.connect() as connection:
        while connection.execute(sa.text(others)).scalar_one() > 1:
            os.sched_yield()


def drain(url: str) -> list[Record]:
    """Pop all that is left, once the dead are done."""
    settle(url)
    found: list[Record] = []
    with TableRing.attach(url) as ring:
        try:
            while True:
                found += [RECORD.unpack(data) for data in ring.pop_many(timeout=0)]
        except Empty:
            return found


def by_worker(records: list[Record]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for worker, n in records:
        found.setdefault(worker, []).append(n)
    return found
