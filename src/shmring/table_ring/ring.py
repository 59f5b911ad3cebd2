"""A ring made of database rows, for hosts that share a database rather than memory.

    with TableRing("postgresql://db/queues", name="orders", slots=100_000) as ring:
        ring.push(b"hello")
        ring.pop(timeout=1.0)

All rows of the table exist from the start and are only updated. Push and pop have the names,
timeouts and exceptions of the ring in memory. docs/table-ring-design.md explains the design.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

import sqlalchemy as sa
from sqlalchemy import exc

from shmring.common.arguments import integer
from shmring.common.closing import Closing
from shmring.common.forks import lineage
from shmring.errors import (
    Closed,
    Damaged,
    Empty,
    ForkedHandle,
    Full,
    MessageTooLarge,
    ShmringError,
)
from shmring.table_ring import inputs
from shmring.table_ring.backend import (
    Backend,
    Deadline,
    Durability,
    LeaseOpen,
    Message,
    Peek,
    Searches,
    SubscriberDropped,
    Which,
)
from shmring.table_ring.results import Lease, TableRingStats, slots_query, to_batch, to_table
from shmring.table_ring.schema import check_subscribers

if TYPE_CHECKING:
    import pyarrow as pa

M = TypeVar("M", bytes, Message)


class TableRing(Closing):
    """One connection to a ring of rows; opens the ring, or creates it if it is missing.

    Parameters
    ----------
    url : SQLAlchemy URL: ``sqlite:///file`` or ``postgresql://...`` (psycopg 3)
    name : name of the ring, and of its table
    slots : number of messages that the ring holds; needed to create a ring, checked if it exists
    subscriber : the subscriber for which this connection pops; several connections may share one
    subscribers : names of all subscribers of a new ring; each subscriber gets every message
    scattered : in a new ring, store consecutive messages far apart in the table
    unlogged : on PostgreSQL, make a new ring that is faster; a crash of the server empties it
    head_start : number of messages, at most `slots`, that must wait in the ring before the first
        pop takes any; later pops need only one
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
            made = inputs.Making(slots, subscribers, scattered, unlogged, must_create=False)
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
        """Create a ring and open it; raise RingExists if it exists already."""
        ring = cls.__new__(cls)
        made = inputs.Making(slots, subscribers, scattered, unlogged, must_create=True)
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
        """Open an existing ring; raise RingNotFound if it does not exist."""
        return cls(
            url, name=name, subscriber=subscriber, head_start=head_start, durability=durability
        )

    @staticmethod
    def drop(url: str | sa.URL, *, name: str = "shmring") -> None:
        """Delete a ring with everything in it.

        Raises
        ------
        RingNotFound : there is no such ring
        NotARing : a table of another program has a name that the ring needs; nothing was deleted
        """
        inputs.change_ring(url, name, lambda backend, connection: backend.drop(connection))

    @staticmethod
    def renew(url: str | sa.URL, *, name: str = "shmring") -> None:
        """Give a ring on PostgreSQL the functions of this version of shmring.

        The ring keeps its messages. Open handles of another version call the same functions by
        name, so all users of a ring must change together.
        """

        def renew(backend: Backend, connection: sa.Connection) -> None:
            backend.renew(connection, backend.tables.read(connection))

        inputs.change_ring(url, name, renew)

    def _open(
        self,
        url: str | sa.URL,
        name: str,
        making: inputs.Making | None,
        subscriber: str | None,
        head_start: int,
        durability: Durability,
    ) -> None:
        backend_of, self.url = inputs.locate(url, name, missing=making is not None)
        self.name = name
        if durability not in ("sync", "delayed"):
            raise ValueError(f'durability must be "sync" or "delayed", not {durability!r}')
        unlogged = making is not None and making.unlogged
        backend = backend_of(self.url, name, durability, unlogged)
        try:
            self.layout = inputs.create_or_read(backend, making)
            backend.use(self.layout)
            self.subscriber = inputs.choose_subscriber(backend, subscriber)
            if integer("head_start", head_start) > self.layout.slots:
                raise ValueError(
                    f"head_start must be 0 to {self.layout.slots} (the slots of ring"
                    f" {name!r}), not {head_start}: more can never wait"
                )
        except BaseException:
            backend.close()
            raise
        self._backend = backend
        self._head_start = head_start
        self._closed = False
        self._pid, self._forks = os.getpid(), lineage.forks
        # Held by the thread that uses the connection; a thread that waits releases the lock.
        self._lock = threading.Lock()
        self._lease_open = False
        # Arguments of unlisten() for each wait of another thread that ended while a lease was open.
        # The calls must not become a part of the lease's transaction: _end_lease() makes them.
        self._waited: list[tuple[Which, float]] = []
        # Fields of TableRingStats (pushed, popped, retries, ...) by name; a thread holds _lock to
        # change them.
        self._counters: Counter[str] = Counter()
        self._searches = Searches()

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
        return self._push([inputs.message(data)], timeout)

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
        return self._push(inputs.messages(rows), timeout)

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

        return self._pop(attempt, timeout)[0]

    def pop_many(self, limit: int = 1000, *, timeout: float | None = None) -> list[bytes]:
        """Take the messages that wait, at least one and at most `limit`, in one transaction.

        Parameters
        ----------
        limit : maximum number of messages to take
        timeout : seconds to wait for the first; None waits for ever, 0 does not wait

        Raises
        ------
        Empty : no message came in time; nothing was taken
        SubscriberDropped : the subscriber was removed
        """
        most = self._limit(limit)
        return list(self._pop(lambda backend, left: backend.pop_many(most, left), timeout))

    def pop_batch(self, limit: int = 1000, *, timeout: float | None = None) -> pa.RecordBatch:
        """Take messages like :meth:`pop_many`; return an Arrow batch: message_id, time, message."""
        most = self._limit(limit)
        rows = self._pop(lambda backend, left: backend.pop_rows(most, left), timeout)
        return to_batch(rows)

    def lease(
        self, limit: int = 1, *, timeout: float | None = None
    ) -> contextlib.AbstractContextManager[Lease]:
        """Pop messages when the block ends; if the block raises, or the process dies, they stay.

            with ring.lease(10) as lease:
                for data in lease:
                    lease.connection.execute(...)  # committed with the pop, or undone with it

        Other connections of the subscriber pop later messages meanwhile. If the lease is given up,
        the other connections get the lease's messages next. On SQLite an open lease is the
        database's only writer, and all other writers wait until the lease ends.

        Parameters
        ----------
        limit : maximum number of messages to take
        timeout : seconds to wait for the first; None waits for ever, 0 does not wait

        Raises
        ------
        Empty : no message came in time; nothing was taken
        SubscriberDropped : the subscriber was removed
        LeaseOpen : raised by every other use of this handle within the block
        """
        return self._lease(self._limit(limit), timeout)

    def _limit(self, limit: int) -> int:
        return min(integer("limit", limit, 1), self.slots)

    def subscribe(self, name: str) -> None:
        """Add a subscriber; it gets the messages that are pushed from now on.

        Raises
        ------
        ValueError : the ring has a subscriber of this name
        LimitReached : the ring has 64 subscribers already
        """
        check_subscribers([name])
        with self._use() as backend:
            backend.subscribe(name)

    def unsubscribe(self, name: str) -> None:
        """Remove a subscriber; messages that it has not popped no longer wait for it.

        Raises
        ------
        SubscriberNotFound : the ring has no subscriber of this name
        ValueError : it is the last subscriber; without it, nothing would hold the messages
        """
        check_subscribers([name])
        with self._use() as backend:
            backend.unsubscribe(name)

    def positions(self) -> tuple[int, dict[str, int]]:
        """Return the number of the next push, and of each subscriber's next pop."""
        with self._use() as backend:
            push, pops = backend.positions()
        if not pops:
            raise Damaged(f"table ring {self.name!r} lost its cursors; TableRing.drop it")
        return push, pops

    def stats(self) -> TableRingStats:
        """Return the counters of this connection."""
        self._refuse_fork()
        with self._lock:
            return TableRingStats(**self._counters)

    def table(self) -> pa.Table:
        """Return all slots in order as a pyarrow Table, all read at one moment.

        Columns slot, message_id, time, message, reference_count. A free slot has no message_id
        and no message; its time is the time of the last message that it held.
        """
        with self._use() as backend:
            rows = backend.rows(slots_query(backend))
        return to_table(rows)

    def close(self) -> None:
        """Close the connection; the ring stays. A second call does nothing."""
        if self._forks != lineage.forks:
            return  # in a forked child: the connection belongs to the parent
        with self._lock:
            if not self._closed:
                self._closed = True
                self._backend.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"subscriber {self.subscriber!r}"
        return f"<TableRing {self.name!r} in {inputs.shown(self.url)}, {self.slots} slots, {state}>"

    def _refuse_fork(self) -> None:
        # Check for a fork before taking the lock, which a thread of the parent may have held.
        if self._forks != lineage.forks:
            raise ForkedHandle(
                f"this handle of table ring {self.name!r} was opened by process {self._pid};"
                " a database connection does not survive a fork, attach again in the child"
            )

    @contextlib.contextmanager
    def _use(self, *, leasing: bool = False) -> Generator[Backend]:
        """Give the calling thread the connection for a `with` block; other threads wait."""
        self._refuse_fork()
        with self._lock:
            if self._closed:
                raise Closed(f"this handle of table ring {self.name!r} was closed; attach again")
            if self._lease_open and not leasing:
                raise LeaseOpen(
                    f"this handle of table ring {self.name!r} has an open lease, a transaction of"
                    " its connection; end the lease first, or attach another handle"
                )
            yield self._backend

    def _push(self, rows: list[bytes], timeout: float | None) -> int:
        """Publish all rows, or raise Full."""
        deadline = Deadline(timeout)
        if len(rows) > self.layout.slots:
            raise MessageTooLarge(
                f"{len(rows)} rows can never fit table ring {self.name!r} of"
                f" {self.layout.slots} slots; push fewer at a time"
            )
        while (first := self._try_push(rows, deadline.remaining)) is None:
            # Another connection may have been faster: look before waiting.
            if not self._wait("push", lambda: self._has_room(len(rows)), deadline):
                raise Full(
                    f"table ring {self.name!r}: {len(rows)} of {self.layout.slots} slots did not"
                    f" become free within {timeout} s; the slowest subscriber holds them"
                )
        return first

    def _try_push(self, rows: list[bytes], timeout: float) -> int | None:
        with self._use() as backend:
            first = backend.push(rows, time.time_ns(), timeout)
            if first is not None:
                self._counters["pushed"] += len(rows)
                self._counters["pushed_bytes"] += sum(map(len, rows))
            return first

    def _has_room(self, count: int) -> bool:
        with self._use() as backend:
            peek = backend.peek("push", count - 1)
        peek.check_slot("push", self.name)
        return peek.reference_count == 0

    def _pop(
        self,
        attempt: Callable[[Backend, float], Sequence[M]],
        timeout: float | None,
        *,
        popped: bool = True,
    ) -> Sequence[M]:
        """Return the messages that an attempt takes, or raise Empty; count them if `popped`.

        `attempt` gets the backend and the seconds that are left.
        """
        deadline = Deadline(timeout)
        while not (found := self._try_pop(attempt, deadline.remaining, popped)):
            if not self._wait("pop", self._has_messages, deadline):
                needed = f", or fewer than head_start {self._head_start}"
                raise Empty(
                    f"table ring {self.name!r}: no message for subscriber"
                    f" {self.subscriber!r}{needed if self._head_start else ''} in time"
                )
            self._head_start = 0
        return found

    def _try_pop(
        self, attempt: Callable[[Backend, float], Sequence[M]], timeout: float, popped: bool
    ) -> Sequence[M]:
        if self._head_start:
            return []
        with self._use() as backend:
            found = attempt(backend, timeout)
            if found:
                self._searches.found()
                if popped:
                    self._count(found)
            return found

    @contextlib.contextmanager
    def _lease(self, limit: int, timeout: float | None) -> Generator[Lease]:
        """Take messages for a block: pop them at its end, or give them back if it raises."""
        begun = False

        def begin(backend: Backend, _timeout: float) -> list[Message]:
            nonlocal begun
            # Set the flag first, so that no other thread begins a lease. If a signal's exception
            # comes from here on, this thread releases the lock, and takes it again in _end_lease().
            # Without the flag, another thread could begin a lease in between, and _end_lease()
            # would undo that lease.
            begun = self._lease_open = True
            found = backend.begin_lease(limit)
            self._lease_open = begun = bool(found)
            return found

        try:
            rows = self._pop(begin, timeout, popped=False)
            yield Lease(self._backend.connection, rows)
        except BaseException:
            if begun:
                # A lost connection has undone the transaction already.
                with contextlib.suppress(ShmringError, exc.SQLAlchemyError):
                    self._end_lease([])
            raise
        self._end_lease(rows)

    def _end_lease(self, taken: Sequence[Message]) -> None:
        with self._use(leasing=True) as backend:
            try:
                backend.end_lease(keep=bool(taken))
                self._count(taken)
            finally:
                # Let other threads in only now: a push before the end of the lease's transaction
                # would be part of it, and could be undone with it.
                self._lease_open = False
                while self._waited:
                    backend.unlisten(*self._waited.pop())

    def _count(self, taken: Sequence[bytes | Message]) -> None:
        self._counters["popped"] += len(taken)
        sizes = [len(found if isinstance(found, bytes) else found[2]) for found in taken]
        self._counters["popped_bytes"] += sum(sizes)

    def _has_messages(self) -> bool:
        with self._use() as backend:
            peek = backend.peek("pop", whole=self._searches.due())
        if peek.number is None:
            raise SubscriberDropped(
                f"subscriber {self.subscriber!r} of table ring {self.name!r} was removed, or"
                " the ring was made anew: attach again, or subscribe it first if it is missing"
            )
        peek.check_slot("pop", self.name)
        waiting = peek.push - peek.number
        if waiting > 0:
            peek.check_message(self.name, self.layout)
        return peek.returned or self._has_head_start(peek, waiting)

    def _has_head_start(self, peek: Peek, numbers: int) -> bool:
        if not self._head_start or not self._head_start <= numbers < self.layout.slots:
            # Decide by the numbers alone, although some numbers may have no message. If the waiting
            # numbers fill all slots, pops must go on: the messages may be fewer than the head
            # start, but pushes are blocked and no more messages can come.
            return numbers >= max(1, self._head_start)
        with self._use() as backend:
            return backend.waiting(peek) >= self._head_start

    def _wait(self, which: Which, ready: Callable[[], bool], deadline: Deadline) -> bool:
        """Return True as soon as `ready()` does, False when the time is over."""
        if not ready():
            if not deadline.waits:
                with self._lock:
                    self._counters["full_waits" if which == "push" else "empty_waits"] += 1
            if not self._wait_told(which, ready, deadline):
                return False
        with self._lock:
            self._counters["retries"] += 1
        return deadline.again()

    def _wait_told(self, which: Which, ready: Callable[[], bool], deadline: Deadline) -> bool:
        with self._use() as backend:
            longest = backend.listen(which)
        try:
            # Look before the first sleep, although the caller has looked: another connection may
            # have pushed or popped since then. If that happened before listen(), this connection
            # gets no notification of it.
            while True:
                with self._use():
                    told = backend.told()
                if ready():
                    return True
                sleep = functools.partial(backend.sleep, told=told)
                if not deadline.wait(sleep, backend.first_wait, longest):
                    return False
        finally:
            # Ignore errors: if the connection is lost or closed, no notifications come any more.
            with (
                contextlib.suppress(ShmringError, exc.DBAPIError),
                self._use(leasing=True),
            ):
                if self._lease_open:
                    self._waited.append((which, longest))
                else:
                    backend.unlisten(which, longest)
