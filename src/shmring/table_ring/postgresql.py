"""The table ring on PostgreSQL: pushes, pops, leases and looks."""

from __future__ import annotations

import contextlib
import select
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import psycopg
import sqlalchemy as sa
from sqlalchemy import exc

from shmring.errors import Contended, Damaged
from shmring.table_ring.backend import ATTEMPTS, Message, Peek, Which
from shmring.table_ring.postgres_ring import (
    AWAIT_MESSAGE,
    AWAIT_SLOT,
    DONE,
    FULL_WITHIN,
    GIVEN_UP,
    IDLE,
    UNDONE,
    UNKNOWN,
    PostgresRing,
    Rows,
    bytea_array,
    mark_of,
)
from shmring.table_ring.schema import Layout, mask

R = TypeVar("R")

# Maximum milliseconds that the server itself waits for a slot or a message that may come soon.
LONGEST_WAIT = 50
# Seconds after which a waiting session looks without a notification. TOLD_WAIT: the session holds
# the lock that makes pushes or pops send notifications. UNTOLD_WAIT: another session holds that
# lock, and the notifications end when that session stops waiting.
TOLD_WAIT = 0.25
UNTOLD_WAIT = 0.02
_AWAIT = {"push": AWAIT_SLOT, "pop": AWAIT_MESSAGE}


