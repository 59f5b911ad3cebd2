"""How fast is a TableRing on PostgreSQL, beside queue tables of INSERT and DELETE?

All connections push for a while, then all pop what is there; or half of them push while the others
pop, also while somebody keeps a snapshot open, as a dump or a report does. The loop runs in the
server, as the ones did with which the table's inventors measured, or in clients, a process each.
Where all push and then pop, a connection's part ends early when the queue is full, or empty.

PostgreSQL runs in a temporary directory of its own, on a socket only, and is stopped afterwards.
"""

from __future__ import annotations

import contextlib
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
from benchmarks.table_ring.queues import (
    INVENTORS,
    INVENTORS_INLINE,
    NAIVE,
    QUEUES,
    RING,
    SCATTERED,
    client,
    connect,
    fresh,
)
from benchmarks.table_ring.sqlite import sqlite_rows

__all__ = ["question"]

# Who pops what is there must not run dry: all push for longer before.
PUSH_FOR = 1.5
# Tables of INSERT and DELETE slow down while rows come and go at once; it takes them a while.
AT_ONCE_FOR = 3.0
# So many misses in a row, of 20 ms each through a client and 1 ms in the server, are the end.
DRY = {"clients": 3, "server": 50}
NEVER = 1_000_000_000
# What the ring guarantees may cost so much of the inventors' pops, each in a function.
PRICE = 1.3


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

    job: str
    messages: int
    seconds: float
    client: float
    session: float


def _cpu(pid: int) -> float:
    """Seconds that a process of one thread has run."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def _phase(
    case: Case,
    job: str,
    seconds: float,
    session: int,
    work: Callable[[float, int], tuple[int, float]],
) -> Moved:
    lasting = seconds * (AT_ONCE_FOR if case.at_once else PUSH_FOR if job == "+" else 1.0)
    misses = NEVER if case.at_once else DRY[case.where]
    cpu, served = time.process_time(), _cpu(session)
    messages, took = work(lasting, misses)
    return Moved(job, messages, took, time.process_time() - cpu, _cpu(session) - served)


def _client(gate: Gate, queue: str, url: str, case: Case, jobs: str, seconds: float) -> list[Moved]:
    """One client's phases, each after a gate."""
    connection = client(queue, url, case.durability)
    found: list[Moved] = []
    for job in jobs:
        call = connection.push if job == "+" else connection.pop

        def work(
            lasting: float, misses: int, call: Callable[[int], int] = call
        ) -> tuple[int, float]:
            begun = last = time.perf_counter()
            moved = missed = 0
            while (now := time.perf_counter()) - begun < lasting and missed < misses:
                if count := call(case.batch):
                    moved, missed, last = moved + count, 0, time.perf_counter()
                else:
                    missed += 1
            return moved, (now if not missed else last) - begun

        gate.wait()
        found.append(_phase(case, job, seconds, connection.session, work))
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
            for job in jobs:
                loop = f"loop_{'push' if job == '+' else 'pop'}_{self._case.batch}"

                def work(lasting: float, misses: int, loop: str = loop) -> tuple[int, float]:
                    call = f"CALL {loop}({lasting}, {misses}, 0, 0)"
                    return next(connection.execute(call.encode()))

                self._barrier.wait()
                session = connection.info.backend_pid
                found.append(_phase(self._case, job, self._seconds, session, work))
        self._found.append(found)


def _rate(phases: list[Moved]) -> float:
    moved = sum(phase.messages for phase in phases)
    return moved / max((phase.seconds for phase in phases), default=1.0)


def _cost(phases: list[Moved], clients: bool) -> float:
    """Microseconds of CPU a message: the sessions', and their clients' where there are any."""
    moved = sum(phase.messages for phase in phases)
    spent = sum(phase.session + phase.client * clients for phase in phases)
    return spent / max(moved, 1) * 1e6


