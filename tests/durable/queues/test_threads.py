"""Threads that share a session or a queue, or meet its end."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from fixture_types import RunThread

from shmring.durable import AppendOnlyQueue, PersistentQueue
from shmring.errors import Closed


@pytest.fixture(autouse=True)
def _restless() -> Generator[None]:  # pyright: ignore[reportUnusedFunction]
    """Let threads change at almost every step."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def of(worker: int, items: list[bytes]) -> list[int]:
    """The numbers of a worker's items, in the order of the queue."""
    pairs = [item.split() for item in items]
    return [int(n) for who, n in pairs if int(who) == worker]


def close_under(
    workers: list[Any], q: PersistentQueue | AppendOnlyQueue, flushed: list[int]
) -> None:
    """Close the queue when two of the workers have flushed some items; it ends all of them."""
    while min(flushed) < 3:
        os.sched_yield()
    q.close()
    for worker in workers:
        with pytest.raises(Closed):
            worker.outcome()


def test_threads_that_share_a_session_lose_and_double_nothing(
    tmp_path: Path, thread: RunThread
) -> None:
    count, group = 300, 3
    with PersistentQueue(tmp_path, durability="delayed") as q, q.session() as s:

        def put(worker: int) -> None:
            for n in range(count):
                s.enqueue(b"%d %d" % (worker, n))
                if n % 7 == 0:
                    s.flush()

        for worker in [thread(put, worker) for worker in range(group)]:
            worker.outcome()
        s.flush()
        assert len(q) == group * count

        def take() -> list[bytes]:
            return list(iter(s.dequeue, None))

        parts = [worker.outcome() for worker in [thread(take) for _ in range(2)]]
        for part in parts:
            for worker in range(group):
                assert of(worker, part) == sorted(of(worker, part))
        everything = sorted(item for part in parts for item in part)
        assert everything == sorted(b"%d %d" % (w, n) for w in range(group) for n in range(count))


@pytest.mark.parametrize("durability", ["sync", "delayed"])
def test_queue_that_is_closed_under_its_threads_keeps_what_was_flushed(
    tmp_path: Path, durability: Any, thread: RunThread
) -> None:
    flushed = [0, 0]
    q = PersistentQueue(tmp_path, durability=durability, file_size=4000)
    with q.session() as s:
        s.enqueue_many([bytes(50_000)] * 20)
        s.flush()

    def put(worker: int) -> None:
        with q.session() as s:
            for n in range(1 << 30):
                s.enqueue(b"%d %d" % (worker, n))
                s.flush()
                flushed[worker] = n + 1

    def take() -> None:
        while True:
            with q.session() as s:
                s.dequeue()
                s.dequeue_many(5)

    workers = [thread(put, 0), thread(put, 1), thread(take), thread(take)]
    close_under(workers, q, flushed)
    with PersistentQueue(tmp_path) as q, q.session() as s:
        items = s.dequeue_many(1 << 30)
        assert items[:20] == [bytes(50_000)] * 20
        for worker in range(2):
            found = of(worker, items[20:])
            assert found == list(range(len(found)))
            assert flushed[worker] <= len(found) <= flushed[worker] + 1


def test_append_only_queue_that_is_closed_under_its_threads(
    tmp_path: Path, thread: RunThread
) -> None:
    flushed = [0, 0]
    q = AppendOnlyQueue(tmp_path / "queue")

    def put(worker: int) -> None:
        for n in range(1 << 30):
            q.enqueue(b"%d %d" % (worker, n))
            q.flush()
            flushed[worker] = n + 1

    def look() -> None:
        while True:
            with AppendOnlyQueue(tmp_path / "queue", readonly=True) as view:
                items = view.dequeue_many(1 << 30)
            for worker in range(2):
                assert of(worker, items) == sorted(of(worker, items))
            q.flush()  # until it is closed

    def compact() -> None:
        while True:
            q.compact()

    workers = [thread(put, 0), thread(put, 1), thread(look), thread(compact)]
    close_under(workers, q, flushed)
    with AppendOnlyQueue(tmp_path / "queue") as q:
        items = q.dequeue_many(1 << 30)
        for worker in range(2):
            found = of(worker, items)
            assert found == list(range(len(found)))
            assert flushed[worker] <= len(found) <= flushed[worker] + 1
