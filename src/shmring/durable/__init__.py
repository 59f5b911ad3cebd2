"""Queues that outlive their process: each name is imported when it is first asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shmring.durable.append_only import AppendOnlyQueue
    from shmring.durable.journal import Journal, Retention
    from shmring.durable.journal_reader import replay, replay_batches, restore, truncate, verify
    from shmring.durable.persistent import PersistentQueue
    from shmring.durable.session import Session
    from shmring.durable.table_ring import TableRing

__all__ = [
    "AppendOnlyQueue",
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

_HOME = {
    "AppendOnlyQueue": "shmring.durable.append_only",
    "Journal": "shmring.durable.journal",
    "PersistentQueue": "shmring.durable.persistent",
    "Retention": "shmring.durable.journal",
    "Session": "shmring.durable.session",
    "TableRing": "shmring.durable.table_ring",
    "replay": "shmring.durable.journal_reader",
    "replay_batches": "shmring.durable.journal_reader",
    "restore": "shmring.durable.journal_reader",
    "truncate": "shmring.durable.journal_reader",
    "verify": "shmring.durable.journal_reader",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)
