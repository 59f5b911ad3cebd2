"""Calls that share one connection of a table ring: how they take turns, try again and wait."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

import sqlalchemy as sa
from sqlalchemy import exc

from shmring.errors import (
    ClaimOpen,
    Closed,
    Damaged,
    Empty,
    ForkedHandle,
    Full,
    MessageTooLarge,
    ShmringError,
)
from shmring.forks import lineage
from shmring.table_ring.backend import (
    Backend,
    Deadline,
    Message,
    Peek,
    Searches,
    SubscriberDropped,
    Which,
)
from shmring.table_ring.schema import Layout

if TYPE_CHECKING:
    import pyarrow as pa


def check_slot(peek: Peek, which: Which, name: str) -> None:
    """Raise if the slot is missing, or its holders are not subscribers of the ring."""
    if peek.reference_count is None or peek.holders is None:
        raise Damaged(
            f"table ring {name!r} lost a row: the slot of the next {which} is missing"
            f" from table {name}; TableRing.drop, create again"
        )
    holders = peek.holders & (1 << 64) - 1
    if peek.reference_count != holders.bit_count() or peek.holders & ~peek.known:
        raise Damaged(
            f"table {name} says of the slot of number {peek.number} that"
            f" {peek.reference_count} subscribers hold the message, and names"
            f" {holders.bit_count()} (holders {holders:#x}, the ring's are"
            f" {peek.known & (1 << 64) - 1:#x}); another program wrote to the table"
        )


def check_message(peek: Peek, name: str, layout: Layout) -> None:
    """Raise if a message waits and its slot holds another number."""
    assert peek.number is not None
    # A later lap: others moved on between the reads of cursor and slot, so the caller looks again.
    ahead = (peek.message_id or 0) - peek.number
    passed = ahead > 0 and ahead % layout.slots == 0
    if peek.message_id != peek.number and not passed:
        raise Damaged(
            f"table ring {name!r}: message {peek.number} should be in slot"
            f" {layout.place(peek.number)}, which holds {peek.message_id}; another program"
            " wrote to the table"
        )


def to_batch(messages: Sequence[Message]) -> pa.RecordBatch:
    """Convert messages that were popped with their numbers and times."""
    import pyarrow as pa

    numbers, times, data = zip(*messages, strict=True)
    columns = {
        "message_id": pa.array(numbers, pa.int64()),
        "time": pa.array(times, pa.timestamp("ns", "UTC")),
        "message": pa.array(data, pa.binary()),
    }
    return pa.table(columns).to_batches()[0]


class Claim:
    """A sequence of messages, made by :meth:`shmring.table_ring.TableRing.claim`.

    Attributes
    ----------
    connection : the transaction that pops the messages. Everything else that is written through it
        is committed with the pop, or undone with it
    message_ids : the messages' numbers
    """

    def __init__(self, connection: sa.Connection, messages: Sequence[Message]) -> None:
        self.connection = connection
        self.message_ids = [number for number, _, _ in messages]
        self._messages = messages

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[bytes]:
        return (data for _, _, data in self._messages)

    def __getitem__(self, index: int) -> bytes:
        return self._messages[index][2]

    def batch(self) -> pa.RecordBatch:
        """Return the messages as an Arrow batch: message_id, time, message."""
        return to_batch(self._messages)


M = TypeVar("M", bytes, Message)


class Turns:
    """Lends a connection to one thread at a time; a thread that waits does not keep it.

    Attributes
    ----------
    closed : whether close() was called
    """

    def __init__(self, backend: Backend, layout: Layout, subscriber: str) -> None:
        self.closed = False
        self._backend = backend
        self._name = backend.tables.name
        self._layout = layout
        self._subscriber = subscriber
        self._pid, self._forks = os.getpid(), lineage.forks
        self._lock = threading.Lock()
        self._claim_open = False
        # Waits of other threads that ended while a claim was open.
        self._waited: list[tuple[Which, float]] = []
        self._searches = Searches()

    def close(self) -> None:
        """Close the connection, unless it belongs to a parent process."""
        if self._forks != lineage.forks:
            return
        with self._lock:
            if not self.closed:
                self.closed = True
                self._backend.close()

    @contextlib.contextmanager
    def use(self, *, claiming: bool = False) -> Generator[Backend]:
        """Lend the connection to one thread."""
        self._refuse_child()
        with self._lock:
            yield self._lent(claiming=claiming)

    def _refuse_child(self) -> None:
        # This comes before the lock, which a thread of the parent may have held.
        if self._forks != lineage.forks:
            raise ForkedHandle(
                f"this handle of table ring {self._name!r} was opened by process {self._pid};"
                " a database connection does not survive a fork, attach again in the child"
            )

    def _lent(self, *, claiming: bool = False) -> Backend:
        """Return the connection to a thread that has the lock."""
        if self.closed:
            raise Closed(f"this handle of table ring {self._name!r} was closed; attach again")
        if self._claim_open and not claiming:
            raise ClaimOpen(
                f"this handle of table ring {self._name!r} has an open claim, a transaction of"
                " its connection; end the claim first, or attach another handle"
            )
        return self._backend

    def push(self, rows: list[bytes], timeout: float | None) -> int:
        """Publish all rows, or raise Full."""
        deadline = Deadline(timeout)
        if len(rows) > self._layout.slots:
            raise MessageTooLarge(
                f"{len(rows)} rows can never fit table ring {self._name!r} of"
                f" {self._layout.slots} slots; push fewer at a time"
            )
        while (first := self._try_push(rows, deadline.remaining)) is None:
            # Another connection may have been faster: look before waiting.
            if not self._wait("push", lambda: self._has_room(len(rows)), deadline):
                raise Full(
                    f"table ring {self._name!r}: {len(rows)} of {self._layout.slots} slots did not"
                    f" become free within {timeout} s; the slowest subscriber holds them"
                )
        return first

    def _try_push(self, rows: list[bytes], timeout: float) -> int | None:
        self._refuse_child()
        with self._lock:
            return self._lent().push(rows, time.time_ns(), timeout)

    def _has_room(self, count: int) -> bool:
        with self.use() as backend:
            peek = backend.peek("push", count - 1)
        check_slot(peek, "push", self._name)
        return peek.reference_count == 0

    def pop(
        self, attempt: Callable[[Backend, float], Sequence[M]], timeout: float | None
    ) -> Sequence[M]:
        """Return the messages that an attempt takes, or raise Empty.

        `attempt` gets the connection and the seconds that are left.
        """
        deadline = Deadline(timeout)
        while not (found := self._try_pop(attempt, deadline.remaining)):
            if not self._wait("pop", self._has_messages, deadline):
                raise Empty(
                    f"table ring {self._name!r}: no message for subscriber"
                    f" {self._subscriber!r} in time"
                )
        return found

    def _try_pop(
        self, attempt: Callable[[Backend, float], Sequence[M]], timeout: float
    ) -> Sequence[M]:
        self._refuse_child()
        with self._lock:
            found = attempt(self._lent(), timeout)
            if found:
                self._searches.found()
            return found

    @contextlib.contextmanager
    def claim(self, limit: int, timeout: float | None) -> Generator[Claim]:
        """Take messages that are popped when the block ends, or given back."""
        begun = False

        def begin(backend: Backend, _timeout: float) -> list[Message]:
            nonlocal begun
            # A signal's exception may come at any time from here on. Undoing takes the lock again;
            # until then no other thread may begin a claim, which it would undo.
            begun = self._claim_open = True
            found = backend.begin_claim(limit)
            self._claim_open = begun = bool(found)
            return found

        try:
            rows = self.pop(begin, timeout)
            yield Claim(self._backend.connection, rows)
        except BaseException:
            if begun:
                # A lost connection has undone the transaction already.
                with contextlib.suppress(ShmringError, exc.SQLAlchemyError):
                    self._end_claim(keep=False)
            raise
        self._end_claim(keep=True)

    def _end_claim(self, *, keep: bool) -> None:
        with self.use(claiming=True) as backend:
            try:
                backend.end_claim(keep)
            finally:
                # Not before: a push of another thread would be undone with the claim.
                self._claim_open = False
                while self._waited:
                    backend.unlisten(*self._waited.pop())

    def _has_messages(self) -> bool:
        with self.use() as backend:
            peek = backend.peek("pop", whole=self._searches.due())
        if peek.number is None:
            raise SubscriberDropped(
                f"subscriber {self._subscriber!r} of table ring {self._name!r} was removed;"
                " subscribe it again and attach"
            )
        check_slot(peek, "pop", self._name)
        waiting = peek.push - peek.number
        if waiting > 0:
            check_message(peek, self._name, self._layout)
        return peek.returned or waiting > 0

    def _wait(self, which: Which, ready: Callable[[], bool], deadline: Deadline) -> bool:
        """Return True as soon as `ready()` does, False when the time is over."""
        if not ready() and not self._wait_told(which, ready, deadline):
            return False
        return deadline.again()

    def _wait_told(self, which: Which, ready: Callable[[], bool], deadline: Deadline) -> bool:
        with self.use() as backend:
            longest = backend.listen(which)
        try:
            # A push or pop before we listened has notified nobody.
            while True:
                with self.use():
                    told = backend.told()
                if ready():
                    return True
                sleep = functools.partial(backend.sleep, told=told)
                if not deadline.wait(sleep, backend.first_wait, longest):
                    return False
        finally:
            # On a lost or closed connection there is nothing to end.
            with (
                contextlib.suppress(ShmringError, exc.DBAPIError),
                self.use(claiming=True),
            ):
                if self._claim_open:
                    self._waited.append((which, longest))
                else:
                    backend.unlisten(which, longest)
