"""How fast is a TableRing on PostgreSQL and SQLite, beside queue tables of INSERT and DELETE?

All connections push for a while, then all pop what is there; or half of them push while the others
pop, also while somebody keeps a snapshot open, as a dump or a report does. The loop runs in the
server, as the ones did with which the table's inventors measured, or in clients, a process each.
Where all push and then pop, a connection's part ends early when the queue is full, or empty.

PostgreSQL runs in a temporary directory of its own, on a socket only, and is stopped afterwards.
"""

from __future__ import annotations

import contextlib
import sqlite3
import sys
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.disk import folder
from benchmarks.harness import Question, Row, Sample, Settings, Target, Unavailable
from benchmarks.payload import MESSAGE
from benchmarks.processes import Gate, Role, run_together
from benchmarks.table_ring.queues import (
    INVENTORS,
    NAIVE,
    QUEUES,
    RING,
    SCATTERED,
    Client,
    connect,
    fresh,
)
from shmring.table_ring import TableRing

# So many misses in a row, of 20 ms each through a client and 1 ms in the server, are the end.
DRY = {"clients": 3, "server": 50}
NEVER = 1_000_000_000


@dataclass(frozen=True)
class Case:
    """One arrangement; every queue gets the same. Of `connections` at once a half does either."""

    where: str
    connections: int
    batch: int = 1
    durability: str = "delayed"
    at_once: bool = False
    snapshot: bool = False

    def __str__(self) -> str:
        rows = "one" if self.batch == 1 else f"{self.batch}"
        how = "push and pop at once" if self.at_once else "push, then pop"
        beside = ", a snapshot open" if self.snapshot else ""
        place = "in the server" if self.where == "server" else "clients"
        return f"{place}, {rows} a call, {self.connections} x {how}{beside}, {self.durability}"

    @property
    def jobs(self) -> list[str]:
        """Jobs of each connection: + pushes, - pops."""
        if self.at_once:
            return ["+"] * (self.connections // 2) + ["-"] * (self.connections // 2)
        return ["+-"] * self.connections


class Moved(NamedTuple):
    """Work of one connection in one phase, with the CPU seconds of its session and client."""

    job: str
    messages: int
    seconds: float
    cpu: float


def _client(gate: Gate, queue: str, url: str, case: Case, jobs: str, seconds: float) -> list[Moved]:
    """One connection's phases, each after a gate."""
    client = Client(queue, url, case.durability, looping=case.where == "server")
    run = client.loop if case.where == "server" else client.run
    session = Path(f"/proc/{client.session}/schedstat")
    found: list[Moved] = []
    for job in jobs:
        # A pop phase must not run dry, so all push for longer before it. Tables of INSERT and
        # DELETE slow down while rows come and go at once, but only after a while.
        lasting = seconds * (3.0 if case.at_once else 1.5 if job == "+" else 1.0)
        misses = NEVER if case.at_once else DRY[case.where]
        gate.wait()
        cpu, served = time.process_time(), int(session.read_text().split()[0])
        messages, took = run("push" if job == "+" else "pop", case.batch, lasting, misses)
        spent = (int(session.read_text().split()[0]) - served) / 1e9
        spent += (time.process_time() - cpu) * (case.where == "clients")
        found.append(Moved(job, messages, took, spent))
    return found


def _figures(moved: list[Moved]) -> tuple[float, float]:
    """Messages a second, and microseconds of CPU a message: the session's and its client's."""
    messages = sum(phase.messages for phase in moved)
    rate = messages / max((phase.seconds for phase in moved), default=1.0)
    return rate, sum(phase.cpu for phase in moved) / max(messages, 1) * 1e6


class _Server:
    """The PostgreSQL of this question, while it is asked."""

    url = ""

    @contextlib.contextmanager
    def running(self) -> Generator[None]:
        sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "table_ring"))
        from postgres import PostgresMissing, postgres

        try:
            with postgres() as server:
                self.url = server.url
                yield
        except PostgresMissing as error:
            raise Unavailable(str(error)) from None

    def measure(self, queue: str, case: Case, seconds: float) -> Sample:
        fresh(queue, self.url)
        with connect(self.url, "delayed") as admin, connect(self.url, "delayed") as other:
            if case.snapshot:
                other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
                other.execute("SELECT count(*) FROM pg_class")
            before = _log(admin)
            roles = [Role(_client, (queue, self.url, case, jobs, seconds)) for jobs in case.jobs]
            found = run_together(roles, timeout=300, preloaded="benchmarks.table_ring.queues")
            log = _log(admin) - before
        everything = [phase for phases in found for phase in phases]
        pushes, push_cpu = _figures([phase for phase in everything if phase.job == "+"])
        pops, pop_cpu = _figures([phase for phase in everything if phase.job == "-"])
        also = {"pushes/s": pushes, "us a push": push_cpu, "us a pop": pop_cpu}
        also["B of log"] = log / max(sum(phase.messages for phase in everything), 1)
        return Sample(pops, also)


