"""How fast are the durable queues, beside plain writes, SQLite, LMDB, persist-queue and diskcache?

All sync as often, as durable_peers.py opens them.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count as counted_up
from pathlib import Path

from benchmarks.disk import folder, warm
from benchmarks.durable_peers import (
    DISKCACHE,
    LMDB,
    PERSIST_QUEUE,
    SQLITE,
    number_key,
    open_diskcache,
    open_lmdb,
    open_sqlite,
    persist_queue,
)
from benchmarks.harness import Question, Row, Sample, Settings, Target

__all__ = ["bulk", "commits", "large"]

PLAIN = "plain writes"


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


def large_items(count: int) -> list[bytes]:
    """Items of 512 KB to 1 MB; in memory they share nothing."""
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


def bulk_persistqueue(count: int, path: Path) -> float:
    q = persist_queue(path, auto_commit=False)

    def work() -> None:
        for item in items_of_7k(count):
            q.put(item)
        q.task_done()

    return count * 7e-3 / timed(work)


def bulk_lmdb(count: int, path: Path) -> float:
    db = open_lmdb(path)

    def work() -> None:
        with db.begin(write=True) as txn:
            for i, item in enumerate(items_of_7k(count)):
                txn.put(number_key(i), item, append=True)

    seconds = timed(work)
    db.close()
    return count * 7e-3 / seconds


def bulk_diskcache(count: int, path: Path) -> float:
    q = open_diskcache(path)

    def work() -> None:
        with q.transact():
            for item in items_of_7k(count):
                q.append(item)

    seconds = timed(work)
    q.cache.close()
    return count * 7e-3 / seconds


# Items of 512 KB to 1 MB in and out, a sync for each eight of them, in MB/s.


def large_plain(count: int, path: Path) -> float:
    items = large_items(count)
    fd = os.open(path / "plain", os.O_CREAT | os.O_RDWR)

    def work() -> None:
        for i in range(0, count, 8):
            for item in items[i : i + 8]:
                os.write(fd, item)
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

    from shmring.durable import PersistentQueue

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

    from shmring.durable import AppendOnlyQueue

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
    q = persist_queue(path, auto_commit=False)

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


def large_lmdb(count: int, path: Path) -> float:
    items = large_items(count)
    db = open_lmdb(path)

    def work() -> None:
        for i in range(0, count, 8):
            with db.begin(write=True) as txn:
                for j, item in enumerate(items[i : i + 8], i):
                    txn.put(number_key(j), item, append=True)
        for _ in range(0, count, 8):
            with db.begin(write=True) as txn, txn.cursor() as cursor:
                for _ in range(8):
                    if cursor.first():
                        cursor.value()
                        cursor.delete()

    seconds = timed(work)
    db.close()
    return sum(map(len, items)) / 1e6 / seconds


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


def commits_persistqueue(seconds: float, path: Path, *, threads: int) -> float:
    q = persist_queue(path, auto_commit=True, multithreading=True)
    return _in_threads(threads, lambda: _for(seconds, lambda: q.put(ITEM)))


def commits_lmdb(seconds: float, path: Path) -> float:
    db = open_lmdb(path)
    keys = counted_up()

    def commit() -> None:
        with db.begin(write=True) as txn:
            txn.put(number_key(next(keys)), ITEM, append=True)

    rate = _for(seconds, commit)
    db.close()
    return rate


def commits_diskcache(seconds: float, path: Path) -> float:
    q = open_diskcache(path)
    rate = _for(seconds, lambda: q.append(ITEM))
    q.cache.close()
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
    targets = Target(0.7, PLAIN), Target(5.0, PERSIST_QUEUE), Target(1.0, SQLITE)

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
            row(LMDB, bulk_lmdb),
            row(DISKCACHE, bulk_diskcache),
            # It commits, and syncs, each put, whatever auto_commit says; so fewer do.
            _row(PERSIST_QUEUE, "MB/s", _counted(count // 20, bulk_persistqueue)),
        ],
        warm_up=not settings.quick,
    )


def large(settings: Settings) -> Question:
    """Large items in and out, a sync for each eight of them."""
    count = 5_000 if settings.full else 24 if settings.quick else 200
    targets = Target(0.7, PLAIN), Target(5.0, PERSIST_QUEUE), Target(1.0, SQLITE)

    def row(name: str, work: Callable[[int, Path], float], *targets: Target) -> Row:
        return _row(name, "MB/s", _counted(count, work), *targets, nbytes=2 * (count << 20))

    return Question(
        "large",
        f"How fast are {count:,} items of 512 KB to 1 MB in and out, eight a flush?",
        [
            row(PLAIN, large_plain),
            row("PersistentQueue", large_persistent, *targets),
            row("AppendOnlyQueue", large_append_only, *targets),
            row(SQLITE, large_sqlite),
            row(LMDB, large_lmdb),
            row(PERSIST_QUEUE, large_persistqueue),
        ],
        warm_up=not settings.quick,
    )


def commits(settings: Settings) -> Question:
    """One item a transaction: as fast as the disk syncs, unless syncs are shared."""
    del settings
    rate = "commits/s"
    plain = f"{PLAIN}, a sync each"
    others = f"{PERSIST_QUEUE}, 16 threads"
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
                Target(5.0, PERSIST_QUEUE),
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
                Target(5.0, others),
            ),
            _row(
                "PersistentQueue, delayed",
                rate,
                partial(commits_persistent, threads=1, delayed=True),
                compare=(plain,),
            ),
            _row("AppendOnlyQueue", rate, commits_append_only, Target(0.8, plain)),
            _row(SQLITE, rate, commits_sqlite),
            _row(LMDB, rate, commits_lmdb),
            _row(DISKCACHE, rate, commits_diskcache),
            _row(PERSIST_QUEUE, rate, partial(commits_persistqueue, threads=1)),
            _row(others, rate, partial(commits_persistqueue, threads=16)),
        ],
    )
