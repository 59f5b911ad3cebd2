"""Items that tests put into queues, and reading a queue's items."""

from __future__ import annotations

from typing import Any

from shmring.durable import AppendOnlyQueue, PersistentQueue


def put(queue: Any, *items: bytes) -> None:
    """Flush these as one transaction; a session does as well as its queue."""
    if isinstance(queue, PersistentQueue):
        with queue.session() as s:
            put(s, *items)
        return
    for item in items:
        queue.enqueue(item)
    queue.flush()


def contents(queue: PersistentQueue | AppendOnlyQueue) -> list[bytes]:
    """Take all items that may be taken; without a flush they are not taken for good."""
    if isinstance(queue, AppendOnlyQueue):
        return list(iter(queue.dequeue, None))
    with queue.session() as s:
        return list(iter(s.dequeue, None))