def _log(admin: Any) -> int:
    row = admin.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchone()
    return int(row[0])


def _cases(settings: Settings) -> dict[Case, float | None]:
    """The arrangements, and how many times the naive table's pops the ring should reach."""
    at_once = {"connections": 8, "at_once": True}
    cases: dict[Case, float | None] = {Case("server", 8): 6.0}
    if settings.quick:
        return cases
    cases |= {
        Case("server", **at_once): 4.0,
        Case("server", **at_once, snapshot=True): 8.0,
        Case("clients", 1): 1.0,
        Case("clients", 8): 1.0,
    }
    for durability in ("delayed", "sync"):
        cases |= {
            Case("clients", 4, 1, durability): 1.0,
            Case("clients", 4, 100, durability): 1.3 if durability == "delayed" else None,
            Case("clients", **at_once, durability=durability): 1.0,
            Case("clients", **at_once, batch=100, durability=durability): 2.0,
        }
    return cases | {Case("clients", **at_once, batch=100, snapshot=True): None}


def _on_sqlite(queue: str, batch: int, durability: Any, seconds: float) -> Sample:
    """One process pushes 1,000 messages, then pops them, and again."""
    spent, taken, moved = [0.0, 0.0], 0.0, 0
    run = 1000 if durability == "delayed" or batch > 1 else 50
    with folder() as where:
        if queue == RING:
            ring = TableRing(f"sqlite:///{where}/queue.db", slots=10_000, durability=durability)
            calls = [lambda: ring.push_many([MESSAGE] * batch), lambda: ring.pop_many(batch)]
        else:
            calls = _naive_on_sqlite(where / "queue.db", batch, durability)
        while taken < seconds or not moved:
            for job, call in enumerate(calls):
                cpu, begun = time.process_time(), time.perf_counter()
                for _ in range(run // batch):
                    call()
                spent[job] += time.process_time() - cpu
                taken += time.perf_counter() - begun
            moved += run
    also = {"us CPU a push": spent[0] / moved * 1e6, "us CPU a pop": spent[1] / moved * 1e6}
    return Sample(moved / taken, also)


def _naive_on_sqlite(path: Path, batch: int, durability: str) -> list[Callable[[], Any]]:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {'FULL' if durability == 'sync' else 'NORMAL'}")
    connection.execute("CREATE TABLE naive (id INTEGER PRIMARY KEY, time INTEGER, message BLOB)")
    insert = "INSERT INTO naive (time, message) VALUES (?, ?)"
    oldest = f"SELECT id FROM naive ORDER BY id LIMIT {batch}"
    delete = f"DELETE FROM naive WHERE id IN ({oldest}) RETURNING message"

    def push() -> None:
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(insert, [(time.time_ns(), MESSAGE)] * batch)
        connection.execute("COMMIT")

    def pop() -> None:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(delete).fetchall()
        connection.execute("COMMIT")

    return [push, pop]


def question(settings: Settings) -> Question:
    """Ratios refer to the naive table. Scattered keys stand where they cost more: in batches."""
    server = _Server()
    # Each measurement makes its tables anew, which takes as long as it does.
    rounds = min(settings.rounds, 2)
    rows: list[Row] = []
    for case, factor in _cases(settings).items():
        left_out = SCATTERED if case.batch == 1 else None
        for queue in QUEUES:
            if queue == left_out or (queue == INVENTORS and case.where == "clients"):
                continue
            naive = f"{NAIVE}, {case}"
            rows.append(
                Row(
                    f"{queue}, {case}",
                    "pops/s",
                    partial(server.measure, queue, case),
                    targets=(Target(factor, naive),) if factor and queue == RING else (),
                    compare=() if queue == NAIVE else (naive,),
                    rounds=rounds,
                )
            )
    for durability in ("delayed",) if settings.quick else ("delayed", "sync"):
        for batch in (1, 100):
            case = f"SQLite, {'one' if batch == 1 else batch} a call, {durability}"
            for queue in (NAIVE, RING):
                measure = partial(_on_sqlite, queue, batch, durability)
                compare = () if queue == NAIVE else (f"{NAIVE}, {case}",)
                name, unit = f"{queue}, {case}", "pushed and popped/s"
                rows.append(Row(name, unit, measure, compare=compare))
    return Question(
        "table",
        "How fast are rings of rows on PostgreSQL and SQLite?",
        rows,
        setup=server.running,
        warm_up=False,
    )
