"""A table ring on PostgreSQL: its session, and making, checking, renewing and dropping the ring.

A ring called ``orders`` has, beside its tables:

``orders_push``, ``orders_pop_<n>``
    sequences: the number of the next push, and of each subscriber's next pop
``orders_leases``
    a row for each lease: consecutive numbers that a subscriber's cursor has passed, although their
    messages are not popped. An open lease's transaction keeps the lease's row locked. A row without
    a lock is a lease that was given up: the subscriber's next pop takes its messages
the functions of the `.sql` files
    a push or a pop is a call of one function, by one statement, and so in one round trip. The name
    of a function's last parameter contains the version and the layout: a handle of another version
    or layout cannot call the function. The parameter is true if the call is alone in its
    transaction

docs/table-ring-design.md says how the functions use the sequences, and which locks they take.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any, TypeVar
from zlib import crc32

import psycopg
import sqlalchemy as sa
from psycopg import pq
from psycopg.errors import InvalidSqlStatementName, error_from_result
from psycopg.generators import execute
from sqlalchemy import exc
from sqlalchemy.pool import NullPool

from shmring.errors import Damaged, VersionMismatch
from shmring.table_ring.backend import Backend, Meaning
from shmring.table_ring.schema import MAX_SUBSCRIBERS, MESSAGE_BYTES, Layout, Tables

Rows = list[tuple[Any, ...]]
R = TypeVar("R")

# Version of the SQL functions. Increase it with every change of a function's body.
VERSION = 1

# SQLSTATEs of the functions' errors. FULL_WITHIN: only some of the messages have free slots.
# FOREIGN: a slot holds a number that does not belong there.
FULL_WITHIN, FOREIGN = "SR001", "SR002"

# Second keys of a ring's advisory locks. PUSH locks the cursor of the pushes. Keys below PUSH lock
# a subscriber's cursor: the key is the subscriber's bit. One of the sessions that wait for a
# message holds AWAIT_MESSAGE: a push that finds this lock taken sends a notification. One of the
# sessions that wait for a free slot holds AWAIT_SLOT: a pop that finds this lock taken sends a
# notification.
PUSH, AWAIT_MESSAGE, AWAIT_SLOT = 64, 100, 200

# Number added to a subscriber's sequence while the subscriber may have leases. The sequence is then
# ahead of all pushes, so a pop finds no message at first, and looks for leases (see ring.sql).
LEASED = 1 << 62

# Count of numbers that a look for a pop checks: those just below the subscriber's cursor. If a
# connection has taken one of these numbers without popping its message, the look finds the message.
# Each connection can leave a number behind, and a server usually has fewer connections than NEAR.
# A look at the whole table finds messages further below.
NEAR = 300

# State of the last number that a session took from a sequence. DONE: the number's slot was written.
# GIVEN_UP: the call gave the number up, and a look has to follow. UNKNOWN: the server may have
# crashed, and the slot may not be written. UNDONE: an error has undone the call, and the slot was
# not written, but the sequence has passed the number.
DONE, GIVEN_UP, UNKNOWN, UNDONE = range(4)

# Milliseconds that a pop waits within the database for a message.
IDLE = 5

CONSTANTS, *_ = SCRIPTS = [
    (files("shmring.table_ring") / f"{name}.sql").read_text() for name in ("ring", "functions")
]
_NAMES = re.findall(r"FUNCTION \{ring\}(_\w+)\(", "".join(SCRIPTS))

_BINARY = [pq.Format.BINARY] * 3
_BYTEA = 17
# Head of a binary bytea[]: dimensions, nulls, element type, count, lower bound. The length and the
# bytes of each message follow.
_HEADER = struct.Struct(">5i")
_LENGTHS = [struct.pack(">i", length) for length in range(MESSAGE_BYTES + 1)]

_MEANINGS: dict[str | int | None, Meaning] = {
    "55P03": "locked",
    # Codes of sessions behind a pooler: a prepared statement of this name exists already, exists no
    # longer, or has other parameters; or the pooler refuses transactions.
    "42P05": "pooled",
    "26000": "pooled",
    "08P01": "pooled",
    "42501": "refused",
    "53100": "full",
}

# Settings of a session. They make every lookup go by key: PostgreSQL would choose plans by
# statistics of the tables, which are wrong if they were collected while the ring was empty. They
# also keep a statement's first plan, because planning takes half the time of a push.
_SETTINGS = (
    b"SET synchronous_commit = off;"
    b"SET default_transaction_isolation = 'read committed';"
    b"SET default_transaction_read_only = off;"
    b"SET lock_timeout = %d;"
    # Make quote_ident() quote only names that need quotes. All sessions must write the schema's
    # name in this form: it is stored in the ring's row, and the keys of the ring's locks depend on
    # it.
    b"SET quote_all_identifiers = off;"
    b"SET plan_cache_mode = force_generic_plan;"
    b"SET jit = off;"
    b"SET enable_seqscan = off;"
    b"SET enable_hashjoin = off;"
    b"SET enable_mergejoin = off"
)


def bytea_array(messages: Sequence[bytes]) -> bytes:
    """Return messages as a bytea[] parameter; one join is cheaper than a call for each message."""
    parts = [_HEADER.pack(1, 0, _BYTEA, len(messages), 1)]
    for message in messages:
        parts += (_LENGTHS[len(message)], message)
    return b"".join(parts)


def function_names(ring: str) -> list[str]:
    """Return the names of a ring's functions; `ring` is its name, with or without its schema."""
    return [ring + suffix for suffix in _NAMES]


