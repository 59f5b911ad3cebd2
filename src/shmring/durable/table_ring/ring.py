"""A ring made of database rows, for hosts that share a database rather than memory.

    with TableRing("postgresql://db/queues", name="orders", slots=100_000) as ring:
        ring.push(b"hello")
        ring.pop(timeout=1.0)

The table's rows all exist from the start and are only ever updated. Push and pop have the names,
time-outs and exceptions of the ring in memory. docs/table-ring.md explains the design.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Self

import sqlalchemy as sa

from shmring.closing import Closing
from shmring.durable.table_ring.backend import Backend, Durability, Peek
from shmring.durable.table_ring.databases import address, backend_of
from shmring.durable.table_ring.input import (
    Deadline,
    Making,
    message,
    messages,
    not_found,
    refuse_missing,
    shown,
)
from shmring.durable.table_ring.schema import (
    Layout,
    Tables,
    check_name,
    check_subscribers,
    stride_for,
)
from shmring.errors import (
    BranchDropped,
    BranchNotFound,
    Closed,
    Damaged,
    Empty,
    ForkedHandle,
    Full,
    MessageTooLarge,
    RingExists,
    RingNotFound,
)

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["TableRing", "TableRingStats"]


@dataclass(frozen=True)
class TableRingStats:
    """What one connection did since it was opened.

    Attributes
    ----------
    pushed, pushed_bytes : messages published, and their bytes
    popped, popped_bytes : messages taken, and their bytes
    full_waits, empty_waits : calls that met a full or an empty ring at least once
    retries : attempts beyond the first of a call
    """

    pushed: int = 0
    pushed_bytes: int = 0
    popped: int = 0
    popped_bytes: int = 0
    full_waits: int = 0
    empty_waits: int = 0
    retries: int = 0


class TableRing(Closing):
    """One connection to a ring of rows; opens the ring, and creates it where it is missing.

    Parameters
    ----------
    url : SQLAlchemy URL: ``sqlite:///file`` or ``postgresql://...`` (psycopg 3)
    name : name of the ring, and of its table
    slots : how many messages the ring holds; needed to create it, checked if it is there already
    subscriber : whose messages this connection pops; connections of one subscriber share its work
    subscribers : all of them, for a ring that is created now; each gets every message
    scattered : for a ring that is created now: neighbours lie far apart in the table
    head_start : pop only begins when so many messages wait; afterwards it makes no difference
    durability : ``"sync"``: push and pop return when the database has them on disk;
        ``"delayed"``: a crash of the database's host may undo the last moments

    Raises
    ------
    RingNotFound : the ring is missing and `slots` was not given
    BranchNotFound : the ring has no such subscriber

    Notes
    -----
    Threads may share a handle: one statement runs at a time, and a thread that waits for a slot or
    a message keeps nobody from using it. A handle each is faster. A forked child must attach again.
    """

    def __init__(
        self,
        url: str | sa.URL,
        *,
        name: str = "shmring",
        slots: int | None = None,
        subscriber: str | None = None,
        subscribers: Sequence[str] = ("main",),
        scattered: bool = False,
        head_start: int = 0,
        durability: Durability = "sync",
    ) -> None:
        made = None if slots is None else Making(slots, subscribers, scattered, must_create=False)
        self._open(url, name, made, subscriber, head_start, durability)

    @classmethod
    def create(
        cls,
        url: str | sa.URL,
        *,
        name: str = "shmring",
        slots: int,
        subscriber: str | None = None,
        subscribers: Sequence[str] = ("main",),
        scattered: bool = False,
        head_start: int = 0,
        durability: Durability = "sync",
    ) -> Self:
        """Create a ring and open it; RingExists if it is there already."""
        ring = cls.__new__(cls)
        made = Making(slots, subscribers, scattered, must_create=True)
        ring._open(url, name, made, subscriber, head_start, durability)
        return ring

    @classmethod
    def attach(
        cls,
        url: str | sa.URL,
        *,
        name: str = "shmring",
        subscriber: str | None = None,
        head_start: int = 0,
        durability: Durability = "sync",
    ) -> Self:
        """Open a ring that is there; RingNotFound if it is not."""
        ring = cls.__new__(cls)
        ring._open(url, name, None, subscriber, head_start, durability)
        return ring

    @staticmethod
    def drop(url: str | sa.URL, *, name: str = "shmring") -> None:
        """Delete a ring with everything in it; RingNotFound if there is none."""
        where = address(url)
        tables = Tables(check_name(name))
        refuse_missing(where, name)
        backend = backend_of(where)(where, tables, "sync")

        def drop(connection: sa.Connection) -> None:
            backend.lock_creation()
            if not tables.exist(connection):
                raise RingNotFound(not_found(where, name))
            tables.drop(connection)

        try:
            backend.transact(drop)
        finally:
            backend.close()

    def _open(
        self,
        url: str | sa.URL,
        name: str,
        making: Making | None,
        subscriber: str | None,
        head_start: int,
        durability: Durability,
    ) -> None:
        self.name = check_name(name)
        self.url = address(url)
        if durability not in ("sync", "delayed"):
            raise ValueError(f'durability must be "sync" or "delayed", not {durability!r}')
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._closed = False
        self._stats = TableRingStats()
        self._tables = Tables(name)
        if making is None:
            refuse_missing(self.url, name)
        self._backend = backend_of(self.url)(self.url, self._tables, durability)
        try:
            self.layout = self._create_or_read(making)
            self._backend.use(self.layout)
            self.subscriber = self._choose_subscriber(subscriber)
            if not 0 <= head_start <= self.layout.slots:
                raise ValueError(
                    f"head_start must be 0 to {self.layout.slots} (the slots of ring"
                    f" {name!r}), not {head_start}: more can never wait"
                )
        except BaseException:
            self._backend.close()
            raise
        self._head_start = head_start

    def _create_or_read(self, making: Making | None) -> Layout:
        tables = self._tables
        with self._backend.transaction() as connection:
            self._backend.lock_creation()
            exists = tables.exist(connection)
            if exists and making and making.must_create:
                raise RingExists(
                    f"table ring {self.name!r} is there already in {shown(self.url)};"
                    " TableRing.attach opens it, TableRing.drop deletes it"
                )
            if not exists:
                if making is None:
                    raise RingNotFound(not_found(self.url, self.name))
                layout = Layout(making.slots, stride_for(making.slots, scattered=making.scattered))
                tables.create(connection, layout, making.subscribers, self._backend.free_message)
                return layout
            row = tables.read(connection)
        layout = self._tables.check(row)
        if making and making.slots != layout.slots:
            raise ValueError(
                f"table ring {self.name!r} has {layout.slots} slots, not {making.slots};"
                " leave `slots` out to attach"
            )
        return layout

    def _choose_subscriber(self, wanted: str | None) -> str:
        names = sorted(self.positions()[1])
        if wanted is None:
            # Whoever only pushes need not name one.
            wanted = "main" if "main" in names or not names else names[0]
        if wanted not in names:
            raise BranchNotFound(
                f"table ring {self.name!r} has no subscriber {wanted!r}, only"
                f" {', '.join(map(repr, names))}; add it with ring.subscribe({wanted!r})"
            )
        return wanted

    @property
    def slots(self) -> int:
        """How many messages the ring holds."""
        return self.layout.slots

    def push(self, data: bytes | bytearray | memoryview, *, timeout: float | None = None) -> int:
        """Publish one message.

        Parameters
        ----------
        data : at most 300 bytes
        timeout : seconds to wait for a free slot; None waits for ever, 0 does not wait

        Returns
        -------
        message_id of the message

        Raises
        ------
        Full : no slot became free in time; nothing was published and no number was used up
        MessageTooLarge : `data` is longer than 300 bytes
        """
        return self._push([message(data)], timeout)

    def push_many(self, rows: Iterable[Any], *, timeout: float | None = None) -> int:
        """Publish each row as one message, all of them in one transaction.

        Parameters
        ----------
        rows : sequence of bytes; or uint8 array of shape (n, k), k <= 300; or a pyarrow array of
            a binary type
        timeout : seconds to wait for free slots; None waits for ever, 0 does not wait

        Returns
        -------
        message_id of the first row; the others follow it one by one

        Raises
        ------
        Full : fewer than n slots became free in time; nothing was published
        MessageTooLarge : a row is longer than 300 bytes, or n rows can never fit this ring
        """
        return self._push(messages(rows), timeout)

    def pop(self, *, timeout: float | None = None) -> bytes:
        """Take the subscriber's next message.

        Parameters
        ----------
        timeout : seconds to wait for one; None waits for ever, 0 does not wait

        Raises
        ------
        Empty : no message came in time; nothing was taken
        BranchDropped : the subscriber was removed
        """
        return self._pop(1, timeout)[0]

    def pop_many(self, limit: int = 1000, *, timeout: float | None = None) -> list[bytes]:
        """Take the messages that wait, at least one and at most `limit`, in one transaction.

        Parameters
        ----------
        limit : the most to take
        timeout : seconds to wait for the first; None waits for ever, 0 does not wait

        Raises
        ------
        Empty : no message came in time; nothing was taken
        BranchDropped : the subscriber was removed
        """
        if limit < 1:
            raise ValueError(f"limit must be 1 or more, not {limit}")
        return self._pop(min(limit, self.slots), timeout)

    def subscribe(self, name: str) -> None:
        """Add a subscriber; it sees what is pushed from now on.

        Raises
        ------
        ValueError : there is one of this name
        LimitReached : the ring has 64 already
        """
        check_subscribers([name])
        with self._use() as backend:
            lock = backend.lock_rows()
            backend.transact(lambda connection: self._tables.subscribe(connection, name, lock))

    def unsubscribe(self, name: str) -> None:
        """Remove a subscriber; what it has not popped no longer waits for it.

        Raises
        ------
        BranchNotFound : there is none of this name
        ValueError : it is the last one, without whom nothing would hold a message
        """
        with self._use() as backend:
            lock = backend.lock_rows()
            backend.transact(lambda connection: self._tables.unsubscribe(connection, name, lock))

    def positions(self) -> tuple[int, dict[str, int]]:
        """Return the number of the next push, and of each subscriber's next pop."""
        ring, subscribers = self._tables.ring, self._tables.subscribers
        query = sa.select(ring.c.position, subscribers.c.name, subscribers.c.position)
        query = query.select_from(ring.outerjoin(subscribers, sa.true()))
        with self._use() as backend, backend.translated():
            rows = backend.connection.execute(query).all()
        if not rows or rows[0][1] is None:
            raise Damaged(f"table ring {self.name!r} lost its cursors; TableRing.drop it")
        return rows[0][0], {row[1]: row[2] for row in rows}

    def stats(self) -> TableRingStats:
        """Return what this connection did so far."""
        return self._stats

    def table(self) -> pa.Table:
        """Return all slots in order as a pyarrow Table, as they are at this moment.

        Columns slot, message_id, time, message, reference_count. A free slot has no message_id
        and no message; its time is that of the last message it held.
        """
        from shmring.durable.table_ring.arrow import query, to_arrow

        with self._use() as backend, backend.translated():
            rows = backend.connection.execute(query(self._tables)).all()
        return to_arrow(rows)

    def close(self) -> None:
        """Close the connection; the ring stays. Closing twice is nothing."""
        if self._pid != os.getpid():
            return  # the parent's connection: not ours to end
        with self._lock:
            if not self._closed:
                self._closed = True
                self._backend.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"subscriber {self.subscriber!r}"
        return f"<TableRing {self.name!r} in {shown(self.url)}, {self.slots} slots, {state}>"

    @contextlib.contextmanager
    def _use(self) -> Generator[Backend]:
        """Lend the connection to one thread; refuse a closed or inherited handle."""
        if self._pid != os.getpid():
            raise ForkedHandle(
                f"this handle of table ring {self.name!r} was opened by process {self._pid};"
                " a database connection does not survive a fork, attach again in the child"
            )
        with self._lock:
            if self._closed:
                raise Closed(f"this handle of table ring {self.name!r} was closed; attach again")
            yield self._backend

    def _push(self, rows: list[bytes], timeout: float | None) -> int:
        deadline = Deadline(timeout)
        if len(rows) > self.slots:
            raise MessageTooLarge(
                f"{len(rows)} rows can never fit table ring {self.name!r} of {self.slots} slots;"
                " push fewer at a time"
            )
        misses = 0
        while (first := self._try_push(rows)) is None:
            misses += 1
            # A miss may also mean that another connection was faster: look before waiting.
            while not self._has_room(len(rows)):
                if not deadline.waits:
                    self._count(full_waits=1)
                if not deadline.wait():
                    raise Full(
                        f"table ring {self.name!r}: {len(rows)} of {self.slots} slots did not"
                        f" become free within {timeout} s; the slowest subscriber holds them"
                    )
        self._count(pushed=len(rows), pushed_bytes=sum(map(len, rows)), retries=misses)
        return first

    def _try_push(self, rows: list[bytes]) -> int | None:
        with self._use() as backend:
            return backend.push(rows, time.time_ns())

    def _has_room(self, count: int) -> bool:
        with self._use() as backend:
            peek = backend.peek("push", self.subscriber, count - 1)
        self._check(peek, "push")
        return peek.reference_count == 0

    def _pop(self, limit: int, timeout: float | None) -> list[bytes]:
        deadline = Deadline(timeout)
        misses = 0
        while not (found := self._try_pop(limit)):
            misses += 1
            while not self._has_messages():
                if not deadline.waits:
                    self._count(empty_waits=1)
                if not deadline.wait():
                    needed = f", or fewer than head_start {self._head_start}"
                    raise Empty(
                        f"table ring {self.name!r}: no message for subscriber"
                        f" {self.subscriber!r}{needed if self._head_start else ''} within"
                        f" {timeout} s"
                    )
            self._head_start = 0
        self._count(popped=len(found), popped_bytes=sum(map(len, found)), retries=misses)
        return found

    def _try_pop(self, limit: int) -> list[bytes]:
        if self._head_start:
            return []
        with self._use() as backend:
            return backend.pop(self.subscriber, limit)

    def _has_messages(self) -> bool:
        with self._use() as backend:
            peek = backend.peek("pop", self.subscriber)
        if peek.pop is None:
            raise BranchDropped(
                f"subscriber {self.subscriber!r} of table ring {self.name!r} was removed;"
                " subscribe it again and attach"
            )
        self._check(peek, "pop")
        waiting = peek.push - peek.pop
        if waiting and peek.message_id != peek.pop:
            raise Damaged(
                f"table ring {self.name!r}: message {peek.pop} should be in slot"
                f" {self.layout.place(peek.pop)}, which holds {peek.message_id}; somebody else"
                " wrote to the table"
            )
        return waiting >= max(1, self._head_start)

    def _check(self, peek: Peek, which: Literal["push", "pop"]) -> None:
        if peek.reference_count is None:
            raise Damaged(
                f"table ring {self.name!r} lost a row: the slot of the next {which} is missing"
                f" from table {self._tables.slots.name}"
            )

    def _count(self, **added: int) -> None:
        with self._lock:
            new = {key: getattr(self._stats, key) + value for key, value in added.items()}
            self._stats = replace(self._stats, **new)
