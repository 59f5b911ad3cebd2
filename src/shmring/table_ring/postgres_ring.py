"""A table ring on PostgreSQL: its session, and making, checking, renewing and dropping the ring."""

from __future__ import annotations

import contextlib
import re
import struct
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import psycopg
import sqlalchemy as sa
from psycopg import pq
from psycopg.errors import InvalidSqlStatementName, error_from_result
from psycopg.generators import execute
from sqlalchemy import exc
from sqlalchemy.pool import NullPool

from shmring.errors import Damaged, VersionMismatch
from shmring.table_ring import functions
from shmring.table_ring.backend import Backend, Meaning
from shmring.table_ring.functions import Functions
from shmring.table_ring.schema import MESSAGE_BYTES, Layout, Tables

Rows = list[tuple[Any, ...]]
R = TypeVar("R")

_BINARY = [pq.Format.BINARY] * 3
_BYTEA = 17
# Dimensions, nulls, element type, count, lower bound; then length and bytes of each message.
_HEADER = struct.Struct(">5i")
_LENGTHS = [struct.pack(">i", length) for length in range(MESSAGE_BYTES + 1)]

_MEANINGS: dict[str | int | None, Meaning] = {
    "55P03": "locked",
    # A prepared statement of this name is there already, or not there any more, or has other
    # parameters; or the pooler refuses transactions.
    "42P05": "pooled",
    "26000": "pooled",
    "08P01": "pooled",
    "42501": "refused",
    "53100": "full",
}

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


class Statement:
    """A statement with parameters in PostgreSQL's binary form, prepared in each session.

    It goes straight through libpq. A cursor of the driver converts, describes and keeps more than a
    message needs: with it a push or a pop of one message takes twice as many instructions of the
    client.
    """

    def __init__(self, name: str, sql: str) -> None:
        self._name = f"shmring_{name}".encode()
        self._sql = sql.encode()
        self._session: pq.abc.PGconn | None = None

    def run(
        self, connection: psycopg.Connection[Any], parameters: Sequence[bytes]
    ) -> pq.abc.PGresult:
        """Run the statement, and return its rows in binary form."""
        if connection.pgconn is self._session:
            try:
                return self._send(connection, parameters)
            except InvalidSqlStatementName:
                # The driver itself forgets all statements after a DROP or ROLLBACK.
                pass
        self._session = connection.pgconn
        self._session.send_prepare(self._name, self._sql)
        _answer(connection)
        return self._send(connection, parameters)

    def _send(
        self, connection: psycopg.Connection[Any], parameters: Sequence[bytes]
    ) -> pq.abc.PGresult:
        connection.pgconn.send_query_prepared(
            self._name, parameters, _BINARY[: len(parameters)], result_format=pq.Format.BINARY
        )
        return _answer(connection)


def _answer(connection: psycopg.Connection[Any]) -> pq.abc.PGresult:
    # The driver waits, as for every statement: an interrupt cancels the statement.
    (result,) = connection.wait(execute(connection.pgconn))
    if result.status == pq.ExecStatus.FATAL_ERROR:
        raise error_from_result(result, connection.info.encoding)
    return result


def bytea_array(messages: Sequence[bytes]) -> bytes:
    """Return messages as a parameter of type bytea[], by one join and not by a call a message."""
    parts = [_HEADER.pack(1, 0, _BYTEA, len(messages), 1)]
    for message in messages:
        parts += (_LENGTHS[len(message)], message)
    return b"".join(parts)


