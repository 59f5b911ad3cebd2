"""The table ring on SQLite."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event, exc
from sqlalchemy.pool import NullPool

from shmring.errors import RingNotFound
from shmring.table_ring.backend import Backend, Deadline, Meaning, Message, Peek, Which
from shmring.table_ring.schema import MESSAGE_BYTES, Layout, mask

_MEANINGS: dict[str | int | None, Meaning] = {
    sqlite3.SQLITE_BUSY: "locked",
    sqlite3.SQLITE_LOCKED: "locked",
    sqlite3.SQLITE_READONLY: "refused",
    sqlite3.SQLITE_PERM: "refused",
    sqlite3.SQLITE_FULL: "full",
}


class SqliteBackend(Backend):
    """SQLite through the standard library's driver: one IMMEDIATE transaction for a push or pop.

    SQLite has one writer at a time, so the transaction sees the newest rows and needs no further
    locks, and the tables store the next numbers. The write-ahead log is synced at each commit
    (sync), or at checkpoints only (delayed). SQLAlchemy opens the connection; pushes and pops use
    the driver's connection directly.
    """

    driver = "sqlite+pysqlite"
    free_message = f"zeroblob({MESSAGE_BYTES})"
    cursor_rows = True
    first_wait = 0.0002
    meanings = _MEANINGS
    rights = (
        "every use of a ring writes: the file of the database, its -wal and -shm files and their"
        " folder must be writable for this user, on a file system that is mounted for writing"
    )

    def _make_engine(self, url: sa.URL) -> sa.Engine:
        # Switch off the driver's check that only one thread uses the connection: TableRing lets
        # several threads use it, one at a time.
        engine = sa.create_engine(
            url,
            isolation_level="AUTOCOMMIT",
            poolclass=NullPool,
            connect_args={"check_same_thread": False, "timeout": self.lock_seconds},
        )
        event.listen(engine, "handle_error", _stay_connected)
        return engine

    def _prepare_session(self, connection: Any, _record: Any) -> None:
        # Set the write-ahead log for the file, which keeps the setting: later calls do nothing.
        deadline = Deadline(self.lock_seconds)
        while True:
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                break
            except sqlite3.OperationalError as error:
                # Try again: if two connections set WAL at once, SQLite refuses one of them (BUSY)
                # without waiting for the other.
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or not deadline.wait(
                    self.sleep, self.first_wait, 0.02
                ):
                    raise
        connection.execute(f"PRAGMA synchronous = {'FULL' if self.sync else 'NORMAL'}")
        self._driver: sqlite3.Connection = connection
        self._path: str = connection.execute("PRAGMA database_list").fetchone()[2]
        self._opened = self._file()

    def _file(self) -> tuple[int, int] | None:
        """Return device and inode of the database's file; None if the file is missing."""
        try:
            found = os.stat(self._path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return found.st_dev, found.st_ino

    def _refuse_other_file(self) -> None:
        # Refuse to go on in a file that has lost its name. SQLite would go on, but no other process
        # could open the file and read the messages.
        if self._file() != self._opened:
            raise RingNotFound(
                f"table ring {self.tables.name!r}: {self._path} was removed, renamed or replaced"
                " since this handle attached to it, so nothing more is pushed or popped; put the"
                " file back, or attach again"
            )

    def use(self, layout: Layout) -> None:
        super().use(layout)
        # Quote the names: a ring may be called "order".
        tables = self.tables.slots, self.tables.ring, self.tables.subscribers
        slots, ring, users = (f'"{table.name}"' for table in tables)
        ours = f"r.slots = {layout.slots} AND r.stride = {layout.stride}"
        self._head_push = (
            f"SELECT position, subscribers, holders, {ours} FROM {ring} r WHERE id = 0"
        )
        self._fill = (
            f"UPDATE {slots} SET message_id = ?, time = ?, reference_count = ?, holders = ?,"
            " message = ? WHERE slot = ? AND reference_count = 0 AND holders = 0"
        )
        self._move_push = f"UPDATE {ring} SET position = ? WHERE id = 0"
        self._head_pop = (
            f"SELECT u.position, r.position, {ours} FROM {ring} r, {users} u"
            " WHERE u.name = ? AND u.epoch = ?"
        )
        self._find_epoch = f"SELECT epoch FROM {users} WHERE name = ? AND holder = ?"
        self._message = f"SELECT message_id, time, message FROM {slots} WHERE slot = ?"
        # CROSS JOIN makes SQLite begin with the numbers and look up a slot for each.
        self._messages = (
            "WITH RECURSIVE numbers(n) AS (SELECT ?1 UNION ALL SELECT n + 1 FROM numbers"
            f" WHERE n < ?2) SELECT message_id, time, message FROM numbers CROSS JOIN {slots}"
            f" ON slot = {layout.slot_sql('n')} AND message_id = n ORDER BY n"
        )
        self._count_down = (
            f"UPDATE {slots} SET reference_count = reference_count - 1, holders = holders & ~?1"
            " WHERE slot = ?2 AND message_id = ?3 AND holders & ?1 <> 0 AND reference_count > 0"
        )
        self._move_pop = f"UPDATE {users} SET position = ? WHERE name = ?"
        columns = "s.message_id, s.reference_count, s.holders, r.holders"
        self._peek_push = (
            f"SELECT r.position, r.position + ?1, {columns} FROM {ring} r"
            f" LEFT JOIN {slots} s ON s.slot = {layout.slot_sql('(r.position + ?1)')}"
        )
        self._peek_pop = (
            f"SELECT r.position, u.position, {columns} FROM {ring} r"
            f" LEFT JOIN {users} u ON u.name = ? AND u.epoch = ?"
            f" LEFT JOIN {slots} s ON s.slot = {layout.slot_sql('u.position')}"
        )
        self._positions = f"SELECT r.position, u.name, u.position FROM {ring} r, {users} u"

    def serve(self, subscriber: str, holder: int) -> bool:
        with self._wrapped():
            row = self._driver.execute(self._find_epoch, (subscriber, holder)).fetchone()
        if row is None:
            return False
        self._me, self._mask = (subscriber, row[0]), mask(holder)
        return True

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
        # Check for the file, because a connection would create a missing file. Leave a `file:` URI
        # to SQLite: its mode= says whether SQLite may create the file.
        path = url.database or ""
        return path.startswith("file:") or Path(path).exists()

    def push(self, rows: Sequence[bytes], time_ns: int, timeout: float) -> int | None:
        with self._attempt() as database:
            head = database.execute(self._head_push).fetchone()
            if head is None:
                raise _Miss
            first, subscribers, holders, is_ours = head
            if not is_ours:  # the ring was replaced by a ring of another size
                raise self.dropped()
            slot_of = self._layout.slot_of
            values = [
                (n, time_ns, subscribers, holders, message, slot_of(n))
                for n, message in enumerate(rows, first)
            ]
            if database.executemany(self._fill, values).rowcount != len(values):
                raise _Miss
            database.execute(self._move_push, (first + len(values),))
            return first
        return None

    def pop_one(self, timeout: float) -> bytes | None:
        found = self.pop_many(1, timeout)
        return found[0] if found else None

    def pop_rows(self, limit: int, timeout: float) -> list[Message]:
        with self._attempt() as database:
            return self._take(database, limit)
        return []

    def _take(self, database: sqlite3.Connection, limit: int) -> list[Message]:
        head = database.execute(self._head_pop, self._me).fetchone()
        if head is None:
            raise _Miss
        if not head[2]:
            raise self.dropped()
        if head[0] >= head[1]:
            raise _Miss
        first, after = head[0], min(head[1], head[0] + limit)
        guards = [(self._mask, self._layout.slot_of(n), n) for n in range(first, after)]
        if len(guards) == 1:  # use the simple query, which is faster than the one for several keys
            found = database.execute(self._message, guards[0][1:2]).fetchall()
        else:
            found = database.execute(self._messages, (first, after - 1)).fetchall()
        if database.executemany(self._count_down, guards).rowcount != len(guards):
            raise _Miss
        database.execute(self._move_pop, (after, self._me[0]))
        return found

    def begin_lease(self, limit: int) -> list[Message]:
        with self._attempt(commit=False) as database:
            return self._take(database, limit)
        return []

    def end_lease(self, keep: bool) -> None:
        try:
            super().end_lease(keep)
        except BaseException:
            with self._wrapped():
                self._undo()
            raise

    def peek(self, which: Which, ahead: int = 0, whole: bool = False) -> Peek:
        self._refuse_other_file()
        with self._wrapped():
            if which == "pop":
                row = self._driver.execute(self._peek_pop, self._me).fetchone()
                if row and row[1] is None:
                    # The subscriber was removed (no row has its epoch), or the whole ring was
                    # replaced. Check by the ring's size whether the ring was replaced.
                    *_, is_ours = self._driver.execute(self._head_push).fetchone()
                    if not is_ours:
                        raise self.dropped()
                return Peek(*row) if row else Peek(push=0, number=None)
            # Read the last of the slots: if it is free, the slots before it are free, too, because
            # slots come free in the order of their numbers. Check these slots as well, because
            # another program may have written to the table.
            row = self._driver.execute(self._peek_push, (ahead,)).fetchone()
            for nearer in range(ahead if row and row[3] == row[4] == 0 else 0):
                other = self._driver.execute(self._peek_push, (nearer,)).fetchone()
                if (other[3], other[4]) != (0, 0):
                    return Peek(*other)
        return Peek(*row) if row else Peek(push=0, number=0)

    def positions(self) -> tuple[int, dict[str, int]]:
        with self._wrapped():
            rows = self._driver.execute(self._positions).fetchall()
        return (rows[0][0] if rows else 0), {name: position for _, name, position in rows}

    def _hold_pushes(self, connection: sa.Connection) -> int:
        if self.tables.read(connection) != self._layout:
            raise self.dropped()
        return connection.execute(sa.select(self.tables.ring.c.position)).scalar_one()

    def _refuse_dropped(self, error: exc.DBAPIError) -> None:
        gone = isinstance(error.orig, sqlite3.OperationalError)
        if gone and str(error.orig).startswith("no such table"):
            raise self.dropped() from error

    def code(self, error: exc.StatementError) -> int:
        return getattr(error.orig, "sqlite_errorcode", 0) & 0xFF

    @contextlib.contextmanager
    def _wrapped(self) -> Generator[None]:
        """Turn errors of the driver into the errors that SQLAlchemy would raise."""
        try:
            yield
        except sqlite3.Error as error:
            with self.translated():
                raise exc.DBAPIError.instance(None, None, error, sqlite3.Error) from error

    @contextlib.contextmanager
    def _attempt(self, commit: bool = True) -> Generator[sqlite3.Connection]:
        """Run a transaction; undo it at any error, and raise the error unless it is a _Miss.

        Without `commit` the transaction stays open unless there was an error.
        """
        with self._wrapped():
            # Begin inside `try`: a signal may raise an exception as soon as the transaction exists.
            try:
                self._enter()
                yield self._driver
                if commit:
                    self._driver.execute("COMMIT")
            except BaseException as error:
                self._undo()
                if not isinstance(error, _Miss):
                    raise

    def _undo(self) -> None:
        # Check for a transaction first, because SQLite itself undoes it after some errors.
        if self._driver.in_transaction:
            self._driver.execute("ROLLBACK")

    def _begin(self) -> None:
        with self._wrapped():
            self._enter()

    def _enter(self) -> None:
        """Begin a write transaction; raise if the open file has lost its name."""
        self._driver.execute("BEGIN IMMEDIATE")
        self._refuse_other_file()

    def _run(self, sql: str) -> None:
        with self._wrapped():
            self._driver.execute(sql)


def _stay_connected(context: sa.ExceptionContext) -> None:
    # Keep the connection after an interrupt, because pushes and pops go on with the same connection
    # of the driver. SQLAlchemy would drop the connection, because a server's answer may be under
    # way; SQLite has no server.
    if not isinstance(context.original_exception, Exception):
        context.is_disconnect = False


class _Miss(Exception):
    """Raised to undo a push or pop: no slot is free, no message waits, or an UPDATE met no row."""
