"""How fast is a TableRing on PostgreSQL, beside a naive queue table of INSERT and DELETE?

All connections, a process each, push for a while, then all pop what is there. A message costs its
push and its pop: the figure is what the same connections sustain of both.

PostgreSQL runs in a temporary directory of its own, on a socket only, and is stopped afterwards.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any, Protocol

import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from benchmarks.harness import Question, Row, Sample, Settings, Unavailable
from benchmarks.oneway import Messages
from benchmarks.payload import MESSAGE
from benchmarks.processes import Gate, Role, run_together
from shmring.durable.table_ring import TableRing
from shmring.errors import Contended, Empty, Full

__all__ = ["question"]

SLOTS = 100_000
NAIVE, RING, SCATTERED = "naive table", "TableRing", "TableRing, scattered"
CONNECTIONS = (1, 4, 16)


@dataclass(frozen=True)
class Case:
    """One arrangement; every queue gets the same."""

    durability: Any
    connections: int
    batch: int

    def __str__(self) -> str:
        rows = "one row" if self.batch == 1 else f"{self.batch} rows"
        delayed = ", delayed commit" if self.durability == "delayed" else ""
        return f"{rows} a call, {self.connections} connections{delayed}"


class Client(Protocol):
    """One connection; each call returns how many messages it moved, 0 when full or empty."""

    def push(self, batch: int) -> int: ...
    def pop(self, batch: int) -> int: ...


class RingClient:
    def __init__(self, url: str, durability: Any) -> None:
        self._ring = TableRing.attach(url, durability=durability)

    def push(self, batch: int) -> int:
        try:
            if batch == 1:
                self._ring.push(MESSAGE, timeout=0)
            else:
                self._ring.push_many([MESSAGE] * batch, timeout=0)
        except Full:
            return 0
        return batch

    def pop(self, batch: int) -> int:
        try:
            return len(self._ring.pop_many(batch, timeout=0)) if batch > 1 else self._pop_one()
        except Empty:
            return 0

    def _pop_one(self) -> int:
        self._ring.pop(timeout=0)
        return 1


class NaiveClient:
    """INSERT at the back, DELETE of the smallest id: what one writes first."""

    def __init__(self, url: str, durability: Any) -> None:
        engine = sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
        self._connection = engine.connect()
        self._run(f"SET synchronous_commit = {'on' if durability == 'sync' else 'off'}")

    def _run(self, sql: str, parameters: Any = None) -> sa.CursorResult[*tuple[Any, ...]]:
        return self._connection.exec_driver_sql(sql, parameters)

    def push(self, batch: int) -> int:
        values = {"time": time.time_ns(), "message": MESSAGE if batch == 1 else [MESSAGE] * batch}
        source = "%(message)s" if batch == 1 else "unnest(CAST(%(message)s AS bytea[]))"
        self._run(f"INSERT INTO naive (time, message) SELECT %(time)s, {source}", values)
        return batch

    def pop(self, batch: int) -> int:
        while True:
            found = len(
                self._run(
                    "DELETE FROM naive WHERE id IN (SELECT id FROM naive ORDER BY id"
                    f" LIMIT {batch} FOR UPDATE) RETURNING message"
                ).all()
            )
            # None may mean that others took those it waited for.
            if found or not self._run("SELECT EXISTS (SELECT 1 FROM naive)").scalar_one():
                return found


def client(queue: str, url: str, durability: Any) -> Client:
    """Open one connection to a queue."""
    return NaiveClient(url, durability) if queue == NAIVE else RingClient(url, durability)


def fresh(queue: str, url: str) -> None:
    """Begin with an empty queue."""
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    with engine.connect() as connection:
        with contextlib.suppress(FileNotFoundError):
            TableRing.drop(url)
        connection.exec_driver_sql("DROP TABLE IF EXISTS naive")
        if queue == NAIVE:
            connection.exec_driver_sql(
                "CREATE TABLE naive (id BIGSERIAL PRIMARY KEY, time BIGINT, message BYTEA)"
            )
        else:
            TableRing.create(url, slots=SLOTS, scattered=queue == SCATTERED).close()
        # All begin with a clean log, and with statistics.
        connection.exec_driver_sql("VACUUM ANALYZE")
        connection.exec_driver_sql("CHECKPOINT")


def _work(gate: Gate, queue: str, url: str, case: Case, seconds: float) -> list[tuple[int, float]]:
    """One connection's share: pushes, then pops."""
    connection = client(queue, url, case.durability)
    calls: list[Callable[[int], int]] = [connection.push, connection.pop]
    found: list[tuple[int, float]] = []
    for call in calls:
        gate.wait()
        found.append(_for(seconds, partial(call, case.batch)))
    return found


def _for(seconds: float, call: Callable[[], int]) -> tuple[int, float]:
    """Messages moved, until the time is over or nothing more moves, and seconds."""
    moved = 0
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds:
        try:
            count = call()
        except Contended:
            continue
        moved += count
        if not count:
            break
    return moved, time.perf_counter() - begun


def _sustained(found: list[list[tuple[int, float]]]) -> Sample:
    push, pop = (
        sum(moved for moved, _ in phase) / max(took for _, took in phase)
        for phase in zip(*found, strict=True)
    )
    return Sample(1 / (1 / push + 1 / pop), {"pushes/s": push, "pops/s": pop})


class _Server:
    """The PostgreSQL of this question, while it is asked."""

    def __init__(self) -> None:
        self.url = ""

    @contextlib.contextmanager
    def running(self) -> Generator[None]:
        sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "durable"))
        from postgres import PostgresMissing, postgres

        try:
            with postgres() as server:
                self.url = server.url
                yield
        except PostgresMissing as error:
            raise Unavailable(str(error)) from None

    def measure(self, queue: str, case: Case, seconds: float) -> Sample:
        fresh(queue, self.url)
        role = Role(_work, (queue, self.url, case, seconds))
        return _sustained(run_together([*repeat(role, case.connections)], timeout=120))


def _in_memory(seconds: float) -> Sample:
    return Sample(Messages("ring", guess=5e6)(seconds).value * 1e6)


def question(settings: Settings) -> Question:
    """The naive table is what ratios refer to; the ring in shared memory stands beside it."""
    server = _Server()
    # Creating a table, and 16 processes that import SQLAlchemy, take longer than the measurement.
    rounds = min(settings.rounds, 2)
    cases = [Case("sync", n, 100) for n in CONNECTIONS]
    cases += [Case("sync", 16, 1), Case("delayed", 16, 100)]
    rows: list[Row] = []
    for case in cases[:1] if settings.quick else cases:
        naive = f"{NAIVE}, {case}"
        for queue in (NAIVE, RING, SCATTERED):
            rows.append(
                Row(
                    f"{queue}, {case}",
                    "msg/s",
                    partial(server.measure, queue, case),
                    compare=() if queue == NAIVE else (naive,),
                    rounds=rounds,
                )
            )
    rows.append(Row("shmring.Ring, one at a time, two processes", "msg/s", _in_memory))
    return Question(
        "table",
        "How fast are rings of rows on PostgreSQL?",
        rows,
        setup=server.running,
        warm_up=False,
    )
