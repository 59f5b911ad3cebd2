"""What outlives its process: queues, a ring's journal, a ring in a database.

    journal    queues    table_ring    three rooms that know nothing of each other
       |          |
       +-- base --+                    files, locks, items, group commit

Each name is imported when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shmring.durable.journal import (
        Journal,
        Retention,
        replay,
        replay_batches,
        restore,
        truncate,
        verify,
    )
    from shmring.durable.queues import AppendOnlyQueue, Items, PersistentQueue, Session
    from shmring.durable.table_ring import TableRing

__all__ = [
    "AppendOnlyQueue",
    "Items",
    "Journal",
    "PersistentQueue",
    "Retention",
    "Session",
    "TableRing",
    "replay",
    "replay_batches",
    "restore",
    "truncate",
    "verify",
]

_ROOM = {"TableRing": "table_ring"} | dict.fromkeys(
    ("AppendOnlyQueue", "Items", "PersistentQueue", "Session"), "queues"
)


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_ROOM.get(name, 'journal')}"), name)
