"""A ring made of database rows, for hosts that share a database rather than memory.

    with TableRing("postgresql://db/queues", name="orders", slots=100_000) as ring:
        ring.push(b"hello")
        ring.pop(timeout=1.0)

All rows of the table exist from the start and are only updated. Push and pop have the names,
timeouts and exceptions of the ring in memory. docs/table-ring-design.md explains the design.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Self

import sqlalchemy as sa

from shmring.closing import Closing
from shmring.errors import Damaged
from shmring.table_ring.backend import Backend, Deadline, Durability
from shmring.table_ring.opening import (
    Making,
    address,
    backend_of,
    change_ring,
    choose_subscriber,
    create_or_read,
    message,
    messages,
    refuse_missing,
    shown,
)
from shmring.table_ring.schema import check_name, check_subscribers
from shmring.table_ring.turns import (
    Claim,
    TableRingStats,
    Turns,
    to_batch,
)

if TYPE_CHECKING:
    import pyarrow as pa


class TableRing(Closing):
    """One connection to a ring of rows; opens the ring, or creates it if it is missing.

    Parameters
    ----------
    url : SQLAlchemy URL: ``sqlite:///file`` or ``postgresql://...`` (psycopg 3)
    name : name of the ring, and of its table
    slots : number of messages that the ring holds; needed to create a ring, checked if it exists
    subscriber : the subscriber for which this connection pops; several connections may share one
    subscribers : names of all subscribers of a new ring; each subscriber gets every message
    scattered : in a new ring, put neighbours far apart in the table
    unlogged : on PostgreSQL, make a new ring faster; a crash of the server then empties it
    head_start : the first pop waits until so many messages wait, up to all slots; later pops are
        not changed
    durability : ``"sync"``: push and pop return when the database has them on disk;
        ``"delayed"``: a crash of the database's host may undo the last moments

    Raises
    ------
    RingNotFound : the ring does not exist and `slots` was not given
    SubscriberNotFound : the ring has no such subscriber

    Notes
    -----
    Threads may share a handle: one statement runs at a time, and the other threads can use the
    handle while one waits for a slot or a message. One handle for each thread is faster. A forked
    child must attach again.
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
        unlogged: bool = False,
        head_start: int = 0,
        durability: Durability = "sync",
    ) -> None:
        made = None
        if slots is not None:
            made = Making(slots, subscribers, scattered, unlogged, must_create=False)
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
        unlogged: bool = False,
        head_start: int = 0,
        durability: Durability = "sync",
    ) -> Self:
        """Create a ring and open it; RingExists if it exists already."""
        ring = cls.__new__(cls)
        made = Making(slots, subscribers, scattered, unlogged, must_create=True)
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
        """Open an existing ring; RingNotFound if it does not exist."""
        ring = cls.__new__(cls)
        ring._open(url, name, None, subscriber, head_start, durability)
        return ring

    @staticmethod
    def drop(url: str | sa.URL, *, name: str = "shmring") -> None:
        """Delete a ring with everything in it; RingNotFound if it does not exist."""
        change_ring(url, name, lambda backend, connection: backend.drop(connection))

    @staticmethod
    def renew(url: str | sa.URL, *, name: str = "shmring") -> None:
        """Give a ring on PostgreSQL the functions of this version of shmring.

        The ring keeps its messages. Open handles of another version call the same functions by
        name, so all users of a ring must change together.
        """

        def renew(backend: Backend, connection: sa.Connection) -> None:
            layout = backend.tables.check(backend.tables.read(connection))
            backend.renew(connection, layout)

        change_ring(url, name, renew)

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
        if making is None:
            refuse_missing(self.url, name)
        unlogged = making is not None and making.unlogged
        backend = backend_of(self.url)(self.url, name, durability, unlogged)
        try:
            self.layout = create_or_read(backend, making)
            backend.use(self.layout)
            self.subscriber = choose_subscriber(backend, subscriber)
            if not 0 <= head_start <= self.layout.slots:
                raise ValueError(
                    f"head_start must be 0 to {self.layout.slots} (the slots of ring"
                    f" {name!r}), not {head_start}: more can never wait"
                )
        except BaseException:
            backend.close()
            raise
        self._turns = Turns(backend, self.layout, self.subscriber, head_start)

    @property
    def slots(self) -> int:
        """Number of messages that the ring holds."""
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
        return self._turns.push([message(data)], timeout)

    def push_many(self, rows: Iterable[Any], *, timeout: float | None = None) -> int:
        """Publish each row as one message, all of them in one transaction.

        Parameters
        ----------
        rows : sequence of bytes; or uint8 array of shape (n, k), k <= 300; or an Arrow array of
            a binary type; or an Arrow batch or table with such a column ``message``
        timeout : seconds to wait for free slots; None waits for ever, 0 does not wait

        Returns
        -------
        message_id of the first row; the others follow it one by one

        Raises
        ------
        Full : fewer than n slots became free in time; nothing was published
        MessageTooLarge : a row is longer than 300 bytes, or n rows can never fit this ring
        """
        return self._turns.push(messages(rows), timeout)

    def pop(self, *, timeout: float | None = None) -> bytes:
        """Take the subscriber's next message.

        Parameters
        ----------
        timeout : seconds to wait for a message; None waits for ever, 0 does not wait

        Raises
        ------
        Empty : no message came in time; nothing was taken
        SubscriberDropped : the subscriber was removed
        """
        deadline = Deadline(timeout)

        def attempt(backend: Backend) -> list[bytes]:
            data = backend.pop_one(deadline.remaining)
            return [] if data is None else [data]

        return self._turns.pop(attempt, deadline)[0]

    def pop_many(self, limit: int = 1000, *, timeout: float | None = None) -> list[bytes]:
        """Take the messages that wait, at least one and at most `limit`, in one transaction.

        Parameters
        ----------
        limit : the most to take
        timeout : seconds to wait for the first; None waits for ever, 0 does not wait

        Raises
        ------
        Empty : no message came in time; nothing was taken
        SubscriberDropped : the subscriber was removed
        """
        most = self._limit(limit)
        deadline = Deadline(timeout)
        taken = self._turns.pop(
            lambda backend: backend.pop_many(most, deadline.remaining), deadline
        )
        return list(taken)

    def pop_batch(self, limit: int = 1000, *, timeout: float | None = None) -> pa.RecordBatch:
        """Take messages as :meth:`pop_many` does, as an Arrow batch: message_id, time, message."""
        most = self._limit(limit)
        deadline = Deadline(timeout)
        return to_batch(
            self._turns.pop(lambda backend: backend.pop_rows(most, deadline.remaining), deadline)
        )

    def claim(
        self, limit: int = 1, *, timeout: float | None = None
    ) -> contextlib.AbstractContextManager[Claim]:
        """Pop messages when the block ends; if it raises, or the process dies, they stay.

            with ring.claim(10) as claim:
                for data in claim:
                    claim.connection.execute(...)  # committed with the pop, or undone with it

        Other connections of the subscriber pop later messages meanwhile; if the claim is given up,
        they get its messages next. On SQLite an open claim is the database's only writer, and all
        others wait for its end.

        Parameters
        ----------
        limit : the most to take
        timeout : seconds to wait for the first; None waits for ever, 0 does not wait

        Raises
        ------
        Empty : no message came in time; nothing was taken
        SubscriberDropped : the subscriber was removed
        ClaimOpen : every other use of this handle within the block raises this
        """
        return self._turns.claim(self._limit(limit), Deadline(timeout))

    def _limit(self, limit: int) -> int:
        if limit < 1:
            raise ValueError(f"limit must be 1 or more, not {limit}")
        return min(limit, self.slots)

    def subscribe(self, name: str) -> None:
        """Add a subscriber; it gets the messages that are pushed from now on.

        Raises
        ------
        ValueError : the ring has a subscriber of this name
        LimitReached : the ring has 64 subscribers already
        """
        check_subscribers([name])
        with self._turns.use() as backend:
            backend.subscribe(name)

    def unsubscribe(self, name: str) -> None:
        """Remove a subscriber; messages that it has not popped no longer wait for it.

        Raises
        ------
        SubscriberNotFound : the ring has no subscriber of this name
        ValueError : it is the last subscriber; without it, nothing would hold the messages
        """
        with self._turns.use() as backend:
            backend.unsubscribe(name)

    def positions(self) -> tuple[int, dict[str, int]]:
        """Return the number of the next push, and of each subscriber's next pop."""
        with self._turns.use() as backend:
            push, pops = backend.positions()
        if not pops:
            raise Damaged(f"table ring {self.name!r} lost its cursors; TableRing.drop it")
        return push, pops

    def stats(self) -> TableRingStats:
        """Return the counters of this connection."""
        return self._turns.stats()

    def table(self) -> pa.Table:
        """Return all slots in order as a pyarrow Table, all read at one moment.

        Columns slot, message_id, time, message, reference_count. A free slot has no message_id
        and no message; its time is that of the last message it held.
        """
        import pyarrow as pa

        with self._turns.use() as backend:
            columns = backend.tables.slots.c
            held = columns.reference_count > 0  # a free slot's old message is not shown
            query = sa.select(
                columns.slot,
                sa.case((held, columns.message_id)).label("message_id"),
                columns.time,
                sa.case((held, columns.message)).label("message"),
                columns.reference_count,
            ).order_by(columns.slot)
            rows = backend.rows(query)
        kinds: dict[str, pa.DataType] = {
            "slot": pa.int64(),
            "message_id": pa.int64(),
            "time": pa.timestamp("ns", "UTC"),
            "message": pa.binary(),
            "reference_count": pa.int16(),
        }
        found = list(zip(*rows, strict=True)) or [()] * len(kinds)
        named = zip(kinds.items(), found, strict=True)
        return pa.table({name: pa.array(values, kind) for (name, kind), values in named})

    def close(self) -> None:
        """Close the connection; the ring stays. A second call does nothing."""
        self._turns.close()

    def __repr__(self) -> str:
        state = "closed" if self._turns.closed else f"subscriber {self.subscriber!r}"
        return f"<TableRing {self.name!r} in {shown(self.url)}, {self.slots} slots, {state}>"
