"""Queues that outlive their process: each name is imported when it is first asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shmring.durable.append_only import AppendOnlyQueue
    from shmring.durable.persistent import PersistentQueue
    from shmring.durable.session import Session

__all__ = ["AppendOnlyQueue", "PersistentQueue", "Session"]

_HOME = {
    "AppendOnlyQueue": "shmring.durable.append_only",
    "PersistentQueue": "shmring.durable.persistent",
    "Session": "shmring.durable.session",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)