class PostgresRing(Backend):
    """PostgreSQL through psycopg 3. A ring has sequences, functions and claims besides its tables.

    SQLAlchemy reads the URL, opens the connection and changes tables; pushes, pops and looks use
    the driver's cursor, prepared and binary.
    """

    driver = "postgresql+psycopg"
    free_message = f"decode(repeat('00', {MESSAGE_BYTES}), 'hex')"
    cursor_rows = False
    meanings = _MEANINGS

    _sync_level = "on"
    # Whether an error, or a crash of the server, may have cut a number off from its slot.
    _untidy = True
    # How many notifications have come; their content means nothing.
    _told = 0
    # Whether to find out why a part of the ring is missing.
    _asking = False

    def _make_engine(self, url: sa.URL) -> sa.Engine:
        return sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=NullPool)

    def _prepare_session(self, connection: psycopg.Connection[Any], _record: Any) -> None:
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
        with contextlib.suppress(psycopg.Error):
            session.consume_input()
            while session.notifies():
                self._told += 1

    def _send(self, statement: Statement, parameters: Sequence[bytes]) -> pq.abc.PGresult:
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
        except psycopg.Error as error:
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
            None, None, error, psycopg.Error, connection_invalidated=self._driver.closed
        )
        try:
            with self.translated():
                if sqlstate(wrapped) == functions.FOREIGN:
                    raise Damaged(
                        f"table ring {name!r}: {said(wrapped)}; another program wrote to the table"
                    )
                raise wrapped
        except Exception as translated:
            return translated

    def _begin(self) -> None:
        self._run(f"BEGIN; SET LOCAL synchronous_commit = {self._sync_level}")

    def code(self, error: exc.DBAPIError) -> str | None:
        return sqlstate(error)

    # -- the ring as a whole ---------------------------------------------------------------------

    def use(self, layout: Layout) -> None:
        super().use(layout)
        self._key = self._functions(layout).key

    def lock_creation(self) -> None:
        self._run("SELECT pg_advisory_xact_lock(hashtext('shmring.table_ring'))")

    def exist(self, connection: sa.Connection) -> bool:
        # The search path of another session may lead elsewhere, and so may this one's when a table
        # of this name is made: from now on statements name the ring's schema.
        schema, self._schema, found = self._find_schema()
        self.tables = Tables(
            self.tables.name,
            cursor_rows=self.cursor_rows,
            unlogged=self.tables.unlogged,
            schema=schema,
        )
        return found

    def create(self, connection: sa.Connection, layout: Layout, subscribers: Sequence[str]) -> None:
        super().create(connection, layout, subscribers)
        named = self._named
        self._run(
            f"CREATE {'UNLOGGED ' if self.tables.unlogged else ''}TABLE {named('_claims')} ("
            "id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,"
            " subscriber smallint NOT NULL, first bigint NOT NULL, count bigint NOT NULL)"
        )
        self._sequence("_push", 0)
        for holder in range(len(subscribers)):
            self._sequence(f"_pop_{holder}", 0)
        self._create_functions(connection, layout)
        self._run(f"ANALYZE {named()}")

    def adopt(self, connection: sa.Connection, layout: Layout, unlogged: bool) -> None:
        named = self._named
        self._check_functions(layout)
        empty = f"SELECT NOT EXISTS (SELECT FROM {self._called()})"
        if not unlogged or not self._call(empty, ())[0][0]:
            return
        # A crash of the server empties unlogged tables. The numbers continue. Of several sessions
        # that attach now, one makes the rows again.
        self._run(f"LOCK TABLE {named()} IN SHARE ROW EXCLUSIVE MODE")
        if not self._call(empty, ())[0][0]:
            return
        last = "SELECT pg_sequence_last_value(%s::regclass)"
        push = self._call(last, (named("_push"),))[0][0]
        self.tables.fill(connection, layout, self.free_message)
        if push:
            slots = self.tables.slots
            connection.execute(
                slots.update()
                .where(slots.c.slot == layout.place(push - 1))
                .values(message_id=push - 1)
            )
        for (holder,) in connection.execute(sa.select(self.tables.subscribers.c.holder)):
            self._run(f"SELECT setval('{named(f'_pop_{holder}')}'::regclass, {push})")

    def renew(self, connection: sa.Connection, layout: Layout) -> None:
        """Replace the functions, of any version, within a transaction."""
        self._hold_subscribers(layout)
        self._drop_functions(connection)
        self._create_functions(connection, layout)

    def drop(self, connection: sa.Connection) -> None:
        # A ring whose layout is unknown can be dropped too.
        self._hold_subscribers(Layout(1, 1))
        self._drop_functions(connection)
        # In the order in which pops lock them.
        self._run(f"DROP TABLE IF EXISTS {self._named('_claims')}")
        for sequence in self._sequences(connection):
            self._run(f"DROP SEQUENCE {sequence}")
        super().drop(connection)

    def _add_cursor(self, connection: sa.Connection, holder: int, position: int) -> None:
        self._sequence(f"_pop_{holder}", position)

    def _drop_cursor(self, connection: sa.Connection, holder: int) -> None:
        # A claim locks its row until it ends. While the sequence is there, others go on to pop.
        claims = f"{self._named('_claims')} WHERE subscriber = {holder}"
        self._run(f"SELECT FROM {claims} FOR UPDATE")
        # A pop, claim or look uses the sequence before it takes any lock: to drop the sequence
        # first waits for all of them, and nobody who has it waits for us.
        self._run(f"DROP SEQUENCE IF EXISTS {self._named(f'_pop_{holder}')}")
        # This waits for the claims that have begun meanwhile; no other one can begin.
        self._run(f"DELETE FROM {claims}")

    def _tell(self, connection: sa.Connection) -> None:
        for statement in self._functions(self._layout).tell(*self._subscribed(connection)):
            self._run(statement)

    def is_undone(self, error: exc.DBAPIError) -> bool:
        # A ring that is being opened may be dropped meanwhile.
        gone = not self._in_use and sqlstate(error) == "42P01"
        undone = sqlstate(error) in ("40P01", "40001") or is_renewed(error)
        return undone or (gone and not self.exist(self.connection))

    def _refuse_dropped(self, error: exc.DBAPIError) -> None:
        if not is_gone(error) or self._asking or not self._in_use:
            return
        if self._driver.closed or self._driver.info.transaction_status:
            return
        self._asking = True
        try:
            if not self._is_there():
                raise self.dropped()
        finally:
            self._asking = False

    def _hold_subscribers(self, layout: Layout) -> None:
        """Keep others from subscribing and unsubscribing until the transaction ends."""
        key = self._functions(layout).key
        self._run(f"SELECT pg_advisory_xact_lock({key}, {functions.PUSH})")

    def _subscribed(self, connection: sa.Connection) -> tuple[int, int]:
        """Return how many subscribers there are, and their bits."""
        ring = self.tables.ring.c
        row = connection.execute(sa.select(ring.subscribers, ring.holders)).one()
        return row.subscribers, row.holders

    def _create_functions(self, connection: sa.Connection, layout: Layout) -> None:
        for statement in self._functions(layout).create(*self._subscribed(connection)):
            self._run(statement)

    def _drop_functions(self, connection: sa.Connection) -> None:
        found = connection.execute(
            sa.text(
                "SELECT oid::regprocedure::text FROM pg_proc"
                " WHERE pronamespace = CAST(:schema AS regnamespace) AND proname = ANY(:names)"
            ),
            {"schema": self._schema, "names": functions.names(self.tables.name)},
        )
        for (signature,) in found.all():
            self._run(f"DROP FUNCTION {signature}")

    def _sequence(self, suffix: str, position: int) -> None:
        name = self._named(suffix)
        self._run(f"CREATE SEQUENCE {name} MINVALUE 0 START 0")
        self._run(f"SELECT setval('{name}'::regclass, {position})")

    def _sequences(self, connection: sa.Connection) -> list[str]:
        """Return the names of the sequences that the ring has, whatever its subscribers are."""
        name = self.tables.name
        query = sa.text(
            "SELECT relname FROM pg_class WHERE relkind = 'S'"
            " AND relnamespace = CAST(:schema AS regnamespace)"
            " AND (relname = :push OR relname ~ :pop)"
        )
        values = {"schema": self._schema, "push": f"{name}_push", "pop": f"^{name}_pop_[0-9]+$"}
        return [f"{self._schema}.{found}" for (found,) in connection.execute(query, values)]

    def _find_schema(self) -> tuple[str | None, str, bool]:
        """Return the schema of a ring, plain and quoted for SQL, and whether the ring exists.

        If the ring does not exist, this is the schema in which it would be made, if there is one.
        """
        name = self.tables.name
        schema, quoted, found = self._call(
            "SELECT s.name, quote_ident(s.name), s.found FROM (SELECT n.nspname, true"
            " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE c.relname = %s AND pg_table_is_visible(c.oid)"
            " UNION ALL SELECT current_schema(), false)"
            " AS s (name, found) ORDER BY s.found DESC LIMIT 1",
            (f"{name}_ring",),
        )[0]
        if set("'$") & set(schema or ""):
            raise ValueError(
                f"table ring {name!r} cannot be in schema {schema!r}, whose name has a"
                " quotation mark or a dollar sign; set another search_path"
            )
        return schema, quoted, found

    def _check_functions(self, layout: Layout) -> None:
        """Raise if a handle of this version must not call the functions."""
        ring = self._functions(layout)
        renew = f"TableRing.renew(url, name={ring.name!r})"
        # One statement reads all texts at one moment, also while another session subscribes.
        source = "(SELECT p.prosrc FROM pg_proc p WHERE p.oid = to_regprocedure(%s))"
        version, made, subscribed, holders, told = self._call(
            f"SELECT {', '.join([source] * 4)}, ARRAY["
            "format('SELECT (%%s)::smallint', r.subscribers),"
            f" format('SELECT (%%s)::bigint', r.holders)] FROM {self._called('_ring')} r",
            [f"{ring.named(f'_{which}')}()" for which in functions.CONSTANTS],
        )[0]
        if version != f"SELECT ({functions.VERSION})::integer":
            said = version and re.search(r"\d+", version)
            raise VersionMismatch(
                f"the functions of table ring {ring.name!r} are"
                f" {f'version {said.group()}' if said else 'missing'}, this shmring knows"
                f" {functions.VERSION}; {renew} replaces them, when all its users have this shmring"
            )
        if made != ring.made_source:
            raise Damaged(
                f"the functions of table ring {ring.name!r} were made for another ring: {made};"
                f" this is {ring.made}; {renew} makes them again"
            )
        if [subscribed, holders] != told:
            raise Damaged(
                f"table ring {ring.name!r}: the functions that push know other subscribers than"
                f" table {ring.name}_ring; {renew} makes them again"
            )

    def _is_there(self) -> bool:
        """Whether the ring that a handle knows exists; raise if parts of it are missing."""
        name, layout = self.tables.name, self._layout
        parts = [
            self._named(suffix) for suffix in ("_ring", "", "_subscribers", "_claims", "_push")
        ]
        query = "SELECT n FROM unnest(%s::text[]) n WHERE to_regclass(n) IS NULL"
        lost = {part for (part,) in self._call(query, (parts,))}
        if parts[0] in lost:
            return False
        made = self._call(f"SELECT slots, stride FROM {self._called('_ring')}", ())
        if made != [(layout.slots, layout.stride)]:
            return False
        if lost:
            raise Damaged(
                f"table ring {name!r} lost {', '.join(sorted(lost))}; TableRing.drop, create again"
            )
        self._check_functions(layout)
        query = "SELECT p.proname FROM pg_proc p WHERE p.pronamespace = %s::regnamespace"
        there = {function for (function,) in self._call(query, (self._schema,))}
        if missing := sorted(set(functions.names(name)) - there):
            raise Damaged(
                f"table ring {name!r} lost the functions {', '.join(missing)};"
                f" TableRing.renew(url, name={name!r}) makes them again"
            )
        return True

    def _functions(self, layout: Layout) -> Functions:
        return Functions(self.tables.name, self._schema, layout)

    def _named(self, suffix: str = "") -> str:
        return f"{self._schema}.{self.tables.name}{suffix}"

    def _called(self, suffix: str = "") -> str:
        """Return a name for a statement in which the driver looks for parameters."""
        return self._named(suffix).replace("%", "%%")


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
