"""The table ring on SQLite."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.pool import NullPool

from shmring.durable.table_ring.backend import Backend, Result
from shmring.durable.table_ring.schema import MESSAGE_BYTES, Layout

__all__ = ["SqliteBackend"]


class SqliteBackend(Backend):
    """SQLite through the standard library's driver: an IMMEDIATE transaction a push or pop.

    SQLite has one writer at a time, so the transaction sees the newest rows and needs no further
    locks. The write-ahead log is synced at each commit (sync), or at checkpoints only (delayed).
    """

    driver = "sqlite+pysqlite"
    free_message = f"zeroblob({MESSAGE_BYTES})"

    def _make_engine(self, url: sa.URL) -> sa.Engine:
        # TableRing lets one thread in at a time, but not always the same.
        return sa.create_engine(
            url,
            isolation_level="AUTOCOMMIT",
            poolclass=NullPool,
            connect_args={"check_same_thread": False, "timeout": self.lock_seconds},
        )

    def _prepare_session(self, connection: Any, _record: Any) -> None:
        cursor = connection.cursor()
        # WAL is a property of the file; setting it again does nothing.
        cursor.execute("PRAGMA journal_mode = WAL")
        cursor.execute(f"PRAGMA synchronous = {'FULL' if self.sync else 'NORMAL'}")
        cursor.close()

    def use(self, layout: Layout) -> None:
        super().use(layout)
        slots, ring, subscribers = self._names()
        self._head_push = f"SELECT position, subscribers FROM {ring} WHERE id = 0"
        self._fill = (
            f"UPDATE {slots} SET message_id = :number, time = :time_ns,"
            " reference_count = :subscribers, message = :message"
            " WHERE slot = :slot AND reference_count = 0"
        )
        self._move_push = f"UPDATE {ring} SET position = :position WHERE id = 0"
        self._head_pop = (
            f"SELECT u.position, r.position FROM {ring} r, {subscribers} u"
            " WHERE u.name = :subscriber"
        )
        # CROSS JOIN is SQLite's way to say: in this order.
        self._messages = (
            "WITH RECURSIVE numbers(n) AS"
            " (SELECT :first UNION ALL SELECT n + 1 FROM numbers WHERE n < :last)"
            f" SELECT message FROM numbers CROSS JOIN {slots}"
            f" ON slot = {layout.place_sql('n')} AND message_id = n ORDER BY n"
        )
        self._count_down = (
            f"UPDATE {slots} SET"
            " message_id = CASE WHEN reference_count > 1 THEN message_id END,"
            " reference_count = reference_count - 1"
            " WHERE slot = :slot AND message_id = :number"
        )
        self._move_pop = f"UPDATE {subscribers} SET position = :position WHERE name = :subscriber"

    @classmethod
    def address(cls, url: sa.URL) -> sa.URL:
        if url.database in (None, "", ":memory:") or "mode=memory" in str(url):
            raise ValueError(
                "a SQLite database in memory is seen by one connection only; name a file, or use"
                " shmring.create for a ring in memory"
            )
        return super().address(url)

    @classmethod
    def may_exist(cls, url: sa.URL) -> bool:
        # SQLite would create it; `file:` URIs are left to SQLite's own mode=.
        path = url.database or ""
        return path.startswith("file:") or Path(path).exists()

    def push(self, rows: Sequence[bytes], time_ns: int) -> int | None:
        with self._attempt():
            head = self._run(self._head_push).one_or_none()
            if head is None:
                raise _Miss
            first, subscribers = head
            common = {"time_ns": time_ns, "subscribers": subscribers}
            values = [
                {"number": n, "slot": self._layout.place(n), "message": message, **common}
                for n, message in enumerate(rows, first)
            ]
            self._guarded(self._fill, values)
            self._run(self._move_push, {"position": first + len(rows)})
            return first
        return None

    def pop(self, subscriber: str, limit: int) -> list[bytes]:
        with self._attempt():
            head = self._run(self._head_pop, {"subscriber": subscriber}).one_or_none()
            if head is None or head[0] >= head[1]:
                raise _Miss
            first, after = head[0], min(head[1], head[0] + limit)
            span = {"first": first, "last": after - 1}
            messages = [row[0] for row in self._run(self._messages, span)]
            values = [{"number": n, "slot": self._layout.place(n)} for n in range(first, after)]
            self._guarded(self._count_down, values)
            self._run(self._move_pop, {"position": after, "subscriber": subscriber})
            return messages
        return []

    def lock_creation(self) -> None:
        """BEGIN IMMEDIATE has excluded everybody already."""

    def lock_rows(self) -> str:
        return ""

    def is_lock_timeout(self, error: exc.DBAPIError) -> bool:
        code = getattr(error.orig, "sqlite_errorcode", 0)
        return code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)

    def _guarded(self, sql: str, values: list[dict[str, Any]]) -> None:
        if self._run(sql, values).rowcount != len(values):
            raise _Miss

    @contextlib.contextmanager
    def _attempt(self) -> Generator[None]:
        """Run a transaction that is undone as a whole where a guarded UPDATE met no row."""
        with contextlib.suppress(_Miss), self.transaction():
            yield

    def _begin(self) -> None:
        self._run("BEGIN IMMEDIATE")

    def _run(self, sql: str, parameters: Any = None) -> Result:
        return self.connection.exec_driver_sql(sql, parameters)


class _Miss(Exception):
    """A guarded UPDATE met no row."""
