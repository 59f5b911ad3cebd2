"""How fast are the durable queues, beside plain writes and SQLite, which sync as often?"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count as counted_up
from pathlib import Path

from benchmarks.disk import folder, warm
from benchmarks.harness import Question, Row, Sample, Settings, Target

__all__ = ["bulk", "commits"]

PLAIN = "plain writes"
SQLITE = "SQLite, WAL, synchronous=FULL"


def open_sqlite(path: Path) -> sqlite3.Connection:
    """A table of numbered blobs."""
    db = sqlite3.connect(path / "q.sqlite", isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    db.execute("CREATE TABLE q (id INTEGER PRIMARY KEY, data BLOB)")
    return db


def timed(work: Callable[[], object]) -> float:
    """Seconds that it takes."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def items_of_7k(count: int) -> Iterator[bytes]:
    """Items of 7,000 bytes, all different."""
    block = os.urandom(7000)
    for i in range(count):
        yield i.to_bytes(8, "little") + block[8:]


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

    from shmring.durable import PersistentQueue

    with PersistentQueue(path / "q") as q:
        return count * 7e-3 / timed(work)


def bulk_append_only(count: int, path: Path) -> float:
    def work() -> None:
        for item in items_of_7k(count):
            q.enqueue(item)
        q.flush()

    from shmring.durable import AppendOnlyQueue

    with AppendOnlyQueue(path / "q") as q:
        return count * 7e-3 / timed(work)


def bulk_sqlite(count: int, path: Path) -> float:
    db = open_sqlite(path)

    def work() -> None:
        db.execute("BEGIN")
        db.executemany("INSERT INTO q (data) VALUES (?)", ((i,) for i in items_of_7k(count)))
        db.execute("COMMIT")

    seconds = timed(work)
    db.close()
    return count * 7e-3 / seconds


# One item of 300 bytes a commit, in commits/s.

ITEM = bytes(range(250)) + bytes(50)
AT_A_TIME = 10  # commits between looks at the clock


def _for(seconds: float, commit: Callable[[], object]) -> float:
    """Commits a second."""
    count = 0
    begun = time.perf_counter()
    while (took := time.perf_counter() - begun) < seconds:
        for _ in range(AT_A_TIME):
            commit()
        count += AT_A_TIME
    return count / took


def commits_plain(seconds: float, path: Path) -> float:
    fd = os.open(path / "plain", os.O_CREAT | os.O_WRONLY)

    def commit() -> None:
        os.write(fd, ITEM)
        os.fdatasync(fd)

    rate = _for(seconds, commit)
    os.close(fd)
    return rate


def commits_overwritten(seconds: float, path: Path) -> float:
    """A sync each, and no file that grows: as often as this disk syncs at all."""
    fd = os.open(path / "plain", os.O_CREAT | os.O_WRONLY)
    size = 1 << 20
    os.pwrite(fd, bytes(size), 0)
    os.fsync(fd)
    places = counted_up()

    def commit() -> None:
        os.pwrite(fd, ITEM, next(places) * len(ITEM) % (size - len(ITEM)))
        os.fdatasync(fd)

    rate = _for(seconds, commit)
    os.close(fd)
    return rate


def _in_threads(threads: int, work: Callable[[], float]) -> float:
    """The sum of what each thread reaches."""
    rates: list[float] = []
    workers = [threading.Thread(target=lambda: rates.append(work())) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(rates)


def commits_persistent(seconds: float, path: Path, *, threads: int, delayed: bool = False) -> float:
    from shmring.durable import PersistentQueue

    def work() -> float:
        with q.session() as s:

            def commit() -> None:
                s.enqueue(ITEM)
                s.flush()

            return _for(seconds, commit)

    with PersistentQueue(path / "q", durability="delayed" if delayed else "sync") as q:
        return _in_threads(threads, work)


def commits_append_only(seconds: float, path: Path) -> float:
    from shmring.durable import AppendOnlyQueue

    def commit() -> None:
        q.enqueue(ITEM)
        q.flush()

    with AppendOnlyQueue(path / "q") as q:
        return _for(seconds, commit)


def commits_sqlite(seconds: float, path: Path) -> float:
    db = open_sqlite(path)
    insert = "INSERT INTO q (data) VALUES (?)"
    rate = _for(seconds, lambda: db.execute(insert, (ITEM,)))
    db.close()
    return rate


def _row(
    name: str,
    unit: str,
    run: Callable[[float, Path], float],
    *targets: Target,
    compare: tuple[str, ...] = (),
    nbytes: int = 0,
) -> Row:
    """A row that needs `nbytes` of memory, in the page cache and beside it."""

    def sample(seconds: float) -> Sample:
        with folder() as path:
            warm(nbytes)
            return Sample(run(seconds, path))

    return Row(name, unit, sample, targets, compare=compare)


def _counted(count: int, work: Callable[[int, Path], float]) -> Callable[[float, Path], float]:
    return lambda seconds, path: work(count, path)


def bulk(settings: Settings) -> Question:
    """Many items in one flush."""
    count = 100_000 if settings.full else 2_000 if settings.quick else 20_000
    targets = Target(0.7, PLAIN), Target(1.0, SQLITE)

    def row(name: str, work: Callable[[int, Path], float], *targets: Target) -> Row:
        return _row(name, "MB/s", _counted(count, work), *targets, nbytes=count * 7000)

    return Question(
        "bulk",
        f"How fast are {count:,} items of 7 KB in one flush?",
        [
            row(PLAIN, bulk_plain),
            row("PersistentQueue", bulk_persistent, *targets),
            row("AppendOnlyQueue", bulk_append_only, *targets),
            row(SQLITE, bulk_sqlite),
        ],
        warm_up=not settings.quick,
    )


def commits(settings: Settings) -> Question:
    """One item a transaction: as fast as the disk syncs, unless syncs are shared."""
    del settings
    rate = "commits/s"
    plain = f"{PLAIN}, a sync each"
    return Question(
        "commits",
        "How many transactions of one 300-byte item a second?",
        [
            _row(plain, rate, commits_plain),
            _row(f"{PLAIN} over zeros, a sync each", rate, commits_overwritten, compare=(plain,)),
            _row(
                "PersistentQueue",
                rate,
                partial(commits_persistent, threads=1),
                Target(0.8, plain),
                Target(1.0, SQLITE),
            ),
            _row(
                "PersistentQueue, 4 threads",
                rate,
                partial(commits_persistent, threads=4),
                compare=(plain,),
            ),
            _row(
                "PersistentQueue, 16 threads",
                rate,
                partial(commits_persistent, threads=16),
                Target(2.0, plain),
            ),
            _row(
                "PersistentQueue, delayed",
                rate,
                partial(commits_persistent, threads=1, delayed=True),
                compare=(plain,),
            ),
            _row("AppendOnlyQueue", rate, commits_append_only, Target(0.8, plain)),
            _row(SQLITE, rate, commits_sqlite),
        ],
    )
