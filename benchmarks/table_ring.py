"""How fast is a TableRing, beside a naive queue table of INSERT and DELETE?

Every combination of queue, durability, connections and rows per call is one line of the answer:
all connections push for so many seconds, then all pop what is there. Ratios are to the naive
table with the same durability, connections and batch, in the same round; figures are medians.

    python benchmarks/table_ring.py [--json] [--seconds 0.5] [--rounds 3] [--database sqlite]

PostgreSQL runs in a temporary directory of its own and is stopped afterwards.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import sqlalchemy as sa
from sqlalchemy.pool import NullPool

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "durable"))
from postgres import postgres

from shmring.durable.table_ring import TableRing
from shmring.errors import Contended, Empty, Full

SLOTS = 100_000
MESSAGE = bytes(range(256)) + bytes(44)
QUEUES = ("naive", "naive, skip locked", "ring", "ring, scattered")
FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Case:
    """One arrangement; every queue gets the same."""

    durability: Any
    connections: int
    batch: int


@dataclass(frozen=True)
class Row:
    """One result, in messages a second."""

    database: str
    queue: str
    durability: str
    connections: int
    batch: int
    push: float
    pop: float
    both: float
    ratio_push: float
    ratio_pop: float
    ratio_both: float


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

    def __init__(self, url: str, durability: Any, *, skip_locked: bool) -> None:
        engine = sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
        self._connection = engine.connect()
        self._insert = "INSERT INTO naive (time, message) VALUES (:time, :message)"
        lock = ""
        if engine.dialect.name == "sqlite":
            self._run("PRAGMA busy_timeout = 10000")
            self._run("PRAGMA journal_mode = WAL")
            self._run(f"PRAGMA synchronous = {'FULL' if durability == 'sync' else 'NORMAL'}")
        else:
            self._run(f"SET synchronous_commit = {'on' if durability == 'sync' else 'off'}")
            self._insert = (
                "INSERT INTO naive (time, message)"
                " SELECT %(time)s, unnest(CAST(%(message)s AS bytea[]))"
            )
            lock = " FOR UPDATE SKIP LOCKED" if skip_locked else " FOR UPDATE"
        self._delete = (
            "DELETE FROM naive WHERE id IN"
            f" (SELECT id FROM naive ORDER BY id LIMIT {{}}{lock}) RETURNING message"
        )
        self._sqlite = engine.dialect.name == "sqlite"

    def _run(self, sql: str, parameters: Any = None) -> sa.CursorResult[*tuple[Any, ...]]:
        return self._connection.exec_driver_sql(sql, parameters)

    def push(self, batch: int) -> int:
        now = time.time_ns()
        if not self._sqlite and batch == 1:
            one = "INSERT INTO naive (time, message) VALUES (%(time)s, %(message)s)"
            self._run(one, {"time": now, "message": MESSAGE})
            return 1
        if not self._sqlite:
            self._run(self._insert, {"time": now, "message": [MESSAGE] * batch})
            return batch
        if batch > 1:
            self._run("BEGIN IMMEDIATE")
        self._run(self._insert, [{"time": now, "message": MESSAGE}] * batch)
        if batch > 1:
            self._run("COMMIT")
        return batch

    def pop(self, batch: int) -> int:
        while True:
            found = len(self._run(self._delete.format(batch)).all())
            # None may mean that others took those it waited for.
            if found or not self._run("SELECT EXISTS (SELECT 1 FROM naive)").scalar_one():
                return found


def client(queue: str, url: str, durability: Any) -> Client:
    """Open one connection to a queue."""
    if queue.startswith("ring"):
        return RingClient(url, durability)
    return NaiveClient(url, durability, skip_locked="skip" in queue)


def fresh(queue: str, url: str) -> None:
    """Begin with an empty queue."""
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    with engine.connect() as connection:
        with contextlib.suppress(FileNotFoundError):
            TableRing.drop(url)
        connection.exec_driver_sql("DROP TABLE IF EXISTS naive")
        if queue.startswith("ring"):
            TableRing.create(url, slots=SLOTS, scattered="scattered" in queue).close()
        else:
            kind = "INTEGER" if engine.dialect.name == "sqlite" else "BIGSERIAL"
            blob = "BLOB" if engine.dialect.name == "sqlite" else "BYTEA"
            connection.exec_driver_sql(
                f"CREATE TABLE naive (id {kind} PRIMARY KEY, time BIGINT, message {blob})"
            )
        if engine.dialect.name != "sqlite":
            # Both begin with a clean log, and with statistics.
            connection.exec_driver_sql("VACUUM ANALYZE")
            connection.exec_driver_sql("CHECKPOINT")


def work(
    queue: str, url: str, case: Case, verb: str, seconds: float, barrier: Any, answers: Any
) -> None:
    """One connection's share of a phase, in a process of its own."""
    try:
        connection = client(queue, url, case.durability)
        call: Callable[[int], int] = connection.push if verb == "push" else connection.pop
        barrier.wait(60)
        begin = time.perf_counter()
        moved = 0
        while time.perf_counter() - begin < seconds:
            try:
                count = call(case.batch)
            except Contended:
                continue
            moved += count
            if not count:
                break
        answers.put((moved, time.perf_counter() - begin))
    except BaseException as error:
        barrier.abort()
        answers.put(repr(error))


