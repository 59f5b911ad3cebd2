"""A ring made of database rows, for hosts that share a database rather than memory.

    with TableRing("postgresql://db/queues", name="orders", slots=100_000) as ring:
        ring.push(b"hello")
        ring.pop(timeout=1.0)

All rows of the table exist from the start and are only updated. Push and pop have the names,
timeouts and exceptions of the ring in memory. docs/table-ring-design.md explains the design.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, cast

import sqlalchemy as sa
from sqlalchemy import exc

from shmring.arguments import at_least_one, integer
from shmring.closing import Closing
from shmring.errors import Damaged, MessageTooLarge, MissingExtra, RingExists, RingNotFound
from shmring.table_ring.backend import Backend, Durability, SubscriberNotFound
from shmring.table_ring.schema import (
    MAX_SLOTS,
    MESSAGE_BYTES,
    Layout,
    check_name,
    check_subscribers,
    stride_for,
)
from shmring.table_ring.turns import Claim, TableRingStats, Turns, to_batch

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass
class Making:
    """The options with which a ring is created."""

    slots: int
    subscribers: Sequence[str]
    scattered: bool
    unlogged: bool
    must_create: bool

    def __post_init__(self) -> None:
        integer("slots", self.slots, 1, MAX_SLOTS)
        self.subscribers = check_subscribers(self.subscribers)


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
            backend.renew(connection, backend.tables.read(connection))

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
        backend_of, self.url = locate(url, name, missing=making is not None)
        self.name = name
        if durability not in ("sync", "delayed"):
            raise ValueError(f'durability must be "sync" or "delayed", not {durability!r}')
        unlogged = making is not None and making.unlogged
        backend = backend_of(self.url, name, durability, unlogged)
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

        def attempt(backend: Backend, seconds: float) -> list[bytes]:
            data = backend.pop_one(seconds)
            return [] if data is None else [data]

        return self._turns.pop(attempt, timeout)[0]

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
        return list(self._turns.pop(lambda backend, left: backend.pop_many(most, left), timeout))

    def pop_batch(self, limit: int = 1000, *, timeout: float | None = None) -> pa.RecordBatch:
        """Take messages as :meth:`pop_many` does, as an Arrow batch: message_id, time, message."""
        most = self._limit(limit)
        rows = self._turns.pop(lambda backend, left: backend.pop_rows(most, left), timeout)
        return to_batch(rows)

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
        return self._turns.claim(self._limit(limit), timeout)

    def _limit(self, limit: int) -> int:
        return min(at_least_one("limit", limit), self.slots)

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


def message(data: bytes | bytearray | memoryview, which: str = "message") -> bytes:
    if type(data) is bytes and len(data) <= MESSAGE_BYTES:
        return data
    if not isinstance(data, (bytes, bytearray, memoryview)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"a message is bytes, not {type(data).__name__}; encode it first")
    if memoryview(data).nbytes > MESSAGE_BYTES:
        raise MessageTooLarge(
            f"{which} of {memoryview(data).nbytes} bytes; a row of the table holds at most"
            f" {MESSAGE_BYTES}, send parts or a reference"
        )
    return bytes(data)


def messages(rows: Any) -> list[bytes]:
    if isinstance(rows, (bytes, bytearray, str)):
        raise TypeError(f"rows is one {type(rows).__name__}, not a sequence; use push() for one")
    if hasattr(rows, "schema") and hasattr(rows, "column"):  # an Arrow batch or table
        if "message" not in rows.schema.names:
            raise TypeError(f"no column 'message' among {', '.join(rows.schema.names)}")
        rows = rows.column("message")
    dtype = getattr(rows, "dtype", None)
    if dtype is not None:  # a numpy array; its rows, not its items, are the messages
        shape = cast("tuple[int, ...]", getattr(rows, "shape", ()))
        if str(dtype) != "uint8" or len(shape) != 2:
            raise TypeError(f"an array of rows is uint8 of shape (n, k), not {dtype} of {shape}")
        rows = [row.tobytes() for row in rows]
    elif hasattr(rows, "to_pylist"):
        rows = rows.to_pylist()
    found = list(cast("Iterable[Any]", rows))
    if not found:
        raise ValueError("push_many needs at least one row")
    if set(map(type, found)) == {bytes} and max(map(len, found)) <= MESSAGE_BYTES:
        return found
    return [message(row, f"row {n}") for n, row in enumerate(found)]


def locate(url: str | sa.URL, name: str, *, missing: bool = False) -> tuple[type[Backend], sa.URL]:
    """Return the backend for a database, and the URL with the driver that is used.

    `missing`: the ring may be missing; otherwise RingNotFound if there is no such database.
    """
    check_name(name)
    try:
        found = sa.make_url(url)
    except exc.ArgumentError:
        raise ValueError(
            f"{url!r} is no database URL; write sqlite:///file or postgresql://user@host/database"
        ) from None
    match found.drivername:
        case "sqlite" | "sqlite+pysqlite":
            from shmring.table_ring.sqlite import SqliteBackend as backend
        case "postgres" | "postgresql" | "postgresql+psycopg":
            try:
                from shmring.table_ring.postgresql import PostgresBackend as backend
            except ImportError as error:
                raise MissingExtra(
                    "a table ring on PostgreSQL needs psycopg 3, which cannot be imported here"
                    f" ({error}): pip install 'shmring[postgresql]'"
                ) from error
        case other:
            raise ValueError(f"no table ring on {other!r}; use sqlite:///file or postgresql://...")
    where = backend.address(found)
    if not missing and not backend.may_exist(where):
        raise RingNotFound(not_found(where, name))
    return backend, where


def not_found(url: sa.URL, name: str) -> str:
    return (
        f"no table ring {name!r} in {shown(url)}; create it with"
        f" TableRing(url, name={name!r}, slots=...)"
    )


def shown(url: sa.URL) -> str:
    return url.render_as_string(hide_password=True)


def create_or_read(backend: Backend, making: Making | None) -> Layout:
    """Return the ring's layout; create the ring if it is missing and `making` is given."""
    url, name = backend.connection.engine.url, backend.tables.name

    def open_ring(connection: sa.Connection) -> Layout:
        exists = backend.exist(connection)
        if making is not None and not exists:
            backend.lock_creation()
            exists = backend.exist(connection)
        if not exists:
            if making is None:
                raise RingNotFound(not_found(url, name))
            layout = Layout(making.slots, stride_for(making.slots, scattered=making.scattered))
            backend.create(connection, layout, making.subscribers)
            return layout
        if making and making.must_create:
            raise RingExists(
                f"table ring {name!r} is there already in {shown(url)};"
                " TableRing.attach opens it, TableRing.drop deletes it"
            )
        layout = backend.tables.read(connection)
        if making and making.slots != layout.slots:
            raise ValueError(
                f"table ring {name!r} has {layout.slots} slots, not {making.slots};"
                " leave `slots` out to attach"
            )
        backend.adopt(connection, layout)
        return layout

    return backend.transact(open_ring)