class PostgresBackend(PostgresRing):
    """A push or pop is one statement, which calls a function of the ring.

    With ``durability="sync"`` a second, empty transaction follows and waits for the disk:
    docs/table-ring-design.md says why this is safe.
    """

    # Begin with IDLE, because a pop has already waited that long in the server. A shorter wait
    # gains little, because a notification ends a wait early.
    first_wait = IDLE / 1000

    _waiters = 0
    # Kind ("push" or "pop") of the last call that could take a number. If that call gave its number
    # up (`_last` is GIVEN_UP), a look of the same kind takes the number back.
    _given_up: Which = "pop"

    def use(self, layout: Layout) -> None:
        super().use(layout)
        named = self._named
        mark = self._mark = f"{mark_of(layout)} => true"
        self._push_one = f"SELECT {named('_push_one')}($1, $2, $3, {mark})"
        self._push_many = f"SELECT {named('_push_many')}($1, $2, {mark})"
        self._sync = (
            f"SELECT set_config('synchronous_commit', '{self._sync_level}', true),"
            " pg_logical_emit_message(true, '', '')"
        )
        self._look_push = f"SELECT * FROM {self._called('_look_push')}(%s::bigint, {mark})"

    def serve(self, subscriber: str, holder: int) -> bool:
        cursors = self._cursors()
        if (subscriber, holder) not in cursors:
            return False
        cursor = self._there(cursors[subscriber, holder], holder)
        named, called, mark = self._named, self._called, self._mark
        # Name the sequence by its oid, so that no call uses the sequence of another subscriber: if
        # this subscriber is removed, another can get its bit, and a sequence of the same name.
        pops = f"{cursor}::oid::regclass"
        me = f"{holder}, {pops}"
        self._me = subscriber, holder, cursor
        one = f"{holder}, '{mask(holder)}', {pops}, $1"
        self._pop_one = f"SELECT {named('_pop_one')}({one}, {mark})"
        several = f"FROM {named('_pop_many')}({me}, $1, $2, {mark})"
        self._pop_many = f"SELECT message_id, message {several}"
        self._pop_rows = f"SELECT message_id, time, message {several}"
        self._lease = f"SELECT {called('_lease')}({me}, %s::bigint, {mark})"
        self._open = f"SELECT * FROM {called('_open')}({me}, %s::bigint, {mark})"
        self._look_pop = (
            f"SELECT * FROM {called('_look_pop')}"
            f"(%s::text, %s::integer, %s::oid::regclass, %s, {mark})"
        )
        return True

    def push(self, rows: Sequence[bytes], time_ns: int, timeout: float) -> int | None:
        written = time_ns.to_bytes(8)
        if len(rows) == 1:
            statement = self._push_one
            parameters = (rows[0], written, _milliseconds(timeout).to_bytes(4))
        else:
            statement, parameters = self._push_many, (bytea_array(rows), written)
        number = self._move(lambda: self._send(statement, parameters).get_value(0, 0), "push")
        return None if number is None else int.from_bytes(number)

    def pop_one(self, timeout: float) -> bytes | None:
        parameters = (_milliseconds(timeout).to_bytes(4),)
        return self._move(lambda: self._send(self._pop_one, parameters).get_value(0, 0))

    def pop_many(self, limit: int, timeout: float) -> list[bytes]:
        return [data for _, data in self._take(self._pop_many, limit, timeout)]

    def pop_rows(self, limit: int, timeout: float) -> list[Message]:
        number = int.from_bytes
        return [
            (number(message_id), number(time, signed=True), data)
            for message_id, time, data in self._take(self._pop_rows, limit, timeout)
        ]

    def _take(self, statement: str, limit: int, timeout: float) -> list[tuple[bytes, ...]]:
        """Pop messages with a statement that returns few columns.

        Reading one more value costs the client half as much as reading the message.
        """
        parameters = (limit.to_bytes(8), _milliseconds(timeout).to_bytes(4))

        def attempt() -> list[tuple[bytes, ...]] | None:
            result = self._send(statement, parameters)
            value: Any = result.get_value
            rows = range(result.ntuples)
            found = [[value(row, column) for row in rows] for column in range(result.nfields)]
            return list(zip(*found, strict=True)) or None

        # Sort the rows: an UPDATE mostly returns them in order, but does not promise to. Numbers
        # are big-endian bytes, which sort in the order of the numbers.
        return sorted(self._move(attempt) or [])

    def begin_lease(self, limit: int) -> list[Message]:
        # Use _try(), which does not wait for the disk: the messages are popped only when the lease
        # ends, and the commit at its end waits for the disk.
        while self._try(lambda: self._call(self._lease, (limit,))[0][0]):
            if found := self.again(lambda: self._open_lease(limit)):
                lease, last = found[0][0], found[-1][1]
                me = f"{self._me[1]}, {lease}, {last}, {self._mark}"
                self._settle = f"SELECT {self._named('_settle')}({me})"
                return [row[1:] for row in found]  # pyright: ignore[reportReturnType]
            # Commit, and try to get another lease: this one has gone to another connection, or the
            # SQL function has deleted it, because all of its messages were popped before.
            self._run("COMMIT")
        return []

    def _open_lease(self, limit: int) -> Rows:
        try:
            self._begin()
            return self._call(self._open, (limit,))
        except BaseException:
            with contextlib.suppress(exc.DBAPIError):
                self._run("ROLLBACK")
            raise

    def end_lease(self, keep: bool) -> None:
        if keep:
            try:
                # Refuse if the lease's transaction has ended, because the connection was lost or
                # the user ran COMMIT or ROLLBACK: another handle may have the lease by now.
                if self._driver.closed or not self._driver.info.transaction_status:
                    raise Contended(
                        f"the transaction of a lease on table ring {self.tables.name!r} ended"
                        " within its block: its connection was lost, or it was committed or rolled"
                        " back by hand; the messages are back, lease them again"
                    )
                self._run(f"{self._settle}; COMMIT")
                return
            except BaseException as error:
                with contextlib.suppress(exc.DBAPIError):
                    self.end_lease(keep=False)
                if isinstance(error, exc.DBAPIError) and self.is_undone(error):
                    raise Contended(
                        f"the database undid a lease on table ring {self.tables.name!r} because:"
                        f" {error.orig}; the messages are back, lease them again"
                    ) from error
                raise
        if not self._driver.closed:
            super().end_lease(keep=False)
        self._call("SELECT pg_notify(%s, '')", (self.tables.name,))

    def peek(self, which: Which, ahead: int = 0, whole: bool = False) -> Peek:
        if which == "push":
            peek = Peek(*self._look(self._look_push, (ahead,))[0])
        else:
            peek = self._peek_pop(*self._me, whole)
        # Clear GIVEN_UP only if this look is of the same kind as the call that gave the number up,
        # because only such a look takes the number back. Threads share this handle: after a pop of
        # one thread, another thread may look for a push first.
        if self._last == GIVEN_UP and which == self._given_up:
            self._last = DONE
        return peek

    def _peek_pop(self, subscriber: str, holder: int, cursor: int, whole: bool) -> Peek:
        try:
            row = self._look(self._look_pop, (subscriber, holder, cursor, whole))[0]
        except exc.DBAPIError as error:
            if not self._is_removed(error, cursor):
                raise
            return Peek(push=0, number=None)
        return Peek(*row)

    def waiting(self, peek: Peek) -> int:
        # Count slots, not numbers: some of the numbers may belong to no message.
        slots = self.tables.slots.c
        query = (
            sa.select(sa.func.count())
            .select_from(self.tables.slots)
            .where(slots.message_id >= peek.number)
            .where(slots.holders.bitwise_and(mask(self._me[1])) != 0)
        )
        return self.rows(query)[0][0]

    def listen(self, which: Which) -> float:
        # Take the lock after LISTEN: a push or pop that finds the lock taken sends a notification
        # (see functions.sql).
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

    def told(self) -> int:
        # Count the notifications so far: the next look sees the messages that they announce. The
        # call also raises an error if the connection has ended.
        self._sent(self._take_notifications)
        return self._told

    def sleep(self, seconds: float, told: int = 0) -> None:
        # Compare the counts first: if a notification came together with the answer to the look, the
        # driver has read both, and poll() finds nothing more to read.
        if self._told != told:
            return
        # poll() also returns when the answer to another thread's statement arrives. The caller then
        # looks once more than necessary.
        try:
            socket = self._driver.fileno()
        except psycopg.Error:  # without a connection there are no notifications: just sleep
            super().sleep(seconds, told)
            return
        ready = select.poll()
        ready.register(socket, select.POLLIN)
        ready.poll(seconds * 1000)

    def positions(self) -> tuple[int, dict[str, int]]:
        for _ in range(ATTEMPTS):
            push = self._look(self._look_push, (0,))[0][0]
            cursors = self._cursors()
            # Look by one statement for each subscriber, because a look keeps its locks until its
            # statement ends.
            numbers = {
                name: self._peek_pop(name, holder, self._there(cursor, holder), False).number
                for (name, holder), cursor in cursors.items()
            }
            pops = {name: number for name, number in numbers.items() if number is not None}
            if len(pops) == len(cursors):
                return push, pops
        raise Contended(
            f"subscribers of table ring {self.tables.name!r} were removed while their positions"
            f" were read, {ATTEMPTS} times; try again"
        )

    def _is_removed(self, error: exc.DBAPIError, cursor: int) -> bool:
        """Return whether the error comes from the removal of the subscriber with this sequence."""
        # Look for the sequence's oid: a later subscriber may have a sequence of the same name.
        query = "SELECT 1 FROM pg_class WHERE oid = %s::oid"
        return self.is_gone(error) and not self._call(query, (cursor,))

    def _hold_pushes(self, connection: sa.Connection) -> int:
        return self._call(self._look_push, (0,))[0][0]

    def _cursors(self) -> dict[tuple[str, int], int | None]:
        """Return the oid of each subscriber's sequence, by the subscriber's name and bit.

        The oid is None if the sequence is missing. One statement reads subscribers and sequences at
        one moment: after a subscriber is removed, the next subscriber with its bit has a sequence
        of the same name.
        """
        rows = self._call(
            f"SELECT u.name, u.holder, c.oid::bigint FROM {self._called('_subscribers')} u"
            " LEFT JOIN pg_class c ON c.relname = (%s || u.holder)::name"
            " AND c.relnamespace = %s::regnamespace",
            (f"{self.tables.name}_pop_", self._schema),
        )
        return {(name, holder): cursor for name, holder, cursor in rows}

    def _there(self, cursor: int | None, holder: int) -> int:
        if cursor is None:
            raise Damaged(
                f"table ring {self.tables.name!r} lost {self._named(f'_pop_{holder}')};"
                " TableRing.drop, create again"
            )
        return cursor

    def _move(self, attempt: Callable[[], R | None], which: Which = "pop") -> R | None:
        """Run a statement that takes numbers, and sync; None if it took no number."""
        found = self._try(attempt, which)
        if found is not None and self.sync:
            self._send(self._sync, ())
        return found

    def _try(self, attempt: Callable[[], R | None], which: Which = "pop") -> R | None:
        """Run a statement that takes numbers; None if it took no number.

        If the last call took a number without writing the number's slot, and no look has followed,
        two looks come first, for a push and for a pop: each corrects one of the two cursors.
        """

        def tidy_attempt() -> R | None:
            if self._last:
                # Search the whole table if an error has undone the last call: the sequence keeps
                # the call's number, and other sessions may have taken many later numbers since.
                whole = self._last == UNDONE
                # Remember the state for the next call, if one of the looks below fails.
                self._last = max(self._last, UNKNOWN)
                self.peek("push")
                self.peek("pop", whole=whole)
            self._last, self._given_up = UNDONE, which
            found = attempt()
            self._last = DONE if found is not None else GIVEN_UP
            return found

        try:
            return self.again(tidy_attempt)
        except exc.DBAPIError as error:
            full = self.code(error) == FULL_WITHIN
            if not full and not self._is_removed(error, self._me[2]):
                raise
            self._last = GIVEN_UP
            # Let the caller look: it then sees how many slots are free, or that the subscriber was
            # removed.
            return None

    def _look(self, sql: str, parameters: Sequence[Any]) -> Rows:
        """Run a statement that reads the state of the ring."""
        return self.again(lambda: self._call(sql, parameters))


def _milliseconds(timeout: float) -> int:
    return LONGEST_WAIT if timeout >= 1 else min(LONGEST_WAIT, int(timeout * 1000))