def phase(queue: str, url: str, case: Case, verb: str, seconds: float) -> float:
    """Return the messages a second of all connections together."""
    barrier, answers = FORK.Barrier(case.connections), FORK.Queue()
    workers = [
        FORK.Process(target=work, args=(queue, url, case, verb, seconds, barrier, answers))
        for _ in range(case.connections)
    ]
    for worker in workers:
        worker.start()
    try:
        found = [answers.get(timeout=seconds + 90) for _ in workers]
    finally:
        for worker in workers:
            worker.join(5)
            worker.kill()
    if broken := [answer for answer in found if isinstance(answer, str)]:
        raise RuntimeError(f"{queue} {verb}: {broken[0]}")
    return sum(moved for moved, _ in found) / max(elapsed for _, elapsed in found)


@contextlib.contextmanager
def database(kind: str) -> Generator[str]:
    """Lend the URL of a database that is gone afterwards."""
    if kind == "postgresql":
        with postgres() as server:
            yield server.url
    else:
        with tempfile.TemporaryDirectory() as directory:
            yield f"sqlite:///{directory}/bench.db"


def measure(url: str, kind: str, case: Case, seconds: float, rounds: int) -> list[Row]:
    """Measure all queues in turn, several rounds."""
    queues = [queue for queue in QUEUES if kind == "postgresql" or "skip" not in queue]
    found: dict[str, list[tuple[float, float, float]]] = {queue: [] for queue in queues}
    for _ in range(rounds):
        for queue in queues:
            fresh(queue, url)
            push, pop = (phase(queue, url, case, verb, seconds) for verb in ("push", "pop"))
            # A message costs its push and its pop: what the same connections sustain of both.
            found[queue].append((push, pop, 1 / (1 / push + 1 / pop)))
    rows: list[Row] = []
    for queue in queues:
        figures = [statistics.median(values) for values in zip(*found[queue], strict=True)]
        ratios = [
            statistics.median(
                own[k] / naive[k] for own, naive in zip(found[queue], found["naive"], strict=True)
            )
            for k in range(3)
        ]
        rows.append(Row(kind, queue, **asdict(case), **_figures(figures, ratios)))
    return rows


def _figures(figures: list[float], ratios: list[float]) -> dict[str, float]:
    names = ("push", "pop", "both")
    return {
        **{name: round(value) for name, value in zip(names, figures, strict=True)},
        **{f"ratio_{name}": round(value, 2) for name, value in zip(names, ratios, strict=True)},
    }


def main() -> None:
    """Print a line a result."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--seconds", type=float, default=0.5, help="length of each phase")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--database", choices=("postgresql", "sqlite"), default="postgresql")
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 100], help="rows a call")
    parser.add_argument("--durability", nargs="+", default=["sync", "delayed"])
    options = parser.parse_args()
    if not options.json:
        head = ["push/s", "pop/s", "both/s", "|", "ratio", "to", "naive:", "push", "pop", "both"]
        print(f"{'queue':20} {'durability':10} conn batch " + " ".join(head))
    with database(options.database) as url:
        for durability in options.durability:
            for batch in options.batch:
                for connections in options.connections:
                    case = Case(durability, connections, batch)
                    for row in measure(
                        url, options.database, case, options.seconds, options.rounds
                    ):
                        print(json.dumps(asdict(row)) if options.json else _line(row), flush=True)


def _line(row: Row) -> str:
    return (
        f"{row.queue:20} {row.durability:10} {row.connections:4} {row.batch:5}"
        f" {row.push:9.0f} {row.pop:9.0f} {row.both:9.0f}"
        f" | {row.ratio_push:6.2f} {row.ratio_pop:6.2f} {row.ratio_both:6.2f}"
    )


if __name__ == "__main__":
    main()
