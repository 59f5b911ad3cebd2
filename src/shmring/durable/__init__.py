"""Data on disk that outlives its process: queues, and a ring's journal.

    journal    queues                  neither imports the other
       |          |
       +-- base --+                    files, locks, items

Each name of this package is imported at its first use.
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
    from shmring.durable.queues import AppendOnlyQueue, PersistentQueue, Session

__all__ = [
    "AppendOnlyQueue",
    "Journal",
    "PersistentQueue",
    "Retention",
    "Session",
    "replay",
    "replay_batches",
    "restore",
    "truncate",
    "verify",
]

_QUEUES = ("AppendOnlyQueue", "PersistentQueue", "Session")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    folder = "queues" if name in _QUEUES else "journal"
    return getattr(import_module(f"{__name__}.{folder}"), name)
