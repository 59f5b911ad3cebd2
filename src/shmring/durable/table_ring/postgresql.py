"""The table ring on PostgreSQL."""

from __future__ import annotations

import contextlib
import select
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.pool import NullPool

from shmring.durable.table_ring import functions
from shmring.durable.table_ring.backend import (
    ATTEMPTS,
    Backend,
    Durability,
    Message,
    Peek,
    Which,
)
from shmring.durable.table_ring.bytea_array import bytea_array
from shmring.durable.table_ring.functions import Parts
from shmring.durable.table_ring.postgres_errors import is_gone, is_renewed, said, sqlstate
from shmring.durable.table_ring.presence import check_functions, find_schema, is_there
from shmring.durable.table_ring.schema import MESSAGE_BYTES, Layout, Tables, mask
from shmring.errors import Contended, Damaged, MissingExtra

if TYPE_CHECKING:
    import psycopg

    from shmring.durable.table_ring.statement import Statement

__all__ = ["PostgresBackend"]

Rows = list[tuple[Any, ...]]
R = TypeVar("R")

# Milliseconds that the server waits for a slot or a message that is about to come.
PATIENCE = 50
# Seconds until a session that waits looks by itself: where pushes and pops tell it, and where
# another session is the one that they see.
TOLD_WAIT = 0.25
UNTOLD_WAIT = 0.02
# The plan must not depend on statistics, which may have been taken of an empty ring: every lookup
# goes by key, and planning once is half the time of a push.
_SESSION = (
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
_AWAIT = {"push": functions.AWAIT_SLOT, "pop": functions.AWAIT_MESSAGE}


class PostgresBackend(Backend):
    """PostgreSQL through psycopg 3: a call of a function of the ring's own, a push or pop.

    A statement of its own holds no lock while the client computes, is stopped or killed: the
    server begins, runs and commits it alone.

    With ``durability="sync"`` a second, empty transaction follows and waits for the disk. The
    statement itself commits without waiting, so the cursor's lock is held for the microseconds of
    its execution and not for the length of a disk write: connections queue for the lock but share
    the sync. That is safe because the log has one order: when the second transaction is on disk, so
    is everything committed before it, and a crash keeps a prefix of the numbers.

    SQLAlchemy reads the URL, opens the connection and changes tables; pushes, pops and looks go to
    the driver's cursor, prepared and binary.
    """

    driver = "postgresql+psycopg"
    free_message = f"decode(repeat('00', {MESSAGE_BYTES}), 'hex')"
    cursor_rows = False
    # The server has waited for IDLE before, and one is told besides.
    first_wait = functions.IDLE / 1000

    def __init__(self, url: sa.URL, name: str, durability: Durability, unlogged: bool) -> None:
        self._sync_level = "on"
        self._waiters = 0
        self._unlogged = unlogged
        # Whether an error undid what others may have passed over since.
        self._undone = False
        # Whether one finds out why something of the ring is missing.
        self._asking = False
        super().__init__(url, name, durability, unlogged)

    def _make_engine(self, url: sa.URL) -> sa.Engine:
        try:
            return sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
        except ImportError as error:
            raise MissingExtra(
                f"a table ring on PostgreSQL needs psycopg 3, which cannot be imported here "
                f"({error}): pip install 'shmring[postgresql]'"
            ) from error

    def _prepare_session(self, connection: psycopg.Connection[Any], _record: Any) -> None:
        from shmring.durable.table_ring.statement import Statement

        self._statement = Statement
        connection.autocommit = True
        connection.add_notify_handler(_ignore)
        # Of a number that was taken before an error, or before a crash of the server.
        self._untidy = True
        self._driver = connection
        self._cursor = connection.cursor(binary=True)
        with connection.cursor() as cursor:
            row = cursor.execute("SHOW synchronous_commit").fetchone()
            # A site with stand-by servers may ask for more than "on": keep that.
            level = str(row[0]) if row else "on"
            self._sync_level = "on" if level == "off" else level
            cursor.execute(_SESSION % int(self.lock_seconds * 1000))

    def use(self, layout: Layout) -> None:
        super().use(layout)
        named, mark = self._named, self._parts(layout).mark
        self._push_one = self._statement(
            "push_one", f"SELECT {named('_push_one')}($1, $2, $3, {mark})"
        )
        self._sync = self._statement(
            "sync",
            f"SELECT set_config('synchronous_commit', '{self._sync_level}', true),"
            " pg_logical_emit_message(true, '', '')",
        )
        self._push_many = self._statement(
            "push_many", f"SELECT {named('_push_many')}($1, $2, {mark})"
        )
        self._look_push = f"SELECT * FROM {self._called('_look_push')}(%s::bigint, {mark})"
        self._key = self._parts(layout).key

    def serve(self, subscriber: str, holder: int) -> None:
        named, called = self._named, self._called
        mark = self._mark = self._parts(self._layout).mark
        cursor = self._oid(named(f"_pop_{holder}"))
        # Of a subscriber that is removed the sequence is gone, also where another gets its bit.
        me = f"{holder}, {cursor}::oid::regclass"
        self._subscriber, self._holder = subscriber, holder
        self._cursor_there = f"SELECT 1 FROM pg_class WHERE oid = {cursor}::oid"
        self._pop_one = self._statement("pop_one", f"SELECT {named('_pop_one')}({me}, $1, {mark})")
        self._pop_many = self._statement(
            "pop_many",
            f"SELECT message_id, message FROM {named('_pop_many')}({me}, $1, $2, {mark})",
        )
        self._pop_rows = f"SELECT * FROM {called('_pop_many')}({me}, %s::bigint, %s, {mark})"
        self._claim = f"SELECT {called('_claim')}({me}, %s::bigint, {mark})"
        self._open = f"SELECT * FROM {called('_open')}({holder}, %s::bigint, {mark})"
        self._look_pop = f"SELECT * FROM {called('_look_pop')}(%s::text, {me}, %s, {mark})"
        # A dump has the claims of its snapshot, and the sequences as they were later.
        claims = f"'{called('_claims_id_seq')}'::regclass"
        self._call(
            f"SELECT nextval({claims}) WHERE pg_sequence_last_value({claims}) IS NULL"
            f" AND EXISTS (SELECT FROM {called('_claims')})",
            (),
        )

    def push(self, rows: Sequence[bytes], time_ns: int, patience: float) -> int | None:
        written = time_ns.to_bytes(8)
        if len(rows) == 1:
            statement = self._push_one
            parameters = (rows[0], written, _milliseconds(patience).to_bytes(4))
        else:
            statement, parameters = self._push_many, (bytea_array(rows), written)
        number = self._move(lambda: self._value(statement, parameters))
        return None if number is None else int.from_bytes(number)

    def pop_one(self, patience: float) -> bytes | None:
        parameters = (_milliseconds(patience).to_bytes(4),)
        return self._move(lambda: self._value(self._pop_one, parameters))

    def pop_many(self, limit: int, patience: float) -> list[bytes]:
        parameters = (limit.to_bytes(8), _milliseconds(patience).to_bytes(4))
        found = self._move(lambda: self._columns(self._pop_many, parameters))
        if found is None:
            return []
        # An UPDATE returns them in order as a rule, and promises none. Numbers sort as their bytes.
        numbers, data = found
        if numbers != sorted(numbers):
            data = [row for _, row in sorted(zip(numbers, data, strict=True))]
        return data

    def pop_rows(self, limit: int, patience: float) -> list[Message]:
        values = (limit, _milliseconds(patience))
        found = self._move(lambda: self._call(self._pop_rows, values) or None)
        return sorted(found or [])  # pyright: ignore[reportReturnType]

    def begin_claim(self, limit: int) -> list[Message]:
        # Nothing is popped yet: the commit that does that waits for the disk.
        undone = 0
        while self._try(lambda: self._call(self._claim, (limit,))[0][0]):
            self._begin()
            try:
                found = self._call(self._open, (limit,))
            except BaseException as error:
                with contextlib.suppress(exc.DBAPIError):
                    self._run("ROLLBACK")
                undone += 1
                if not isinstance(error, exc.DBAPIError) or not self.is_undone(error):
                    raise
                if undone == ATTEMPTS:
                    raise self._gave_up(error) from error
                continue
            if found:
                claim, last = found[0][0], found[-1][1]
                me = f"{self._holder}, {claim}, {last}, {self._mark}"
                self._settle = f"SELECT {self._named('_settle')}({me})"
                return [row[1:] for row in found]  # pyright: ignore[reportReturnType]
            self._run("COMMIT")  # somebody else was faster
        return []

    def end_claim(self, keep: bool) -> None:
        if keep:
            try:
                # On a connection made anew, or after a COMMIT or ROLLBACK of the user's own,
                # somebody else may have the claim by now.
                if self._driver.closed or not self._driver.info.transaction_status:
                    raise Contended(
                        f"the transaction of a claim on table ring {self.tables.name!r} ended"
                        " within its block: its connection was lost, or it was committed or rolled"
                        " back by hand; the messages are back, claim them again"
                    )
                self._run(f"{self._settle}; COMMIT")
                return
            except BaseException as error:
                with contextlib.suppress(exc.DBAPIError):
                    self.end_claim(keep=False)
                if isinstance(error, exc.DBAPIError) and self.is_undone(error):
                    raise Contended(
                        f"the database undid a claim on table ring {self.tables.name!r} because:"
                        f" {error.orig}; the messages are back, claim them again"
                    ) from error
                raise
        if not self._driver.closed:
            super().end_claim(keep=False)
        self._call("SELECT pg_notify(%s, '')", (self.tables.name,))

    def peek(self, which: Which, ahead: int = 0, whole: bool = False) -> Peek:
        if which == "push":
            return Peek(*self._look(self._look_push, (ahead,))[0])
        try:
            row = self._look(self._look_pop, (self._subscriber, whole))[0]
        except exc.DBAPIError as error:
            if not self._is_removed(error):
                raise
            return Peek(push=0, number=None)
        push, number, message_id, reference_count, holders, known, returned = row
        return Peek(push or 0, number, message_id, reference_count, holders, known or 0, returned)

    def waiting(self, peek: Peek) -> int:
        # Some of the numbers between may be none that a message has.
        slots = self.tables.slots.c
        query = (
            sa.select(sa.func.count())
            .select_from(self.tables.slots)
            .where(slots.message_id >= peek.number)
            .where(slots.holders.bitwise_and(mask(self._holder)) != 0)
        )
        with self.translated():
            return self.connection.execute(query).scalar_one()

    def listen(self, which: Which) -> float:
        # Who pushes or pops meets this lock and then notifies; see Parts.wake.
        self._run(f'LISTEN "{self.tables.name}"')
        self._waiters += 1
        lock = f"pg_try_advisory_lock({self._key}, {_AWAIT[which]})"
        return TOLD_WAIT if self._call(f"SELECT {lock}", ())[0][0] else UNTOLD_WAIT

    def unlisten(self, which: Which, announced: float) -> None:
        self._waiters -= 1
        if announced == TOLD_WAIT:
            self._call(f"SELECT pg_advisory_unlock({self._key}, {_AWAIT[which]})", ())
        if not self._waiters:
            self._run(f'UNLISTEN "{self.tables.name}"')

    def sleep(self, seconds: float) -> None:
        # Returns early also when another thread's answer arrives: then one looks once more.
        try:
            socket = self._driver.fileno()
        except self._engine.dialect.loaded_dbapi.Error:  # it is closed
            super().sleep(seconds)
            return
        ready = select.poll()
        ready.register(socket, select.POLLIN)
        ready.poll(seconds * 1000)

    def positions(self) -> tuple[int, dict[str, int]]:
        called = self._called
        push = self._look(self._look_push, (0,))[0][0]
        rows = self._look(
            f"SELECT u.name, (SELECT l.number FROM {called('_look_pop')}(u.name, u.holder,"
            f" to_regclass('{called('_pop_')}' || u.holder), false, {self._mark}) l)"
            f" FROM {called('_subscribers')} u",
            (),
        )
        return push, dict(rows)  # pyright: ignore[reportReturnType]

    # -- the ring itself -------------------------------------------------------------------------

    def lock_creation(self) -> None:
        self._run("SELECT pg_advisory_xact_lock(hashtext('shmring.table_ring'))")

    def exist(self, connection: sa.Connection) -> bool:
        # The path of another session may lead elsewhere, and so may this one's, once somebody makes
        # a table of this name: from now on everything of the ring is named with its schema.
        schema, self._schema, found = find_schema(self._call, self.tables.name)
        self.tables = Tables(
            self.tables.name,
            cursor_rows=self.cursor_rows,
            unlogged=self._unlogged,
            schema=schema,
        )
        return found

    def create(
        self, connection: sa.Connection, layout: Layout, subscribers: Sequence[str], unlogged: bool
    ) -> None:
        super().create(connection, layout, subscribers, unlogged)
        named = self._named
        self._run(
            f"CREATE {'UNLOGGED ' if unlogged else ''}TABLE {named('_claims')} ("
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
        check_functions(self._call, self._parts(layout))
        empty = f"SELECT NOT EXISTS (SELECT FROM {self._called()})"
        if unlogged and self._call(empty, ())[0][0]:
            # A crash of the server empties unlogged tables. The numbers go on.
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
        """Replace the functions, whatever their version, within a transaction."""
        # Nobody subscribes meanwhile.
        key = self._parts(layout).key
        self._run(f"SELECT pg_advisory_xact_lock({key}, {functions.PUSH})")
        self._drop_functions(connection)
        self._create_functions(connection, layout)

    def drop(self, connection: sa.Connection) -> None:
        name = self.tables.name
        self._drop_functions(connection)
        sequences = connection.execute(
            sa.text(
                "SELECT relname FROM pg_class WHERE relkind = 'S'"
                " AND relnamespace = CAST(:schema AS regnamespace)"
                " AND (relname = :push OR relname ~ :pop)"
            ),
            {"schema": self._schema, "push": f"{name}_push", "pop": f"^{name}_pop_[0-9]+$"},
        )
        for (sequence,) in sequences.all():
            self._run(f"DROP SEQUENCE {self._schema}.{sequence}")
        self._run(f"DROP TABLE IF EXISTS {self._named('_claims')}")
        super().drop(connection)

    def _create_functions(self, connection: sa.Connection, layout: Layout) -> None:
        for statement in functions.create(self._parts(layout), *self._subscribed(connection)):
            self._run(statement)

    def _parts(self, layout: Layout) -> Parts:
        return Parts(self.tables.name, self._schema, layout)

    def _named(self, suffix: str = "") -> str:
        return f"{self._schema}.{self.tables.name}{suffix}"

    def _called(self, suffix: str = "") -> str:
        """Return a name for a statement in which the driver looks for parameters."""
        return self._named(suffix).replace("%", "%%")

    def _subscribed(self, connection: sa.Connection) -> tuple[int, int]:
        """Return how many subscribers there are, and their bits."""
        ring = self.tables.ring.c
        row = connection.execute(sa.select(ring.subscribers, ring.holders)).one()
        return row.subscribers, row.holders

    def _refuse_missing(self) -> None:
        """Raise where this handle's ring is not there any more, or not whole."""
        if self._asking or not self._in_use:
            return
        if self._driver.closed or self._driver.info.transaction_status:
            return
        self._asking = True
        try:
            if not is_there(self._call, self._parts(self._layout)):
                raise self.dropped()
        finally:
            self._asking = False

    def _refuse_dropped(self, error: exc.DBAPIError) -> None:
        if is_gone(error):
            self._refuse_missing()

    def _is_removed(self, error: exc.DBAPIError) -> bool:
        """Whether something is missing because the handle's subscriber was removed."""
        # A sequence by its number alone, which only pops name.
        return is_gone(error) and not self._call(self._cursor_there, ())

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

    def _hold_pushes(self, connection: sa.Connection) -> int:
        return self._call(self._look_push, (0,))[0][0]

    def unsubscribe(self, name: str) -> None:
        for _ in range(ATTEMPTS):
            with contextlib.suppress(_ClaimBegun):
                return super().unsubscribe(name)
        raise Contended(
            f"subscriber {name!r} of table ring {self.tables.name!r} began {ATTEMPTS} claims while"
            " it was being removed; nothing was done, let it end its work and try again"
        )

    def _await_claims(self, connection: sa.Connection, holder: int) -> None:
        # A claim has its row's lock until its end. Who waits for it holds no other lock here.
        self._run(f"SELECT FROM {self._named('_claims')} WHERE subscriber = {holder} FOR UPDATE")

    def _add_cursor(self, connection: sa.Connection, holder: int, position: int) -> None:
        self._sequence(f"_pop_{holder}", position)

    def _drop_cursor(self, connection: sa.Connection, holder: int) -> None:
        for lock in (functions.POP + holder + functions.RUNS, functions.POP + holder):
            self._run(f"SELECT pg_advisory_xact_lock({self._key}, {lock})")
        claims = f"{self._named('_claims')} WHERE subscriber = {holder}"
        closed = f"SELECT FROM {claims} FOR UPDATE SKIP LOCKED"
        query = f"SELECT (SELECT count(*) FROM {claims}) > (SELECT count(*) FROM ({closed}) c)"
        if self._call(query.replace("%", "%%"), ())[0][0]:
            raise _ClaimBegun
        self._run(f"DELETE FROM {claims}")
        self._run(f"DROP SEQUENCE {self._named(f'_pop_{holder}')}")

    def _tell(self, connection: sa.Connection) -> None:
        for statement in functions.tell(self._parts(self._layout), *self._subscribed(connection)):
            self._run(statement)

    def _sequence(self, suffix: str, position: int) -> None:
        name = self._named(suffix)
        self._run(f"CREATE SEQUENCE {name} MINVALUE 0")
        self._run(f"SELECT setval('{name}'::regclass, {position})")

    def _oid(self, relation: str) -> int:
        found = self._call("SELECT to_regclass(%s)::oid::bigint", (relation,))[0][0]
        if found is None:
            raise Damaged(
                f"table ring {self.tables.name!r} lost {relation}; TableRing.drop, create again"
            )
        return found

    # -- statements ------------------------------------------------------------------------------

    def _move(self, attempt: Callable[[], R | None]) -> R | None:
        """Run a statement that takes numbers, and sync; None where it took none."""
        found = self._try(attempt)
        if found is not None and self.sync:
            self._value(self._sync, ())
        return found

    def _try(self, attempt: Callable[[], R | None]) -> R | None:
        """Run a statement that takes numbers; None where it took none.

        A number that an error cut off from its slot is taken back before the next call.
        """
        last: exc.DBAPIError | None = None
        for _ in range(ATTEMPTS):
            try:
                if self._untidy:
                    self.peek("push")
                    self.peek("pop", whole=self._undone)
                self._untidy = self._undone = True
                found = attempt()
                self._untidy = self._undone = False
            except exc.DBAPIError as error:
                if self.is_undone(error):
                    last = error
                    continue
                if sqlstate(error) == functions.FULL_WITHIN or self._is_removed(error):
                    self._untidy = self._undone = False
                    return None  # a look says which slot, or that the subscriber was removed
                raise
            return found
        raise self._gave_up(last)

    def _look(self, sql: str, parameters: Sequence[Any]) -> Rows:
        """Run a statement that tells where the ring stands."""
        last: exc.DBAPIError | None = None
        for _ in range(ATTEMPTS):
            try:
                return self._call(sql, parameters)
            except exc.DBAPIError as error:
                if not self.is_undone(error):
                    raise
                last = error
        raise self._gave_up(last)

    def _value(self, statement: Statement, parameters: Sequence[bytes]) -> bytes | None:
        return self._result(statement, parameters).get_value(0, 0)

    def _columns(
        self, statement: Statement, parameters: Sequence[bytes]
    ) -> list[list[bytes]] | None:
        """Run a statement, and return its two columns; None where there are no rows."""
        result = self._result(statement, parameters)
        rows, value = range(result.ntuples), result.get_value
        return [[value(row, column) or b"" for row in rows] for column in (0, 1)] if rows else None

    def _result(self, statement: Statement, parameters: Sequence[bytes]) -> psycopg.pq.abc.PGresult:
        if self._driver.closed:
            self._reconnect()
        try:
            return statement.run(self._driver, parameters)
        except self._engine.dialect.loaded_dbapi.Error as error:
            raise self._translate(error) from error

    def _call(self, sql: str, parameters: Sequence[Any]) -> Rows:
        if self._driver.closed:
            self._reconnect()
        try:
            return self._cursor.execute(sql.encode(), parameters, prepare=True).fetchall()
        except self._engine.dialect.loaded_dbapi.Error as error:
            raise self._translate(error) from error

    def _run(self, sql: str) -> None:
        if self._driver.closed:
            self._reconnect()
        try:
            self._driver.execute(sql.encode())
        except self._engine.dialect.loaded_dbapi.Error as error:
            raise self._translate(error) from error

    def _reconnect(self) -> None:
        with self.translated():
            self.connection.rollback()
            self.connection.invalidate()
            # SQLAlchemy connects anew, and has the new session prepared.
            assert self.connection.connection is not None

    def _translate(self, error: Exception) -> Exception:
        """Return the error as it comes through SQLAlchemy, or in our words."""
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
                        f"table ring {name!r}: {said(wrapped)}; somebody else wrote to the table"
                    )
                if is_gone(wrapped):
                    self._refuse_missing()
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


class _ClaimBegun(Exception):
    """A subscriber that is being removed has begun another claim."""


def _milliseconds(patience: float) -> int:
    return PATIENCE if patience >= 1 else min(PATIENCE, int(patience * 1000))


def _ignore(_: object) -> None:
    """Take a notification: that it has come is all one needs to know."""
