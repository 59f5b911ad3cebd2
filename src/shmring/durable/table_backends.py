"""What a :class:`~shmring.durable.table_ring.TableRing` asks of its database, and how each does it.

The rule both follow: a number is the value of a cursor *row*, read, used and advanced in one
transaction together with the guarded UPDATE of the slot. Full, empty, killed or cut off: the
transaction is undone as a whole and the number is still the next one. A database SEQUENCE could
not do that: its numbers are gone once given out.
"""

from __future__ import annotations

import contextlib
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import sqlalchemy as sa
from sqlalchemy import event, exc
from sqlalchemy.pool import NullPool

from shmring.durable.table_schema import Layout, Tables
from shmring.errors import Contended, MissingExtra

__all__ = ["LOCK_SECONDS", "Backend", "Durability", "Peek", "connect"]

Durability = Literal["sync", "delayed"]
R = TypeVar("R")
Result = sa.CursorResult[*tuple[Any, ...]]
# No statement of ours holds a lock longer than itself. Whoever does is a stranger, or stopped.
LOCK_SECONDS = 10.0


@dataclass(frozen=True)
class Peek:
    """Where a ring stands, all of it at one moment.

    Attributes
    ----------
    push : number of the next push
    pop : number of the subscriber's next pop; None where there is no such subscriber
    message_id, reference_count : of the slot asked for; reference_count is None where the table
        has no such row
    """

    push: int
    pop: int | None
    message_id: int | None
    reference_count: int | None


def connect(url: sa.URL, tables: Tables, durability: Durability) -> Backend:
    """Open one connection to the database of a URL."""
    if url.get_backend_name() == "sqlite":
        return SqliteBackend(url, tables, durability)
    return PostgresBackend(url, tables, durability)


class Backend(ABC):
    """One connection to one ring's tables."""

    def __init__(self, engine: sa.Engine, tables: Tables) -> None:
        self.tables = tables
        self._engine = engine
        self.connection = engine.connect()

    def close(self) -> None:
        """Give the connection up."""
        with contextlib.suppress(exc.DBAPIError):
            self.connection.close()
        self._engine.dispose()

    def use(self, layout: Layout) -> None:
        """Prepare for a ring's layout; before any push, pop or peek."""
        self._layout = layout
        slots, ring, subscribers = self._names()
        # One shape for both questions: the slot that `ahead` places before a position will use.
        peek = (
            f"SELECT r.position, u.position, s.message_id, s.reference_count FROM {ring} r"
            f" LEFT JOIN {subscribers} u ON u.name = :subscriber LEFT JOIN {slots} s ON s.slot = "
        )
        self._peek_push = peek + layout.place_sql("r.position + CAST(:ahead AS BIGINT)")
        self._peek_pop = peek + layout.place_sql("u.position + CAST(:ahead AS BIGINT)")

    @abstractmethod
    def push(self, rows: Sequence[bytes], time_ns: int) -> int | None:
        """Publish all rows and return the first one's number, or do nothing and return None."""

    @abstractmethod
    def pop(self, subscriber: str, limit: int) -> list[bytes]:
        """Take the subscriber's next messages, in order, up to `limit` of them; or none."""

    @abstractmethod
    def lock_creation(self) -> None:
        """Within a transaction: keep others from creating or dropping rings meanwhile."""

    @abstractmethod
    def lock_rows(self) -> str:
        """Return what follows a SELECT whose rows nobody may change until the transaction ends."""

    @contextlib.contextmanager
    def transaction(self) -> Generator[sa.Connection]:
        """Several statements in one transaction, synced whatever `durability` says."""
        with self.translated():
            self._begin()
            try:
                yield self.connection
                self._run("COMMIT")
            except BaseException:
                # After a lost connection there is nothing left to undo.
                with contextlib.suppress(exc.DBAPIError):
                    self._run("ROLLBACK")
                raise

    def transact(self, change: Callable[[sa.Connection], R]) -> R:
        """Run a change of the tables themselves in a transaction; again, if it was a deadlock.

        Pushes and pops lock the same rows and tables in another order. The database undoes one
        of two that wait for each other: a push or pop of ours tries again, and so does this.
        """
        while True:
            try:
                with self.transaction() as connection:
                    return change(connection)
            except exc.DBAPIError as error:
                if not _is_deadlock(error):
                    raise

    def peek(self, which: Literal["push", "pop"], subscriber: str, ahead: int = 0) -> Peek:
        """Look without locking: where push or pop stands, and the slot `ahead` of that."""
        sql = self._peek_push if which == "push" else self._peek_pop
        with self.translated():
            row = self._run(sql, {"subscriber": subscriber, "ahead": ahead}).one_or_none()
        return Peek(*row) if row else Peek(push=0, pop=None, message_id=None, reference_count=None)

    @contextlib.contextmanager
    def translated(self) -> Generator[None]:
        """Turn a lock that somebody keeps into Contended, and survive a lost connection."""
        try:
            yield
        except exc.DBAPIError as error:
            if error.connection_invalidated:
                # SQLAlchemy then connects anew for the next statement; this one stays an error,
                # for nobody knows whether it was committed.
                self.connection.rollback()
            if _is_lock_timeout(error):
                raise Contended(
                    f"the tables of ring {self.tables.slots.name!r} were locked by another"
                    f" connection for {LOCK_SECONDS:g} s; nothing was pushed or popped, try again"
                ) from error
            raise

    def _names(self) -> tuple[str, str, str]:
        return self.tables.slots.name, self.tables.ring.name, self.tables.subscribers.name

    @abstractmethod
    def _begin(self) -> None:
        """Open a transaction whose commit waits for the disk."""

    @abstractmethod
    def _run(self, sql: str, parameters: Any = None) -> Result:
        """Execute SQL with :name parameters."""


