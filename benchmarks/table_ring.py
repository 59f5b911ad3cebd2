"""How fast is a TableRing on PostgreSQL, beside queue tables of INSERT and DELETE?

All connections push for a while, then all pop what is there; or half of them push while the others
pop, also while somebody keeps a snapshot open, as a dump or a report does. The loop runs in the
server, as the ones did with which the table's inventors measured, or in clients, a process each.

PostgreSQL runs in a temporary directory of its own, on a socket only, and is stopped afterwards.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

from benchmarks.harness import Question, Row, Sample, Settings, Target, Unavailable
from benchmarks.oneway import Messages
from benchmarks.processes import Gate, Role, run_together
from benchmarks.table_queues import (
    NAIVE,
    QUEUES,
    RING,
    client,
    connect,
    fresh,
)

__all__ = ["question"]

# Clock ticks of /proc/<pid>/stat.
TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Case:
    """One arrangement; every queue gets the same.

    Parameters
    ----------
    connections : in all; of those that push and pop at once a half does either
    """

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


@dataclass(frozen=True)
class Moved:
    """What one connection did in one phase; CPU of its client and of its session's process."""

    pushed: int
    popped: int
    seconds: float
    cpu: float


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def _client(gate: Gate, queue: str, url: str, case: Case, jobs: str, seconds: float) -> list[Moved]:
    """One client's phases, each after a gate."""
    connection = client(queue, url, case.durability)
    found: list[Moved] = []
    for job in jobs:
        call = connection.push if job == "+" else connection.pop
        gate.wait()
        cpu, begun, moved = time.process_time(), time.perf_counter(), 0
        while time.perf_counter() - begun < seconds:
            moved += call(case.batch)
        took = time.perf_counter() - begun
        pushed, popped = (moved, 0) if job == "+" else (0, moved)
        found.append(Moved(pushed, popped, took, time.process_time() - cpu))
    return found


