"""What the durable queues are compared with, each as durable as they are.

SQLite has synchronous=FULL, and so has diskcache here (its own is NORMAL, which does not sync a
commit); persist-queue's SQLiteQueue has what it comes with (WAL, FULL: one fdatasync a commit);
LMDB syncs each commit unless told not to.  persist-queue's file queue never syncs an item, and
diskcache none that it puts into a file of its own (over 32 KB): those are no peers.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from benchmarks.harness import Unavailable

__all__ = [
    "DISKCACHE",
    "LMDB",
    "PERSIST_QUEUE",
    "SQLITE",
    "number_key",
    "open_diskcache",
    "open_lmdb",
    "open_sqlite",
    "persist_queue",
]

DISKCACHE = "diskcache, FULL"
LMDB = "LMDB"
PERSIST_QUEUE = "persist-queue, SQLite"
SQLITE = "SQLite, WAL"


def persist_queue(path: Path, **options: Any) -> Any:
    """persist-queue's SQLite queue in a folder."""
    try:
        import persistqueue
    except ImportError as error:
        raise Unavailable(f"{error}; pip install persist-queue") from None
    return persistqueue.SQLiteQueue(str(path), **options)


def open_sqlite(path: Path) -> sqlite3.Connection:
    """A table of numbered blobs."""
    db = sqlite3.connect(path / "q.sqlite", isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    db.execute("CREATE TABLE q (id INTEGER PRIMARY KEY, data BLOB)")
    return db


def open_lmdb(path: Path) -> Any:
    """A map of numbers to bytes."""
    try:
        import lmdb
    except ImportError as error:
        raise Unavailable(f"{error}; pip install lmdb") from None
    return lmdb.open(str(path), map_size=1 << 36)


def number_key(number: int) -> bytes:
    """A key that sorts as the number does."""
    return number.to_bytes(8, "big")


def open_diskcache(path: Path) -> Any:
    try:
        import diskcache
    except ImportError as error:
        raise Unavailable(f"{error}; pip install diskcache") from None
    cache = diskcache.Cache(str(path), eviction_policy="none", sqlite_synchronous=2)
    return diskcache.Deque.fromcache(cache)