def lock_key(ring: str) -> int:
    """Return the first key of a ring's advisory locks; restoring a dump does not change it."""
    return int.from_bytes(crc32(ring.encode()).to_bytes(4), signed=True)


def mark_of(layout: Layout) -> str:
    """Return the name of the parameter that only functions of this version and layout have."""
    return f"v{VERSION}_{layout.slots}_{layout.stride}"


def made_for(ring: str) -> str:
    """Return the text that the ring's row has about its functions: version and ring."""
    return f"version {VERSION} for {ring}"


def fill_in(script: str, ring: str, layout: Layout, subscribed: int, holders: int) -> str:
    """Return the statements of a script for one ring; `ring` is its name with its schema."""
    values = {"ring": ring, "name": ring.rpartition(".")[2], "made": made_for(ring)}
    values |= {"slots": layout.slots, "stride": layout.stride, "slot_of": layout.slot_sql("number")}
    values |= {"subscribed": subscribed, "holders": holders, "key": lock_key(ring)}
    values |= {"mark": mark_of(layout), "NEAR": NEAR, "IDLE": IDLE, "PUSH": PUSH}
    values |= {"AWAIT_MESSAGE": AWAIT_MESSAGE, "AWAIT_SLOT": AWAIT_SLOT, "LEASED": LEASED}
    return script.format_map(values | {"FOREIGN": FOREIGN, "FULL_WITHIN": FULL_WITHIN})


