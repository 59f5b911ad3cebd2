"""What a message costs on SQLite: a TableRing, and a table of INSERT and DELETE, in one process."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from benchmarks.disk import folder
from benchmarks.harness import Row, Sample, Settings
from benchmarks.payload import MESSAGE
from shmring.table_ring import TableRing

__all__ = ["sqlite_rows"]

SLOTS = 10_000
# So many messages are pushed, then popped, and again.
RUN = 1000


class _Queue(Protocol):
    def push(self, count: int) -> None: ...
    def pop(self, count: int) -> None: ...
    def close(self) -> None: ...


class _Ring:
    def __init__(self, path: Path, durability: Any) -> None:
        self._ring = TableRing(f"sqlite:///{path}", slots=SLOTS, durability=durability)
        self.close = self._ring.close

    def push(self, count: int) -> None:
        if count == 1:
            self._ring.push(MESSAGE)
        else:
            self._ring.push_many([MESSAGE] * count)

    def pop(self, count: int) -> None:
        if count == 1:
            self._ring.pop()
        else:
            self._ring.pop_many(count)


class _Naive:
    def __init__(self, path: Path, durability: str) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        level = "FULL" if durability == "sync" else "NORMAL"
        self._connection.execute(f"PRAGMA synchronous = {level}")
        self._connection.execute(
            "CREATE TABLE naive (id INTEGER PRIMARY KEY, time INTEGER, message BLOB)"
        )
        self.close = self._connection.close

    def push(self, count: int) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        rows = [(time.time_ns(), MESSAGE)] * count
        self._connection.executemany("INSERT INTO naive (time, message) VALUES (?, ?)", rows)
        self._connection.execute("COMMIT")

    def pop(self, count: int) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.execute(
            "DELETE FROM naive WHERE id IN (SELECT id FROM naive ORDER BY id LIMIT ?)"
            " RETURNING message",
            (count,),
        ).fetchall()
        self._connection.execute("COMMIT")


def _measure(
    make: Callable[[Path, str], _Queue], batch: int, durability: str, seconds: float
) -> Sample:
    spent, taken, moved = {"+": 0.0, "-": 0.0}, {"+": 0.0, "-": 0.0}, 0
    run = RUN if durability == "delayed" or batch > 1 else RUN // 20
    with folder() as where:
        queue = make(where / "queue.db", durability)
        while sum(taken.values()) < seconds or not moved:
            for job, call in (("+", queue.push), ("-", queue.pop)):
                cpu, begun = time.process_time(), time.perf_counter()
                for _ in range(run // batch):
                    call(batch)
                spent[job] += time.process_time() - cpu
                taken[job] += time.perf_counter() - begun
            moved += run
        queue.close()
    each = {"us CPU a push": spent["+"], "us CPU a pop": spent["-"]}
    also = {name: cpu / moved * 1e6 for name, cpu in each.items()}
    return Sample(moved / sum(taken.values()), also)


def sqlite_rows(settings: Settings) -> list[Row]:
    """Messages that are pushed and popped a second, and what they cost."""
    rows: list[Row] = []
    for durability in ("delayed", "sync"):
        for batch in (1, 100):
            case = f"SQLite, {'one' if batch == 1 else batch} a call, {durability}"
            naive = f"naive table, {case}"
            for name, make in (("naive table", _Naive), ("TableRing", _Ring)):
                rows.append(
                    Row(
                        f"{name}, {case}",
                        "pushed and popped/s",
                        partial(_measure, make, batch, durability),
                        compare=() if make is _Naive else (naive,),
                    )
                )
    return rows[:2] if settings.quick else rows
