"""How fast are the durable queues, beside plain writes, SQLite and persist-queue?

Each question is asked of every contender in turn, several rounds in one run; a row gives the
median and its ratio to the plain writes with the same syncs.  ``--json`` prints one row a line.

    python benchmarks/durable.py [--json] [--full] [--rounds 5] [--dir DIR] [question ...]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sqlite3
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from shmring.durable import AppendOnlyQueue, PersistentQueue

Contender = Callable[[Path], float]


@dataclass(frozen=True)
class Size:
    """How much work a run does."""

    bulk_items: int
    large_items: int
    commits: int


@dataclass(frozen=True)
class Row:
    """One result."""

    question: str
    contender: str
    value: float
    unit: str
    ratio: float
    least: float
    most: float


def import_persistqueue() -> Any:
    """Return the module, or None where it is not installed."""
    try:
        import persistqueue
    except ImportError:
        return None
    return persistqueue


PERSISTQUEUE = import_persistqueue()


def timed(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def items_of_7k(count: int) -> Iterator[bytes]:
    block = os.urandom(7000)
    for i in range(count):
        yield i.to_bytes(8, "little") + block[8:]


def large_items(count: int) -> list[bytes]:
    block = os.urandom(1 << 20)
    return [block[: (512 << 10) + i * 7919 % (512 << 10)] for i in range(count)]


# One flush of many items of 7 KB, in MB/s.


def bulk_plain(count: int, path: Path) -> float:
    fd = os.open(path / "plain", os.O_CREAT | os.O_WRONLY)

    def work() -> None:
        block: list[bytes] = []
        for item in items_of_7k(count):
            block.append(item)
            if len(block) == 150:
                os.writev(fd, block)
                block.clear()
        if block:
            os.writev(fd, block)
        os.fdatasync(fd)

    seconds = timed(work)
    os.close(fd)
    return count * 7e-3 / seconds


def bulk_persistent(count: int, path: Path) -> float:
    def work() -> None:
        with q.session() as s:
            for item in items_of_7k(count):
                s.enqueue(item)
            s.flush()

    with PersistentQueue(path / "q") as q:
        return count * 7e-3 / timed(work)


def bulk_append_only(count: int, path: Path) -> float:
    def work() -> None:
        for item in items_of_7k(count):
            q.enqueue(item)
        q.flush()

    with AppendOnlyQueue(path / "q") as q:
        return count * 7e-3 / timed(work)


def open_sqlite(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path / "q.sqlite", isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    db.execute("CREATE TABLE q (id INTEGER PRIMARY KEY, data BLOB)")
    return db


def bulk_sqlite(count: int, path: Path) -> float:
    db = open_sqlite(path)

    def work() -> None:
        db.execute("BEGIN")
        db.executemany("INSERT INTO q (data) VALUES (?)", ((i,) for i in items_of_7k(count)))
        db.execute("COMMIT")

    seconds = timed(work)
    db.close()
    return count * 7e-3 / seconds


def bulk_persistqueue(count: int, path: Path) -> float:
    q = PERSISTQUEUE.SQLiteQueue(str(path), auto_commit=False)

    def work() -> None:
        for item in items_of_7k(count):
            q.put(item)
        q.task_done()

    return count * 7e-3 / timed(work)


# Items of 512 KB to 1 MB in and out, a sync for each eight of them, in MB/s.


def large_plain(count: int, path: Path) -> float:
    items = large_items(count)
    fd = os.open(path / "plain", os.O_CREAT | os.O_RDWR)

    def work() -> None:
        for i in range(0, count, 8):
            os.writev(fd, items[i : i + 8])
            os.fdatasync(fd)
        os.lseek(fd, 0, os.SEEK_SET)
        for item in items:
            os.read(fd, len(item))

    seconds = timed(work)
    os.close(fd)
    return sum(map(len, items)) / 1e6 / seconds


def large_persistent(count: int, path: Path) -> float:
    items = large_items(count)

    def work() -> None:
        with q.session() as s:
            for i in range(0, count, 8):
                for item in items[i : i + 8]:
                    s.enqueue(item)
                s.flush()
            for i in range(0, count, 8):
                for _ in items[i : i + 8]:
                    s.dequeue()
                s.flush()

    with PersistentQueue(path / "q") as q:
        return sum(map(len, items)) / 1e6 / timed(work)


def large_append_only(count: int, path: Path) -> float:
    items = large_items(count)

    def work() -> None:
        for i in range(0, count, 8):
            for item in items[i : i + 8]:
                q.enqueue(item)
            q.flush()
        for i in range(0, count, 8):
            for _ in items[i : i + 8]:
                q.dequeue()
            q.flush()

    with AppendOnlyQueue(path / "q") as q:
        return sum(map(len, items)) / 1e6 / timed(work)


def large_sqlite(count: int, path: Path) -> float:
    items = large_items(count)
    db = open_sqlite(path)

    def work() -> None:
        for i in range(0, count, 8):
            db.execute("BEGIN")
            db.executemany("INSERT INTO q (data) VALUES (?)", ((x,) for x in items[i : i + 8]))
            db.execute("COMMIT")
        for _ in range(0, count, 8):
            db.execute("BEGIN")
            rows = db.execute("SELECT id, data FROM q ORDER BY id LIMIT 8").fetchall()
            db.execute("DELETE FROM q WHERE id <= ?", (rows[-1][0],))
            db.execute("COMMIT")

    seconds = timed(work)
    db.close()
    return sum(map(len, items)) / 1e6 / seconds


def large_persistqueue(count: int, path: Path) -> float:
    items = large_items(count)
    q = PERSISTQUEUE.SQLiteQueue(str(path), auto_commit=False)

    def work() -> None:
        for i in range(0, count, 8):
            for item in items[i : i + 8]:
                q.put(item)
            q.task_done()
        for i in range(0, count, 8):
            for _ in items[i : i + 8]:
                q.get(block=False)
            q.task_done()

    return sum(map(len, items)) / 1e6 / timed(work)


# One item of 300 bytes a commit, in commits/s.

ITEM = bytes(range(250)) + bytes(50)


def commits_plain(count: int, path: Path) -> float:
    fd = os.open(path / "plain", os.O_CREAT | os.O_WRONLY)

    def work() -> None:
        for _ in range(count):
            os.write(fd, ITEM)
            os.fdatasync(fd)

    seconds = timed(work)
    os.close(fd)
    return count / seconds


def commits_plain_in_place(count: int, path: Path) -> float:
    fd = os.open(path / "plain", os.O_CREAT | os.O_WRONLY)
    os.write(fd, bytes(count * len(ITEM)))
    os.fsync(fd)

    def work() -> None:
        for i in range(count):
            os.pwrite(fd, ITEM, i * len(ITEM))
            os.fdatasync(fd)

    seconds = timed(work)
    os.close(fd)
    return count / seconds


def commits_persistent(count: int, path: Path, *, threads: int = 1, delayed: bool = False) -> float:
    def commits() -> None:
        with q.session() as s:
            for _ in range(count // threads):
                s.enqueue(ITEM)
                s.flush()

    def work() -> None:
        workers = [threading.Thread(target=commits) for _ in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        q.sync()

    with PersistentQueue(path / "q", durability="delayed" if delayed else "sync") as q:
        return count / timed(work)


def commits_append_only(count: int, path: Path) -> float:
    def work() -> None:
        for _ in range(count):
            q.enqueue(ITEM)
            q.flush()

    with AppendOnlyQueue(path / "q") as q:
        return count / timed(work)


def commits_sqlite(count: int, path: Path) -> float:
    db = open_sqlite(path)

    def work() -> None:
        for _ in range(count):
            db.execute("INSERT INTO q (data) VALUES (?)", (ITEM,))

    seconds = timed(work)
    db.close()
    return count / seconds


def commits_persistqueue(count: int, path: Path) -> float:
    q = PERSISTQUEUE.SQLiteQueue(str(path), auto_commit=True)

    def work() -> None:
        for _ in range(count):
            q.put(ITEM)

    return count / timed(work)


def commits_persistqueue_file(count: int, path: Path) -> float:
    q = PERSISTQUEUE.Queue(str(path / "q"), tempdir=str(path))

    def work() -> None:
        for _ in range(count):
            q.put(ITEM)

    return count / timed(work)


def questions(size: Size) -> dict[str, tuple[str, dict[str, Contender]]]:
    """Return each question's unit and contenders; the first is what ratios refer to."""
    bulk: dict[str, Contender] = {
        "plain": partial(bulk_plain, size.bulk_items),
        "PersistentQueue": partial(bulk_persistent, size.bulk_items),
        "AppendOnlyQueue": partial(bulk_append_only, size.bulk_items),
        "sqlite-wal": partial(bulk_sqlite, size.bulk_items),
    }
    large: dict[str, Contender] = {
        "plain": partial(large_plain, size.large_items),
        "PersistentQueue": partial(large_persistent, size.large_items),
        "AppendOnlyQueue": partial(large_append_only, size.large_items),
        "sqlite-wal": partial(large_sqlite, size.large_items),
    }
    n = size.commits
    commits: dict[str, Contender] = {
        "plain": partial(commits_plain, n),
        "plain-in-place": partial(commits_plain_in_place, n),
        "PersistentQueue": partial(commits_persistent, n),
        "PersistentQueue-4-threads": partial(commits_persistent, n, threads=4),
        "PersistentQueue-16-threads": partial(commits_persistent, n, threads=16),
        "PersistentQueue-delayed": partial(commits_persistent, n, delayed=True),
        "AppendOnlyQueue": partial(commits_append_only, n),
        "sqlite-wal": partial(commits_sqlite, n),
    }
    if PERSISTQUEUE is not None:
        bulk["persist-queue-sqlite"] = partial(bulk_persistqueue, size.bulk_items)
        large["persist-queue-sqlite"] = partial(large_persistqueue, size.large_items)
        commits["persist-queue-sqlite"] = partial(commits_persistqueue, n)
        commits["persist-queue-file"] = partial(commits_persistqueue_file, n)
    return {
        "one-flush-of-7-kb-items": ("MB/s", bulk),
        "large-items-in-and-out": ("MB/s", large),
        "one-item-commits": ("commits/s", commits),
    }