def _jobs(case: Case) -> list[str]:
    """What each connection does: + pushes, - pops."""
    if case.at_once:
        return [*repeat("+", case.connections // 2), *repeat("-", case.connections // 2)]
    return ["+-"] * case.connections


class _Loops:
    """Connections whose loops run in the server, a thread each."""

    def __init__(self, url: str, case: Case, seconds: float) -> None:
        self._case, self._seconds = case, seconds
        self._found: list[list[Moved]] = []
        self._barrier = threading.Barrier(case.connections)
        self._url = url

    def run(self) -> list[list[Moved]]:
        threads = [threading.Thread(target=self._work, args=(jobs,)) for jobs in _jobs(self._case)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return self._found

    def _work(self, jobs: str) -> None:
        found: list[Moved] = []
        with connect(self._url, self._case.durability) as connection:
            # As TableRing sets its own sessions; DELETE and INSERT by key plan the same with them.
            connection.execute(
                "SET plan_cache_mode = force_generic_plan; SET jit = off;"
                "SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off"
            )
            for job in jobs:
                which = "push" if job == "+" else "pop"
                self._barrier.wait()
                cpu, begun = _cpu(connection.info.backend_pid), time.perf_counter()
                call = f"CALL loop_{which}_{self._case.batch}({self._seconds}, 0)"
                ((moved,),) = connection.execute(call.encode()).fetchall()
                took = time.perf_counter() - begun
                cpu = _cpu(connection.info.backend_pid) - cpu
                pushed, popped = (moved, 0) if job == "+" else (0, moved)
                found.append(Moved(pushed, popped, took, cpu))
        self._found.append(found)


def _rate(phases: list[Moved]) -> float:
    moved = sum(phase.pushed + phase.popped for phase in phases)
    return moved / max((phase.seconds for phase in phases), default=1.0)


def _cost(phases: list[Moved], more: float = 0.0) -> float:
    """Microseconds of CPU a message."""
    moved = sum(phase.pushed + phase.popped for phase in phases)
    return (sum(phase.cpu for phase in phases) + more) / max(moved, 1) * 1e6


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
        with connect(self.url, "delayed") as admin, self._snapshot(case.snapshot):
            before = self._log(admin)
            sessions: dict[int, float] = {}
            if case.where == "server":
                found = _Loops(self.url, case, seconds).run()
            else:
                with self._watched(admin, sessions):
                    roles = [
                        Role(_client, (queue, self.url, case, jobs, seconds))
                        for jobs in _jobs(case)
                    ]
                    found = run_together(roles, timeout=300)
            log = self._log(admin) - before
        everything = [phase for phases in found for phase in phases]
        pushes = [phase for phase in everything if phase.pushed]
        pops = [phase for phase in everything if phase.popped]
        also = {"pushes/s": _rate(pushes)}
        if case.where == "server":
            also |= {"us a push": _cost(pushes), "us a pop": _cost(pops)}
        else:
            also["us CPU"] = _cost(everything, sum(sessions.values()))
        also["WAL bytes"] = log / max(sum(phase.pushed + phase.popped for phase in everything), 1)
        return Sample(_rate(pops), also)

    def _log(self, admin: Any) -> int:
        row = admin.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchone()
        return int(row[0])

    @contextlib.contextmanager
    def _snapshot(self, wanted: bool) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            if wanted:
                other = stack.enter_context(connect(self.url, "delayed"))
                other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
                other.execute("SELECT count(*) FROM pg_class")
            yield

    @contextlib.contextmanager
    def _watched(self, admin: Any, sessions: dict[int, float]) -> Iterator[None]:
        """Note the CPU time of all clients' sessions, which end with their processes."""
        done = threading.Event()
        query = (
            b"SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'"
            b" AND pid <> pg_backend_pid()"
        )

        def watch() -> None:
            while not done.wait(0.05):
                for (pid,) in admin.execute(query).fetchall():
                    with contextlib.suppress(OSError):
                        sessions[pid] = _cpu(pid)

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()


def _in_memory(seconds: float) -> Sample:
    return Sample(Messages("ring", guess=5e6)(seconds).value * 1e6)


def _cases(settings: Settings) -> dict[Case, float | None]:
    """The arrangements, and how many times the naive table's pops the ring should reach."""
    at_once = {"connections": 8, "at_once": True}
    cases: dict[Case, float | None] = {Case("server", 8): 6.0}
    if settings.quick:
        return cases
    cases |= {Case("server", n): None for n in (1, 4)}
    cases |= {
        Case("server", **at_once): 4.0,
        Case("server", **at_once, snapshot=True): 8.0,
        Case("clients", 4): None,
        Case("clients", 4, 100): 1.3,
        Case("clients", **at_once): 1.0,
        Case("clients", **at_once, batch=100): 2.0,
        Case("clients", **at_once, snapshot=True): None,
        Case("clients", **at_once, durability="sync"): 1.0,
        Case("clients", **at_once, batch=100, durability="sync"): 2.0,
    }
    if settings.full:
        cases |= {
            Case("clients", n, batch, durability): None
            for n in (1, 4, 8)
            for batch in (1, 100)
            for durability in ("sync", "delayed")
            if n != 4 or durability == "sync"
        }
        cases |= {Case("server", n, 100): None for n in (1, 4, 8)}
    return cases


def question(settings: Settings) -> Question:
    """The naive table is what ratios refer to; the ring in shared memory stands beside it."""
    server = _Server()
    # Creating a table, and 8 processes that import SQLAlchemy, take longer than the measurement.
    rounds = min(settings.rounds, 3)
    rows: list[Row] = []
    for case, factor in _cases(settings).items():
        naive = f"{NAIVE}, {case}"
        for queue in QUEUES:
            rows.append(
                Row(
                    f"{queue}, {case}",
                    "pops/s",
                    _measurement(server, queue, case),
                    targets=(Target(factor, naive),) if factor and queue == RING else (),
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


def _measurement(server: _Server, queue: str, case: Case) -> Callable[[float], Sample]:
    return partial(server.measure, queue, case)