def choose_subscriber(backend: Backend, wanted: str | None) -> str:
    """Let a connection pop as a subscriber of the ring, and return the subscriber's name."""
    name, column = backend.tables.name, backend.tables.subscribers.c
    rows = backend.rows(sa.select(column.name, column.holder))
    holders: dict[str, int] = {row[0]: row[1] for row in rows}
    if not holders:
        raise Damaged(f"table ring {name!r} lost its subscribers; TableRing.drop it")
    chosen = wanted
    if chosen is None:
        # A handle that only pushes need not name one.
        chosen = "main" if "main" in holders else min(holders)
    if chosen not in holders:
        raise SubscriberNotFound(
            f"table ring {name!r} has no subscriber {chosen!r}, only"
            f" {', '.join(map(repr, sorted(holders)))}; add it with ring.subscribe({chosen!r})"
        )
    if backend.serve(chosen, holders[chosen]):
        return chosen
    return choose_subscriber(backend, wanted)  # it was removed meanwhile


def change_ring(
    url: str | sa.URL, name: str, change: Callable[[Backend, sa.Connection], None]
) -> None:
    """Change a ring as a whole within a transaction, or raise RingNotFound."""
    kind, where = locate(url, name)
    backend = kind(where, name, "sync", False)

    def change_it(connection: sa.Connection) -> None:
        backend.lock_creation()
        if not backend.exist(connection):
            raise RingNotFound(not_found(where, name))
        change(backend, connection)

    with contextlib.closing(backend):
        backend.transact(change_it)
