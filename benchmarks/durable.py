"""How fast are the durable queues, beside plain writes and SQLite, which sync as often?"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.disk import folder
from benchmarks.harness import Question, Row, Sample, Settings, Target

PLAIN = "plain writes"
SQLITE = "SQLite, WAL, synchronous=FULL"


def open_sqlite(path: Path) -> sqlite3.Connection:
    """A table of numbered blobs."""
    db = sqlite3.connect(path / "q.sqlite", isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    db.execute("CREATE TABLE q (id INTEGER PRIMARY KEY, data BLOB)")
    return db


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
) -> Row:
    def sample(seconds: float) -> Sample:
        with folder() as path:
            return Sample(run(seconds, path))

    return Row(name, unit, sample, targets, compare=compare)


def question(settings: Settings) -> Question:
    """One item a transaction: as fast as the disk syncs, unless syncs are shared."""
    del settings
    rate = "commits/s"
    plain = f"{PLAIN}, a sync each"
    return Question(
        "commits",
        "How many transactions of one 300-byte item a second?",
        [
            _row(plain, rate, commits_plain),
            _row(
                "PersistentQueue",
                rate,
                partial(commits_persistent, threads=1),
                Target(0.8, plain),
                Target(1.0, SQLITE),
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
