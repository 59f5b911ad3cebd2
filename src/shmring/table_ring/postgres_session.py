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
from shmring.table_ring.postgres_errors import is_renewed, said, sqlstate

if TYPE_CHECKING:
    import psycopg

    from shmring.table_ring.statement import Statement

__all__ = ["PostgresSession", "Rows"]

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
        from shmring.table_ring.statement import Statement

        self._statement = Statement
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

    def _value(self, statement: Statement, parameters: Sequence[bytes]) -> bytes | None:
        return self._result(statement, parameters).get_value(0, 0)

    def _columns(
        self, statement: Statement, parameters: Sequence[bytes]
    ) -> list[list[bytes]] | None:
        """Run a statement, and return its two columns; None if it has no rows."""
        result = self._result(statement, parameters)
        rows, value = range(result.ntuples), result.get_value
        return [[value(row, column) or b"" for row in rows] for column in (0, 1)] if rows else None

    def _result(self, statement: Statement, parameters: Sequence[bytes]) -> psycopg.pq.abc.PGresult:
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

    def is_refusal(self, error: exc.DBAPIError) -> bool:
        return sqlstate(error) == "42501"

    def is_full(self, error: exc.DBAPIError) -> bool:
        return sqlstate(error) == "53100"
