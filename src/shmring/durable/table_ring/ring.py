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
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

import sqlalchemy as sa
from sqlalchemy import exc

from shmring.closing import Closing
from shmring.durable.base.forks import lineage
from shmring.durable.table_ring.backend import Backend, Durability, Message, Peek, Which
from shmring.durable.table_ring.claim import Claim
from shmring.durable.table_ring.databases import address, backend_of
from shmring.durable.table_ring.deadline import Deadline, Searches
from shmring.durable.table_ring.input import (
    Making,
    message,
    messages,
    refuse_missing,
    shown,
)
from shmring.durable.table_ring.look import check_message, check_slot
from shmring.durable.table_ring.opening import choose_subscriber, create_or_read, found, if_there
from shmring.durable.table_ring.schema import check_name, check_subscribers
from shmring.durable.table_ring.stats import (
    Counters,
    TableRingStats,
    count_many,
    count_none,
    count_one,
    count_rows,
)
from shmring.errors import (
    BranchDropped,
    ClaimOpen,
    Closed,
    Damaged,
    Empty,
    ForkedHandle,
    Full,
    MessageTooLarge,
    ShmringError,
)

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["TableRing"]

R = TypeVar("R")


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
    unlogged : for a ring that is created now, on PostgreSQL: faster, and a crash of the server
        empties the ring
    head_start : pop only begins when so many messages wait, up to all slots; afterwards it makes no
        difference, unlike the one of a ring's consumer
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
        unlogged: bool = False,
        head_start: int = 0,
        durability: Durability = "sync",
    ) -> None:
        options = {"scattered": scattered, "unlogged": unlogged, "must_create": False}
        made = None if slots is None else Making(slots, subscribers, **options)
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
        """Create a ring and open it; RingExists if it is there already."""
        ring = cls.__new__(cls)
        options = {"scattered": scattered, "unlogged": unlogged, "must_create": True}
        made = Making(slots, subscribers, **options)
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
        with found(url, name) as backend:
            backend.transact(lambda connection: if_there(backend, connection, backend.drop))

    @staticmethod
    def renew(url: str | sa.URL, *, name: str = "shmring") -> None:
        """Give a ring on PostgreSQL the functions of this version of shmring.

        The ring keeps its messages. Handles of another version that are open go on calling the
        functions by name, so all users of a ring change together.
        """
        with found(url, name) as backend:

            def renew(connection: sa.Connection) -> None:
                layout = backend.tables.check(backend.tables.read(connection))
                backend.renew(connection, layout)

            backend.transact(lambda connection: if_there(backend, connection, renew))

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
        self._pid, self._forks = os.getpid(), lineage.forks
        self._lock = threading.Lock()
        self._closed = False
        self._claim_open = False
        # Waits of other threads that ended while a claim was open.
        self._waited: list[tuple[Which, float]] = []
        self._counters = Counters()
        self._searches = Searches()
        if making is None:
            refuse_missing(self.url, name)
        unlogged = making is not None and making.unlogged
        self._backend = backend_of(self.url)(self.url, name, durability, unlogged)
        try:
            self.layout = create_or_read(self._backend, making)
            self._backend.use(self.layout)
            self.subscriber = choose_subscriber(self._backend, subscriber)
            if not 0 <= head_start <= self.layout.slots:
                raise ValueError(
                    f"head_start must be 0 to {self.layout.slots} (the slots of ring"
                    f" {name!r}), not {head_start}: more can never wait"
                )
        except BaseException:
            self._backend.close()
            raise
        self._head_start = head_start

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
        deadline = Deadline(timeout)
        return self._pop(lambda backend: backend.pop_one(deadline.remaining), deadline, count_one)

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
        most = self._limit(limit)
        deadline = Deadline(timeout)
        return self._pop(
            lambda backend: backend.pop_many(most, deadline.remaining) or None, deadline, count_many
        )

    def pop_batch(self, limit: int = 1000, *, timeout: float | None = None) -> pa.RecordBatch:
        """Take messages as :meth:`pop_many` does, as an Arrow batch: message_id, time, message."""
        from shmring.durable.table_ring.arrow import to_batch

        most = self._limit(limit)
        deadline = Deadline(timeout)
        found = self._pop(
            lambda backend: backend.pop_rows(most, deadline.remaining) or None, deadline, count_rows
        )
        return to_batch(found)

    @contextlib.contextmanager
    def claim(self, limit: int = 1, *, timeout: float | None = None) -> Generator[Claim]:
        """Pop messages for good when the block ends; if it raises or the process dies, they return.

            with ring.claim(10) as claim:
                for data in claim:
                    claim.connection.execute(...)  # committed with the pop, or undone with it

        Others who pop for the subscriber go on with later messages meanwhile, and get these next
        if they return. On SQLite the claim is the database's one writer, and all wait for its end.

        Parameters
        ----------
        limit : the most to take
        timeout : seconds to wait for the first; None waits for ever, 0 does not wait

        Raises
        ------
        Empty : no message came in time; nothing was taken
        BranchDropped : the subscriber was removed
        ClaimOpen : within the block, by every other use of this handle
        """
        most = self._limit(limit)
        deadline = Deadline(timeout)
        begun = False

        def begin(backend: Backend) -> list[Message] | None:
            nonlocal begun
            # A signal's exception may come at any time from here on. Until the undoing, which takes
            # the lock anew, no other thread may begin a claim that it would undo.
            begun = self._claim_open = True
            found = backend.begin_claim(most)
            self._claim_open = begun = bool(found)
            return found or None

        try:
            rows = self._pop(begin, deadline, count_none)
            yield Claim(self._backend.connection, rows)
        except BaseException:
            if begun:
                # A connection that is lost has undone the transaction already.
                with contextlib.suppress(ShmringError, exc.SQLAlchemyError):
                    self._end_claim([])
            raise
        self._end_claim(rows)

    def _end_claim(self, taken: list[Message]) -> None:
        with self._use(claiming=True) as backend:
            try:
                backend.end_claim(keep=bool(taken))
                self._count(count_rows(taken))
            finally:
                # Not before: what another thread pushes now would go with the claim.
                self._claim_open = False
                while self._waited:
                    backend.unlisten(*self._waited.pop())

    def _limit(self, limit: int) -> int:
        if limit < 1:
            raise ValueError(f"limit must be 1 or more, not {limit}")
        return min(limit, self.slots)

    def subscribe(self, name: str) -> None:
        """Add a subscriber; it sees what is pushed from now on.

        Raises
        ------
        ValueError : there is one of this name
        LimitReached : the ring has 64 already
        """
        check_subscribers([name])
        with self._use() as backend:
            backend.subscribe(name)

    def unsubscribe(self, name: str) -> None:
        """Remove a subscriber; what it has not popped no longer waits for it.

        Raises
        ------
        BranchNotFound : there is none of this name
        ValueError : it is the last one, without whom nothing would hold a message
        """
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
        """Return what this connection did so far."""
        with self._lock:
            return self._counters.stats()

    def table(self) -> pa.Table:
        """Return all slots in order as a pyarrow Table, as they are at this moment.

        Columns slot, message_id, time, message, reference_count. A free slot has no message_id
        and no message; its time is that of the last message it held.
        """
        from shmring.durable.table_ring.arrow import query, to_arrow

        with self._use() as backend, backend.translated():
            rows = backend.connection.execute(query(backend.tables)).all()
        return to_arrow(rows)

    def close(self) -> None:
        """Close the connection; the ring stays. Closing twice is nothing."""
        if self._forks != lineage.forks:
            return  # the parent's connection: not ours to end
        with self._lock:
            if not self._closed:
                self._closed = True
                self._backend.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"subscriber {self.subscriber!r}"
        return f"<TableRing {self.name!r} in {shown(self.url)}, {self.slots} slots, {state}>"

    @contextlib.contextmanager
    def _use(self, *, claiming: bool = False) -> Generator[Backend]:
        """Lend the connection to one thread."""
        self._refuse_child()
        with self._lock:
            yield self._usable(claiming)

    def _refuse_child(self) -> None:
        # Before the lock, which a thread of the parent may have held.
        if self._forks != lineage.forks:
            raise ForkedHandle(
                f"this handle of table ring {self.name!r} was opened by process {self._pid};"
                " a database connection does not survive a fork, attach again in the child"
            )

    def _usable(self, claiming: bool = False) -> Backend:
        """Return the connection to whoever holds the lock; refuse a closed handle."""
        if self._closed:
            raise Closed(f"this handle of table ring {self.name!r} was closed; attach again")
        if self._claim_open and not claiming:
            raise ClaimOpen(
                f"this handle of table ring {self.name!r} has an open claim, a transaction of"
                " its connection; end the claim first, or attach another handle"
            )
        return self._backend

    def _count(self, taken: tuple[int, int]) -> None:
        self._counters.popped += taken[0]
        self._counters.popped_bytes += taken[1]

    def _push(self, rows: list[bytes], timeout: float | None) -> int:
        deadline = Deadline(timeout)
        if len(rows) > self.slots:
            raise MessageTooLarge(
                f"{len(rows)} rows can never fit table ring {self.name!r} of {self.slots} slots;"
                " push fewer at a time"
            )
        while (first := self._try_push(rows, deadline.remaining)) is None:
            # A miss may also mean that another connection was faster: look before waiting.
            if not self._wait("push", lambda: self._has_room(len(rows)), deadline):
                raise Full(
                    f"table ring {self.name!r}: {len(rows)} of {self.slots} slots did not"
                    f" become free within {timeout} s; the slowest subscriber holds them"
                )
        return first

    def _try_push(self, rows: list[bytes], patience: float) -> int | None:
        self._refuse_child()
        with self._lock:
            first = self._usable().push(rows, time.time_ns(), patience)
            if first is not None:
                self._counters.pushed += len(rows)
                self._counters.pushed_bytes += sum(map(len, rows))
            return first

    def _has_room(self, count: int) -> bool:
        with self._use() as backend:
            peek = backend.peek("push", count - 1)
        check_slot(peek, "push", self.name)
        return peek.reference_count == 0

    def _pop(
        self,
        attempt: Callable[[Backend], R | None],
        deadline: Deadline,
        measure: Callable[[R], tuple[int, int]],
    ) -> R:
        while (found := self._try_pop(attempt, measure)) is None:
            if not self._wait("pop", self._has_messages, deadline):
                needed = f", or fewer than head_start {self._head_start}"
                raise Empty(
                    f"table ring {self.name!r}: no message for subscriber"
                    f" {self.subscriber!r}{needed if self._head_start else ''} in time"
                )
            self._head_start = 0
        return found

    def _try_pop(
        self, attempt: Callable[[Backend], R | None], measure: Callable[[R], tuple[int, int]]
    ) -> R | None:
        if self._head_start:
            return None
        self._refuse_child()
        with self._lock:
            found = attempt(self._usable())
            if found is not None:
                self._searches.found()
                self._count(measure(found))
            return found

    def _has_messages(self) -> bool:
        with self._use() as backend:
            peek = backend.peek("pop", whole=self._searches.due())
        if peek.number is None:
            raise BranchDropped(
                f"subscriber {self.subscriber!r} of table ring {self.name!r} was removed;"
                " subscribe it again and attach"
            )
        check_slot(peek, "pop", self.name)
        waiting = peek.push - peek.number
        if waiting > 0:
            check_message(peek, self.name, self.layout)
        return peek.returned or self._has_head_start(peek, waiting)

    def _has_head_start(self, peek: Peek, numbers: int) -> bool:
        if not self._head_start or not self._head_start <= numbers < self.slots:
            # After a whole lap of numbers nobody pushes any more, however few messages they have.
            return numbers >= max(1, self._head_start)
        with self._use() as backend:
            return backend.waiting(peek) >= self._head_start

    def _wait(self, which: Which, ready: Callable[[], bool], deadline: Deadline) -> bool:
        """Return True as soon as it is ready, False when the time is over."""
        if not ready():
            if not deadline.waits:
                with self._lock:
                    self._counters.full_waits += which == "push"
                    self._counters.empty_waits += which == "pop"
            if not self._wait_told(which, ready, deadline):
                return False
        with self._lock:
            self._counters.retries += 1
        return deadline.again()

    def _wait_told(self, which: Which, ready: Callable[[], bool], deadline: Deadline) -> bool:
        with self._use() as backend:
            longest = backend.listen(which)
        try:
            # Whoever pushed or popped before we listened told nobody.
            while not ready():
                if not deadline.wait(backend.sleep, backend.first_wait, longest):
                    return False
            return True
        finally:
            # Of a connection that is lost or closed nothing is left to end.
            with (
                contextlib.suppress(ShmringError, exc.DBAPIError),
                self._use(claiming=True),
            ):
                if self._claim_open:
                    self._waited.append((which, longest))
                else:
                    backend.unlisten(which, longest)