def _is_lock_timeout(error: exc.DBAPIError) -> bool:
    original = error.orig
    if isinstance(original, sqlite3.OperationalError):
        return original.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
    return getattr(original, "sqlstate", None) == "55P03"


def _is_deadlock(error: exc.DBAPIError) -> bool:
    return getattr(error.orig, "sqlstate", None) in ("40P01", "40001")


class PostgresBackend(Backend):
    """PostgreSQL through psycopg 3: one statement, and so one round trip, a push or pop.

    A statement of its own holds no lock while the client computes, is stopped or killed: the
    server begins, runs and commits it alone.

    With ``durability="sync"`` a second, empty transaction follows and waits for the disk. The
    statement itself commits without waiting, so the cursor row's lock is held for the microseconds
    of its execution and not for the length of a disk write: connections queue for the row but
    share the sync. That is safe because the log has one order: when the second transaction is on
    disk, so is everything committed before it, and a crash keeps a prefix of the numbers.
    """

    def __init__(self, url: sa.URL, tables: Tables, durability: Durability) -> None:
        try:
            engine = sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
        except ImportError as error:
            raise MissingExtra(
                f"a table ring on PostgreSQL needs psycopg 3, which cannot be imported here "
                f"({error}): pip install 'shmring[postgresql]'"
            ) from error
        self._sync = durability == "sync"
        self._sync_level = "on"
        event.listen(engine, "connect", self._prepare_session)
        self._compiled: dict[str, str] = {}
        super().__init__(engine, tables)

    def _prepare_session(self, connection: Any, _record: Any) -> None:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute("SHOW synchronous_commit")
            # A site with stand-by servers may ask for more than "on": keep that.
            level = str(cursor.fetchone()[0])
            self._sync_level = "on" if level == "off" else level
            # The plan must not depend on statistics, which may have been taken of an empty ring:
            # every lookup goes by key, and planning once is half the time of a push.
            cursor.execute(
                "SET synchronous_commit = off;"
                "SET default_transaction_isolation = 'read committed';"
                "SET default_transaction_read_only = off;"
                f"SET lock_timeout = {int(LOCK_SECONDS * 1000)};"
                "SET plan_cache_mode = force_generic_plan;"
                "SET jit = off;"
                "SET enable_seqscan = off;"
                "SET enable_hashjoin = off;"
                "SET enable_mergejoin = off"
            )

    def use(self, layout: Layout) -> None:
        super().use(layout)
        slots, ring, subscribers = self._names()
        # All subqueries of a statement see the table as it was when the statement began, even if
        # it then waited for the cursor row, whose newest version it gets. So a slot may look taken
        # that has become free meanwhile (a miss; the caller looks again), but never the reverse:
        # only the holder of the push cursor's lock fills slots, and only at its position.
        head = f"SELECT position, subscribers FROM {ring} WHERE id = 0 FOR UPDATE"
        self._push_one = (
            f"WITH head AS MATERIALIZED ({head}), filled AS ("
            f"UPDATE {slots} SET message_id = head.position, time = :time_ns,"
            " reference_count = head.subscribers, message = :message FROM head"
            f" WHERE slot = {layout.place_sql('head.position')} AND reference_count = 0"
            " RETURNING message_id)"
            f" UPDATE {ring} SET position = filled.message_id + 1 FROM filled WHERE id = 0"
            " RETURNING filled.message_id"
        )
        # Slots are freed in the order of their numbers: if the last one of a run is free, all are.
        # Should that ever not hold, the division by zero undoes everything.
        number = "room.position + r.k - 1"
        self._push_many = (
            f"WITH head AS MATERIALIZED ({head}), room AS MATERIALIZED ("
            f"SELECT head.position, head.subscribers FROM head JOIN {slots} s ON s.slot ="
            f" {layout.place_sql('head.position + CAST(:count AS bigint) - 1')}"
            " WHERE s.reference_count = 0), filled AS ("
            f"UPDATE {slots} SET message_id = {number}, time = :time_ns,"
            " reference_count = room.subscribers, message = r.message"
            " FROM room, unnest(CAST(:rows AS bytea[])) WITH ORDINALITY AS r(message, k)"
            f" WHERE slot = {layout.place_sql(f'({number})')} AND reference_count = 0"
            " RETURNING 1), counted AS (SELECT count(*) AS n FROM filled)"
            f" UPDATE {ring} SET position = position + counted.n"
            " / CASE WHEN counted.n = :count THEN 1 ELSE 0 END"
            " FROM counted WHERE id = 0 AND counted.n > 0 RETURNING position - counted.n"
        )
        head = f"SELECT position FROM {subscribers} WHERE name = :subscriber FOR UPDATE"
        count_down = (
            "message_id = CASE WHEN reference_count > 1 THEN message_id END,"
            " reference_count = reference_count - 1"
        )
        self._pop_one = (
            f"WITH head AS MATERIALIZED ({head}), taken AS ("
            f"UPDATE {slots} SET {count_down} FROM head"
            f" WHERE slot = {layout.place_sql('head.position')} AND message_id = head.position"
            " RETURNING head.position AS number, message)"
            f" UPDATE {subscribers} SET position = taken.number + 1 FROM taken"
            " WHERE name = :subscriber RETURNING taken.message"
        )
        number = "head.position + k.k"
        self._pop_many = (
            f"WITH head AS MATERIALIZED ({head}), taken AS ("
            f"UPDATE {slots} SET {count_down} FROM head, {ring} r, generate_series(CAST(0 AS"
            " bigint), least(CAST(:limit AS bigint), r.position - head.position) - 1) AS k(k)"
            f" WHERE r.id = 0 AND slot = {layout.place_sql(f'({number})')}"
            f" AND message_id = {number} RETURNING {number} AS number, message), moved AS ("
            f"UPDATE {subscribers} SET position = counted.last + 1"
            " FROM (SELECT max(number) AS last FROM taken) counted"
            " WHERE name = :subscriber AND counted.last IS NOT NULL)"
            " SELECT message FROM taken ORDER BY number"
        )

    def push(self, rows: Sequence[bytes], time_ns: int) -> int | None:
        if len(rows) == 1:
            values = {"time_ns": time_ns, "message": rows[0]}
            found = self._change(self._push_one, values)
        else:
            values = {"time_ns": time_ns, "rows": list(rows), "count": len(rows)}
            found = self._change(self._push_many, values)
        return found[0][0] if found else None

    def pop(self, subscriber: str, limit: int) -> list[bytes]:
        if limit == 1:
            found = self._change(self._pop_one, {"subscriber": subscriber})
        else:
            found = self._change(self._pop_many, {"subscriber": subscriber, "limit": limit})
        return [row[0] for row in found]

    def lock_creation(self) -> None:
        self._run("SELECT pg_advisory_xact_lock(hashtext('shmring.table_ring'))")

    def lock_rows(self) -> str:
        return " FOR UPDATE"

    def _change(self, sql: str, parameters: dict[str, Any]) -> Sequence[sa.Row[*tuple[Any, ...]]]:
        with self.translated():
            try:
                rows = self._run(sql, parameters).all()
            except exc.DBAPIError as error:
                if _is_deadlock(error):
                    return []  # undone by the server: the same as a miss
                raise
            if rows and self._sync:
                self._run(
                    "SELECT set_config('synchronous_commit', :level, true),"
                    " pg_logical_emit_message(true, '', '')",
                    {"level": self._sync_level},
                )
        return rows

    def _begin(self) -> None:
        self._run("BEGIN")
        self._run(f"SET LOCAL synchronous_commit = {self._sync_level}")

    def _run(self, sql: str, parameters: Any = None) -> Result:
        # Translated to psycopg's placeholders once: text() would do it again at every call.
        compiled = self._compiled.get(sql)
        if compiled is None:
            compiled = str(sa.text(sql).compile(dialect=self.connection.dialect))
            self._compiled[sql] = compiled
        return self.connection.exec_driver_sql(compiled, parameters)


class SqliteBackend(Backend):
    """SQLite through the standard library's driver: an IMMEDIATE transaction a push or pop.

    SQLite has one writer at a time, so the transaction sees the newest rows and needs no further
    locks. The write-ahead log is synced at each commit (sync), or at checkpoints only (delayed).
    """

    def __init__(self, url: sa.URL, tables: Tables, durability: Durability) -> None:
        # TableRing lets one thread in at a time, but not always the same.
        engine = sa.create_engine(
            url,
            isolation_level="AUTOCOMMIT",
            poolclass=NullPool,
            connect_args={"check_same_thread": False, "timeout": LOCK_SECONDS},
        )
        self._synchronous = "FULL" if durability == "sync" else "NORMAL"
        event.listen(engine, "connect", self._prepare_session)
        super().__init__(engine, tables)

    def _prepare_session(self, connection: Any, _record: Any) -> None:
        cursor = connection.cursor()
        # WAL is a property of the file; setting it again does nothing.
        cursor.execute("PRAGMA journal_mode = WAL")
        cursor.execute(f"PRAGMA synchronous = {self._synchronous}")
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