def ask(
    question: str, unit: str, contenders: dict[str, Contender], rounds: int, where: str
) -> Iterator[Row]:
    results: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    for round_number in range(-1, rounds):
        # Whoever comes first pays for memory that the machine has not touched yet, so the first
        # round does not count and the order changes.
        names = [*names[1:], names[0]]
        for name in names:
            path = Path(tempfile.mkdtemp(prefix="durable.", dir=where))
            try:
                value = contenders[name](path)
                if round_number >= 0:
                    results[name].append(value)
            finally:
                shutil.rmtree(path)
            os.sync()
    base = statistics.median(next(iter(results.values())))
    for name, values in results.items():
        value = statistics.median(values)
        yield Row(question, name, value, unit, value / base, min(values), max(values))


def main() -> None:
    """Ask the questions named on the command line, or all."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("questions", nargs="*")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--full", action="store_true", help="100,000 and 5,000 items")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dir", default=None, help="a directory on the disk to measure")
    options = parser.parse_args()
    size = Size(100_000, 5_000, 3_200) if options.full else Size(20_000, 200, 1_600)
    for question, (unit, contenders) in questions(size).items():
        if options.questions and question not in options.questions:
            continue
        for row in ask(question, unit, contenders, options.rounds, options.dir):
            if options.json:
                print(json.dumps(row.__dict__), flush=True)
            else:
                print(
                    f"{row.question:26} {row.contender:28} {row.value:10.0f} {row.unit:10} "
                    f"x {row.ratio:5.2f}   ({row.least:.0f} to {row.most:.0f})",
                    flush=True,
                )


if __name__ == "__main__":
    sys.exit(main())