class PostgresRing(Backend):
    """PostgreSQL through psycopg 3. A ring has sequences, functions and leases besides its tables.

    SQLAlchemy reads the URL, opens the connection and changes tables; pushes, pops and looks use
    the driver's cursor, prepared and binary.
    """

    driver = "postgresql+psycopg"
    free_message = f"decode(repeat('00', {MESSAGE_BYTES}), 'hex')"
    cursor_rows = False
    meanings = _MEANINGS
    rights = (
        "docs/guides/table-ring.md lists the grants that using a ring needs; creating, subscribing"
        " and dropping need the right to create in its schema"
    )

    _sync_level = "on"
    # State of the last number that the session took: DONE, GIVEN_UP, UNKNOWN or UNDONE.
    _last = UNKNOWN
    # Number of notifications that this session has received; their content is not used.
    _told = 0
    # True while the backend finds out why a part of the ring is missing; prevents a nested search.
    _asking = False

    def _make_engine(self, url: sa.URL) -> sa.Engine:
        # Override the encoding of the role or the environment: names may have any character.
        encoding = {"client_encoding": "utf8"}
        return sa.create_engine(
            url, isolation_level="AUTOCOMMIT", poolclass=NullPool, connect_args=encoding
        )

    def _prepare_session(self, connection: psycopg.Connection[Any], _record: Any) -> None:
        connection.autocommit = True
        connection.add_notify_handler(self._count_told)
        self._last = max(self._last, UNKNOWN)
        self._prepared: dict[str, bytes] = {}
        self._driver = connection
        self._cursor = connection.cursor(binary=True)
        with connection.cursor() as cursor:
            row = cursor.execute("SHOW synchronous_commit").fetchone()
            # Sync at the configured level of synchronous_commit, which may be stricter than "on" if
            # there are stand-by servers. If the level is "off", sync at level "on".
            level = str(row[0]) if row else "on"
            self._sync_level = "on" if level == "off" else level
            cursor.execute(_SETTINGS % int(self.lock_seconds * 1000))

    def _count_told(self, _: object) -> None:
        self._told += 1

    def _take_notifications(self) -> None:
        """Count the notifications that have arrived since the last answer."""
        session = self._driver.pgconn
        session.consume_input()
        while session.notifies():
            self._told += 1

    def _send(self, sql: str, parameters: Sequence[bytes]) -> pq.abc.PGresult:
        """Run a statement, prepared in each session, with parameters and rows in binary form.

        The call uses libpq directly. A cursor of the driver converts, describes and keeps more than
        a message needs: with a cursor, a push or a pop of one message takes twice as many
        instructions of the client.
        """
        return self._sent(self._prepare_and_run, sql, parameters)

    def _prepare_and_run(self, sql: str, parameters: Sequence[bytes]) -> pq.abc.PGresult:
        name = self._prepared.get(sql)
        if name is not None:
            try:
                return self._run_prepared(name, parameters)
            except InvalidSqlStatementName:
                pass  # prepare again: after DROP or ROLLBACK the driver forgets all statements
        # Note the name before sending: after an interrupt, the session may have the statement
        # already.
        name = self._prepared.setdefault(sql, b"shmring_%d" % len(self._prepared))
        self._driver.pgconn.send_prepare(name, sql.encode())
        self._answer()
        return self._run_prepared(name, parameters)

    def _run_prepared(self, name: bytes, parameters: Sequence[bytes]) -> pq.abc.PGresult:
        # Pass lists, because older versions of psycopg take only lists here.
        formats = _BINARY[: len(parameters)]
        self._driver.pgconn.send_query_prepared(
            name, [*parameters], formats, result_format=pq.Format.BINARY
        )
        return self._answer()

    def _answer(self) -> pq.abc.PGresult:
        # Let the driver wait, as for its own statements: an interrupt then cancels the statement.
        # Take the last result, because the error of a failed commit comes after the rows.
        result = self._driver.wait(execute(self._driver.pgconn))[-1]
        if result.status == pq.ExecStatus.FATAL_ERROR:
            raise error_from_result(result, self._driver.info.encoding)
        return result

    def _call(self, sql: str, parameters: Sequence[Any]) -> Rows:
        query = sql.encode()
        return self._sent(lambda: self._cursor.execute(query, parameters, prepare=True).fetchall())

    def _run(self, sql: str) -> None:
        self._sent(lambda: self._driver.execute(sql.encode()))

    def _sent(self, send: Callable[..., R], *parameters: Any) -> R:
        """Call `send`, connected again if necessary; raise the errors that SQLAlchemy would."""
        if self._driver.closed:
            self._reconnect()
        try:
            return send(*parameters)
        except BaseException as error:
            # The session is still active if a signal's exception came after a statement was sent
            # and before its answer was read. Then nobody reads the answer, and the session takes no
            # other statement: close the session, and the next call connects again.
            if self._driver.info.transaction_status == pq.TransactionStatus.ACTIVE:
                self._driver.close()
            if isinstance(error, psycopg.Error):
                raise self._translate(error) from error
            raise

    def _reconnect(self) -> None:
        with self.translated():
            self.connection.invalidate()
            self.connection.rollback()
            # SQLAlchemy connects again, and prepares the new session.
            assert self.connection.connection is not None

    def _translate(self, error: Exception) -> Exception:
        """Return the error that SQLAlchemy would raise, or an error of shmring."""
        name = self.tables.name
        wrapped = exc.DBAPIError.instance(
            None, None, error, psycopg.Error, connection_invalidated=self._driver.closed
        )
        try:
            with self.translated():
                if self.code(wrapped) == FOREIGN:
                    raise Damaged(
                        f"table ring {name!r}: {said(wrapped)}; another program wrote to the table"
                    )
                raise wrapped
        except Exception as translated:
            return translated

    def _begin(self) -> None:
        self._run(f"BEGIN; SET LOCAL synchronous_commit = {self._sync_level}")

    def code(self, error: exc.StatementError) -> str | None:
        return getattr(error.orig, "sqlstate", None)

    # -- the ring as a whole ---------------------------------------------------------------------

    def lock_creation(self) -> None:
        self._run("SELECT pg_advisory_xact_lock(hashtext('shmring.table_ring'))")

    def exist(self, connection: sa.Connection) -> bool:
        # Find the ring's schema, and name the schema in all later statements. A name without a
        # schema could mean another table in a session with another search path, or in this session
        # after a table of the same name is added. If the ring does not exist, take the schema that
        # a new ring would get.
        name = self.tables.name
        schema, self._schema, found = self._call(
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
        self.tables = Tables(name, cursor_rows=False, unlogged=self.tables.unlogged, schema=schema)
        return found

    def create(self, connection: sa.Connection, layout: Layout, subscribers: Sequence[str]) -> None:
        super().create(connection, layout, subscribers)
        named = self._named
        self._run(
            f"CREATE {'UNLOGGED ' if self.tables.unlogged else ''}TABLE {named('_leases')} ("
            "id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,"
            " subscriber smallint NOT NULL, first bigint NOT NULL, count bigint NOT NULL)"
        )
        self._sequence("_push", 0)
        for holder in range(len(subscribers)):
            self._sequence(f"_pop_{holder}", 0)
        self._make_functions(connection, layout)
        self._run(f"ANALYZE {named()}")

    def adopt(self, connection: sa.Connection, layout: Layout) -> None:
        named = self._named
        self._check_parts()
        query = (
            f"SELECT relpersistence = 'u' AND NOT EXISTS (SELECT FROM {self._called()})"
            " FROM pg_class WHERE oid = %s::regclass"
        )
        # A crash of the server empties unlogged tables, but the numbers continue. If several
        # sessions attach now, one of them makes the rows again.
        if not self._call(query, (named(),))[0][0]:
            return
        self._run(f"LOCK TABLE {named()} IN SHARE ROW EXCLUSIVE MODE")
        if not self._call(query, (named(),))[0][0]:
            return
        last = "SELECT pg_sequence_last_value(%s::regclass)"
        push = self._call(last, (named("_push"),))[0][0]
        self.tables.fill(connection, layout, self.free_message)
        if push:
            slots = self.tables.slots
            connection.execute(
                slots.update()
                .where(slots.c.slot == layout.slot_of(push - 1))
                .values(message_id=push - 1)
            )
        for holder in self.tables.bits(connection).values():
            self._run(f"SELECT setval('{named(f'_pop_{holder}')}'::regclass, {push})")

    def renew(self, connection: sa.Connection, layout: Layout) -> None:
        """Replace the functions, which may be of any version, within a transaction."""
        self._hold_subscribers()
        self._drop_functions()
        self._make_functions(connection, layout)

    def drop(self, connection: sa.Connection) -> None:
        self._hold_subscribers()
        self._drop_functions()
        # Drop leases before sequences, because pops lock them in this order. Drop the sequence of
        # each possible subscriber, whether there is a subscriber or not.
        self._run(f"DROP TABLE IF EXISTS {self._named('_leases')}")
        cursors = [self._named(f"_pop_{holder}") for holder in range(MAX_SUBSCRIBERS)]
        self._run(f"DROP SEQUENCE IF EXISTS {', '.join(cursors)}, {self._named('_push')}")
        super().drop(connection)

    def _add_cursor(self, connection: sa.Connection, holder: int, position: int) -> None:
        self._sequence(f"_pop_{holder}", position)

    def _drop_cursor(self, connection: sa.Connection, holder: int) -> None:
        # Wait for open leases, each of which locks its row until it ends. Other sessions still pop
        # meanwhile, because the sequence exists.
        leases = f"{self._named('_leases')} WHERE subscriber = {holder}"
        self._run(f"SELECT FROM {leases} FOR UPDATE")
        # Drop the sequence before this session blocks pushes. The DROP waits for all pops, leases
        # and looks that use the sequence: if one of them waited for this session, both would wait
        # for ever. Calls that begin later wait for the DROP, and hold no lock meanwhile, because
        # each call uses the sequence before it takes any lock.
        self._run(f"DROP SEQUENCE IF EXISTS {self._named(f'_pop_{holder}')}")
        # Wait for the leases that have begun meanwhile; without the sequence, no lease can begin.
        self._run(f"DELETE FROM {leases}")

    def _tell(self, connection: sa.Connection) -> None:
        self._make_functions(connection, self._layout, [CONSTANTS])

    def is_undone(self, error: exc.DBAPIError) -> bool:
        code = self.code(error)
        # PostgreSQL raises this error if a function was replaced after the statement was parsed, or
        # while the function ran. The text can be compared because PostgreSQL does not translate
        # messages of code XX000.
        lost = code == "XX000" and said(error).startswith("cache lookup failed for function")
        if code in ("40P01", "40001", "42883") or lost:
            return True
        # While this session opens the ring, another session may drop it. A table is then missing
        # (42P01), and the next attempt finds no ring.
        return not self._in_use and code == "42P01" and not self.exist(self.connection)

    def is_gone(self, error: exc.DBAPIError) -> bool:
        """Return whether the error says that a part of the ring does not exist."""
        # In this order: a missing table, or a missing sequence that the statement names; a missing
        # function; a missing schema; a missing sequence that the statement gives by its oid.
        return self.code(error) in ("42P01", "42883", "3F000", "XX000")

    def _refuse_dropped(self, error: exc.DBAPIError) -> None:
        if error.connection_invalidated:
            # The connection is lost, perhaps by a crash of the server, which can leave a sequence
            # ahead of the slots: a look has to follow before the next push or pop.
            self._last = max(self._last, UNKNOWN)
        if not self.is_gone(error) or self._asking or not self._in_use:
            return
        # The queries below need a session outside of a transaction: after an error, a transaction
        # takes no more queries.
        if self._driver.closed or self._driver.info.transaction_status:
            return
        self._asking = True
        try:
            ring = self._named("_ring")
            if not self._call("SELECT to_regclass(%s)::oid", (ring,))[0][0]:
                raise self.dropped()
            made = self._call(f"SELECT slots, stride FROM {self._called('_ring')}", ())
            if made != [(self._layout.slots, self._layout.stride)]:
                raise self.dropped()
            self._check_parts()
        finally:
            self._asking = False

    def _hold_subscribers(self) -> None:
        """Keep others from subscribing and unsubscribing until the transaction ends."""
        self._run(f"SELECT pg_advisory_xact_lock({self._key}, {PUSH})")

    def _make_functions(
        self, connection: sa.Connection, layout: Layout, scripts: Sequence[str] = SCRIPTS
    ) -> None:
        """Make functions that let new messages wait for the subscribers in the ring's row."""
        ring = self.tables.ring.c
        row = connection.execute(sa.select(ring.subscribers, ring.holders)).one()
        for script in scripts:
            self._run(fill_in(script, self._named(), layout, *row))

    def _drop_functions(self) -> None:
        self._run(f"DROP FUNCTION IF EXISTS {', '.join(function_names(self._named()))}")

    def _sequence(self, suffix: str, position: int) -> None:
        name = self._named(suffix)
        self._run(f"CREATE SEQUENCE {name} MINVALUE 0 START 0")
        self._run(f"SELECT setval('{name}'::regclass, {position})")

    def _check_parts(self) -> None:
        """Raise if a part of the ring is missing, or another version made its functions."""
        name, ring = self.tables.name, self._named()
        renew = f"TableRing.renew(url, name={name!r})"
        (made,) = self._call(f"SELECT functions FROM {self._called('_ring')}", ())[0]
        if made != made_for(ring):
            version, _, other = str(made).partition(" for ")
            if version != f"version {VERSION}":
                raise VersionMismatch(
                    f"the functions of table ring {name!r} are {version}, this shmring knows"
                    f" {VERSION}; {renew} replaces them, when all its users have this"
                    " shmring"
                )
            raise Damaged(
                f"the functions of table ring {name!r} were made for another ring: {other};"
                f" this is {ring}; {renew} makes them again"
            )
        tables = [ring, *(f"{ring}_{part}" for part in ("subscribers", "leases", "push"))]
        for find, names, mend in (
            ("to_regclass", tables, "TableRing.drop, create again"),
            ("to_regproc", function_names(ring), f"{renew} makes them again"),
        ):
            query = f"SELECT n FROM unnest(%s::text[]) n WHERE {find}(n) IS NULL ORDER BY n"
            if lost := ", ".join(part for (part,) in self._call(query, (names,))):
                what = "the functions " * (find == "to_regproc")
                raise Damaged(f"table ring {name!r} lost {what}{lost}; {mend}")

    @property
    def _key(self) -> int:
        return lock_key(self._named())

    def _named(self, suffix: str = "") -> str:
        return f"{self._schema}.{self.tables.name}{suffix}"

    def _called(self, suffix: str = "") -> str:
        """Return a name with each % doubled, for a statement with parameters of the driver."""
        return self._named(suffix).replace("%", "%%")


def said(error: exc.StatementError) -> str:
    diagnosis: Any = getattr(error.orig, "diag", None)
    return str(diagnosis.message_primary if diagnosis else error.orig)