class _Server:
    """The PostgreSQL of this question, while it is asked."""

    def __init__(self) -> None:
        self.url = ""
        self._naive_pushes: dict[Case, float] = {}

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
        clients = case.where == "clients"
        with connect(self.url, "delayed") as admin, self._snapshot(case.snapshot):
            before = self._log(admin)
            if clients:
                roles = [
                    Role(_client, (queue, self.url, case, jobs, seconds)) for jobs in _jobs(case)
                ]
                found = run_together(roles, timeout=300, preloaded="benchmarks.table_ring.queues")
            else:
                found = _Loops(self.url, case, seconds).run()
            log = self._log(admin) - before
        everything = [phase for phases in found for phase in phases]
        pushes = [phase for phase in everything if phase.job == "+"]
        pops = [phase for phase in everything if phase.job == "-"]
        also = {"pushes/s": _rate(pushes)}
        if queue == NAIVE:
            self._naive_pushes[case] = also["pushes/s"]
        elif self._naive_pushes.get(case):
            also["x its pushes"] = also["pushes/s"] / self._naive_pushes[case]
        also |= {"us a push": _cost(pushes, clients), "us a pop": _cost(pops, clients)}
        also["B of log"] = log / max(sum(phase.messages for phase in everything), 1)
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
        Case("server", 8, 100): None,
        Case("server", **at_once): 4.0,
        Case("server", **at_once, snapshot=True): 8.0,
    }
    for one, many, durability in ((1.0, 1.3, "delayed"), (1.0, None, "sync")):
        cases |= {
            Case("clients", 4, 1, durability): one,
            Case("clients", 4, 100, durability): many,
            Case("clients", **at_once, durability=durability): 1.0,
            Case("clients", **at_once, batch=100, durability=durability): 2.0,
        }
    cases |= {
        Case("clients", 1): 1.0,
        Case("clients", 8): 1.0,
        Case("clients", 1, 100): None,
        Case("clients", 8, 100): None,
        Case("clients", **at_once, snapshot=True): None,
        Case("clients", **at_once, batch=100, snapshot=True): None,
    }
    if settings.full:
        cases |= {Case("clients", n, batch, "sync"): None for n in (1, 8) for batch in (1, 100)}
        cases |= {Case("server", n, 100): None for n in (1, 4)}
        cases[Case("server", **at_once, durability="sync")] = None
    return cases


def _queues(case: Case) -> list[str]:
    """What is compared: scattered keys where one client waits for nothing else; loops of theirs."""
    left_out: set[str] = set()
    if case.where == "clients" and case.batch == 1:
        left_out.add(SCATTERED)
    if case.where == "clients" or case.batch > 1:
        left_out |= {INVENTORS, INVENTORS_INLINE}
    return [queue for queue in QUEUES if queue not in left_out]


def question(settings: Settings) -> Question:
    """The naive table is what ratios refer to; the ring in shared memory stands beside it."""
    server = _Server()
    # Each measurement makes its tables anew, which takes as long as it does.
    rounds = min(settings.rounds, 2)
    rows: list[Row] = []
    for case, factor in _cases(settings).items():
        naive = f"{NAIVE}, {case}"
        queues = _queues(case)
        targets = [Target(factor, naive)] if factor else []
        if INVENTORS in queues and not case.snapshot:
            targets.append(Target(1 / PRICE, f"{INVENTORS}, {case}"))
        for queue in queues:
            rows.append(
                Row(
                    f"{queue}, {case}",
                    "pops/s",
                    partial(server.measure, queue, case),
                    targets=tuple(targets) if queue == RING else (),
                    compare=() if queue == NAIVE else (naive,),
                    rounds=rounds,
                )
            )
    rows += sqlite_rows(settings)
    rows.append(Row("shmring.Ring, one at a time, two processes", "msg/s", _in_memory))
    return Question(
        "table",
        "How fast are rings of rows on PostgreSQL and SQLite?",
        rows,
        setup=server.running,
        warm_up=False,
    )
