"""What does an item of 300 bytes cost the processor on its way into a durable queue, and out of it?

CPU time of the process, the kernel's for it included; the disk's pace, the same for all, is beside
it as wall time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.disk import folder
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

__all__ = ["question"]

A_FLUSH = 10_000
ITEM_BYTES = 300
# It commits, and syncs, each item.
FEWER = 100

Put = Callable[[list[bytes]], object]
Take = Callable[[int], object]
Ends = tuple[Put, Take]


def _items() -> list[bytes]:
    block = os.urandom(ITEM_BYTES)
    return [i.to_bytes(8, "little") + block[8:] for i in range(A_FLUSH)]


@contextmanager
def _persistent(path: Path, *, many: bool) -> Iterator[Ends]:
    from shmring.durable import PersistentQueue

    with PersistentQueue(path / "q") as q, q.session() as s:
        yield _both(s, many=many)


@contextmanager
def _append_only(path: Path, *, many: bool) -> Iterator[Ends]:
    from shmring.durable import AppendOnlyQueue

    with AppendOnlyQueue(path / "q") as q:
        yield _both(q, many=many)


def _both(queue: Any, *, many: bool) -> Ends:
    """The ends of one of ours: items in batches, or one at a time."""

    def put_many(items: list[bytes]) -> None:
        queue.enqueue_many(items)
        queue.flush()

    def take_many(count: int) -> None:
        queue.dequeue_many(count)
        queue.flush()

    def put(items: list[bytes]) -> None:
        for item in items:
            queue.enqueue(item)
        queue.flush()

    def take(count: int) -> None:
        for _ in range(count):
            queue.dequeue()
        queue.flush()

    return (put_many, take_many) if many else (put, take)


@contextmanager
def _sqlite(path: Path) -> Iterator[Ends]:
    def put(items: list[bytes]) -> None:
        db.execute("BEGIN")
        db.executemany("INSERT INTO q (data) VALUES (?)", ((item,) for item in items))
        db.execute("COMMIT")

    def take(count: int) -> None:
        db.execute("BEGIN")
        rows = db.execute("SELECT id, data FROM q ORDER BY id LIMIT ?", (count,)).fetchall()
        db.execute("DELETE FROM q WHERE id <= ?", (rows[-1][0],))
        db.execute("COMMIT")

    with closing(open_sqlite(path)) as db:
        yield put, take


@contextmanager
def _lmdb(path: Path) -> Iterator[Ends]:
    numbers = 0

    def put(items: list[bytes]) -> None:
        nonlocal numbers
        with db.begin(write=True) as txn, txn.cursor() as cursor:
            keys = map(number_key, range(numbers, numbers + len(items)))
            cursor.putmulti(zip(keys, items, strict=True), append=True)
        numbers += len(items)

    def take(count: int) -> None:
        with db.begin(write=True) as txn, txn.cursor() as cursor:
            cursor.first()
            for _ in range(count):
                cursor.value()
                cursor.delete()

    with closing(open_lmdb(path)) as db:
        yield put, take


@contextmanager
def _persist_queue(path: Path) -> Iterator[Ends]:
    q = persist_queue(path, auto_commit=False)

    def put(items: list[bytes]) -> None:
        for item in items:
            q.put(item)
        q.task_done()

    def take(count: int) -> None:
        for _ in range(count):
            q.get(block=False)
        q.task_done()

    yield put, take
    q.close()


@contextmanager
def _diskcache(path: Path) -> Iterator[Ends]:
    q = open_diskcache(path)

    def put(items: list[bytes]) -> None:
        with q.transact():
            q.extend(items)

    def take(count: int) -> None:
        with q.transact():
            for _ in range(count):
                q.popleft()

    yield put, take
    q.cache.close()


def _timed(work: Callable[[], object], count: int) -> Sample:
    """Microseconds an item."""
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return Sample(cpu / count * 1e6, {"us wall": wall / count * 1e6})


@dataclass
class _Contestant:
    """Measures both ways at once; the row of the way out shows what the row of the way in found."""

    open: Callable[[Path], Any]
    flushes: int
    items: list[bytes] = field(default_factory=_items)
    out: Sample | None = None

    def way_in(self, seconds: float) -> Sample:
        del seconds
        count = self.flushes * len(self.items)
        with folder() as path, self.open(path) as (put, take):
            came = _timed(lambda: [put(self.items) for _ in range(self.flushes)], count)
            self.out = _timed(lambda: [take(len(self.items)) for _ in range(self.flushes)], count)
        return came

    def way_out(self, seconds: float) -> Sample:
        del seconds
        if self.out is None:
            raise RuntimeError("the way in was not measured")
        return self.out


def _rows(name: str, contestant: _Contestant, limit: float | None = None, *peers: str) -> list[Row]:
    targets = (Target(limit),) if limit is not None else ()
    ways = {"in": contestant.way_in, "out": contestant.way_out}
    return [
        Row(
            f"{name}: {way}",
            "us CPU",
            run,
            targets,
            lower_is_better=True,
            compare=tuple(f"{peer}: {way}" for peer in peers),
        )
        for way, run in ways.items()
    ]


def question(settings: Settings) -> Question:
    """Ours in batches and one at a time, and what else there is, 10,000 items a flush."""
    flushes = 2 if settings.quick else 100 if settings.full else 20
    peers = LMDB, SQLITE

    def ours(name: str, opened: Callable[..., Any]) -> list[Row]:
        batches = _Contestant(partial(opened, many=True), flushes)
        single = _Contestant(partial(opened, many=False), flushes)
        return [
            *_rows(f"{name}, batches", batches, 0.4, *peers),
            *_rows(f"{name}, one at a time", single, 1.0, *peers),
        ]

    few = _Contestant(_persist_queue, 1, _items()[:FEWER])
    return Question(
        "items",
        f"What does an item of {ITEM_BYTES} bytes cost, {A_FLUSH:,} a flush?",
        [
            *ours("PersistentQueue", _persistent),
            *ours("AppendOnlyQueue", _append_only),
            *_rows(LMDB, _Contestant(_lmdb, flushes)),
            *_rows(SQLITE, _Contestant(_sqlite, flushes)),
            *_rows(DISKCACHE, _Contestant(_diskcache, 1)),
            *_rows(PERSIST_QUEUE, few),
        ],
    )
