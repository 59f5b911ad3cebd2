"""A session of a table ring on PostgreSQL: its settings, its statements, and their errors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.pool import NullPool

from shmring.errors import Damaged, MissingExtra
from shmring.table_ring import functions
from shmring.table_ring.backend import Backend

if TYPE_CHECKING:
    import psycopg

    from shmring.table_ring.statement import Statement


Rows = list[tuple[Any, ...]]
R = TypeVar("R")

# The plan must not depend on statistics, which may be those of an empty ring: every lookup goes by
# key. Planning only once saves half the time of a push.
_SETTINGS = (
    b"SET synchronous_commit = off;"
    b"SET default_transaction_isolation = 'read committed';"
    b"SET default_transaction_read_only = off;"
    b"SET lock_timeout = %d;"
    b"SET plan_cache_mode = force_generic_plan;"
    b"SET jit = off;"
    b"SET enable_seqscan = off;"
    b"SET enable_hashjoin = off;"
    b"SET enable_mergejoin = off"
)


class PostgresSession(Backend):
    """PostgreSQL through psycopg 3.

    SQLAlchemy reads the URL, opens the connection and changes tables; pushes, pops and looks use
    the driver's cursor, prepared and binary.
    """

    driver = "postgresql+psycopg"

    _sync_level = "on"
    # Whether an error, or a crash of the server, may have cut a number off from its slot.
    _untidy = True
    # How many notifications have come; their content means nothing.
    _told = 0

    def _make_engine(self, url: sa.URL) -> sa.Engine:
        try:
            return sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
        except ImportError as error:
            raise MissingExtra(
                f"a table ring on PostgreSQL needs psycopg 3, which cannot be imported here "
                f"({error}): pip install 'shmring[postgresql]'"
            ) from error

    def _prepare_session(self, connection: psycopg.Connection[Any], _record: Any) -> None:
        from shmring.table_ring.statement import Statement, bytea_array

        self._statement, self._bytea_array = Statement, bytea_array
        connection.autocommit = True
        connection.add_notify_handler(self._count_told)
        self._untidy = True
        self._driver = connection
        self._cursor = connection.cursor(binary=True)
        with connection.cursor() as cursor:
            row = cursor.execute("SHOW synchronous_commit").fetchone()
            # A site with stand-by servers may have more than "on": keep its setting.
            level = str(row[0]) if row else "on"
            self._sync_level = "on" if level == "off" else level
            cursor.execute(_SETTINGS % int(self.lock_seconds * 1000))

    def _count_told(self, _: object) -> None:
        self._told += 1

    def _take_notifications(self) -> None:
        """Count the notifications that have arrived since the last answer."""
        session = self._driver.pgconn
        with contextlib.suppress(self._engine.dialect.loaded_dbapi.Error):
            session.consume_input()
            while session.notifies():
                self._told += 1

    def _send(self, statement: Statement, parameters: Sequence[bytes]) -> psycopg.pq.abc.PGresult:
        return self._sent(lambda: statement.run(self._driver, parameters))

    def _call(self, sql: str, parameters: Sequence[Any]) -> Rows:
        query = sql.encode()
        return self._sent(lambda: self._cursor.execute(query, parameters, prepare=True).fetchall())

    def _run(self, sql: str) -> None:
        self._sent(lambda: self._driver.execute(sql.encode()))

    def _sent(self, send: Callable[[], R]) -> R:
        """Send in a prepared session; errors are those that SQLAlchemy would raise."""
        if self._driver.closed:
            self._reconnect()
        try:
            return send()
        except self._engine.dialect.loaded_dbapi.Error as error:
            raise self._translate(error) from error

    def _reconnect(self) -> None:
        with self.translated():
            self.connection.rollback()
            self.connection.invalidate()
            # SQLAlchemy connects again, and prepares the new session.
            assert self.connection.connection is not None

    def _translate(self, error: Exception) -> Exception:
        """Return the error as SQLAlchemy would raise it, or as one of ours."""
        name = self.tables.name
        wrapped = exc.DBAPIError.instance(
            None,
            None,
            error,
            self._engine.dialect.loaded_dbapi.Error,
            connection_invalidated=self._driver.closed,
        )
        try:
            with self.translated():
                if sqlstate(wrapped) == functions.FOREIGN:
                    raise Damaged(
                        f"table ring {name!r}: {said(wrapped)}; another program wrote to the table"
                    )
                self._refuse_dropped(wrapped)
                raise wrapped
        except Exception as translated:
            return translated

    def _begin(self) -> None:
        self._run(f"BEGIN; SET LOCAL synchronous_commit = {self._sync_level}")

    def is_lock_timeout(self, error: exc.DBAPIError) -> bool:
        return sqlstate(error) == "55P03"

    def is_undone(self, error: exc.DBAPIError) -> bool:
        return sqlstate(error) in ("40P01", "40001") or is_renewed(error)

    def is_pooled(self, error: exc.DBAPIError) -> bool:
        # A prepared statement of this name is there already, or not there any more.
        return sqlstate(error) in ("42P05", "26000")

    def is_refusal(self, error: exc.DBAPIError) -> bool:
        return sqlstate(error) == "42501"

    def is_full(self, error: exc.DBAPIError) -> bool:
        return sqlstate(error) == "53100"


def sqlstate(error: exc.StatementError) -> str | None:
    return getattr(error.orig, "sqlstate", None)


def said(error: exc.StatementError) -> str:
    diagnosis: Any = getattr(error.orig, "diag", None)
    return str(diagnosis.message_primary if diagnosis else error.orig)


def is_renewed(error: exc.StatementError) -> bool:
    # The function was replaced after the statement was read, or while it ran. PostgreSQL does not
    # translate messages of an XX000.
    state = sqlstate(error)
    return state == "42883" or (
        state == "XX000" and said(error).startswith("cache lookup failed for function")
    )


def is_gone(error: exc.StatementError) -> bool:
    # A table or sequence by name, a function, a schema; a sequence by its number alone.
    return sqlstate(error) in ("42P01", "42883", "3F000", "XX000")
