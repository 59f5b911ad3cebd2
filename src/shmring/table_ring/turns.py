"""Calls that share one connection of a table ring: how they take turns, try again and wait."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class TableRingStats:
    """Counters of one connection since it was opened.

    Attributes
    ----------
    pushed, pushed_bytes : messages published, and their bytes
    popped, popped_bytes : messages taken, and their bytes
    full_waits, empty_waits : calls that found the ring full or empty at least once
    retries : attempts after the first one of a call
    """

    pushed: int = 0
    pushed_bytes: int = 0
    popped: int = 0
    popped_bytes: int = 0
    full_waits: int = 0
    empty_waits: int = 0
    retries: int = 0


def check_slot(peek: Peek, which: Which, name: str) -> None:
    """Raise if the slot is missing, or its holders are not subscribers of the ring."""
    if peek.reference_count is None or peek.holders is None:
        raise Damaged(
            f"table ring {name!r} lost a row: the slot of the next {which} is missing"
            f" from table {name}; if the ring is unlogged and its server crashed, attach"
            " again"
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

    def __init__(self, backend: Backend, layout: Layout, subscriber: str, head_start: int) -> None:
        self.closed = False
        self._backend = backend
        self._name = backend.tables.name
        self._layout = layout
        self._subscriber = subscriber
        self._head_start = head_start
        self._pid, self._forks = os.getpid(), lineage.forks
        self._lock = threading.Lock()
        self._claim_open = False
        # Waits of other threads that ended while a claim was open.
        self._waited: list[tuple[Which, float]] = []
        # The thread that holds the lock counts.
        self._counters: Counter[str] = Counter()
        self._searches = Searches()

    def stats(self) -> TableRingStats:
        with self._lock:
            return TableRingStats(**self._counters)

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
        # This comes before the lock, which a thread of the parent may have held.
        if self._forks != lineage.forks:
            raise ForkedHandle(
                f"this handle of table ring {self._name!r} was opened by process {self._pid};"
                " a database connection does not survive a fork, attach again in the child"
            )
        with self._lock:
            if self.closed:
                raise Closed(f"this handle of table ring {self._name!r} was closed; attach again")
            if self._claim_open and not claiming:
                raise ClaimOpen(
                    f"this handle of table ring {self._name!r} has an open claim, a transaction of"
                    " its connection; end the claim first, or attach another handle"
                )
            yield self._backend

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
        with self.use() as backend:
            first = backend.push(rows, time.time_ns(), timeout)
            if first is not None:
                self._counters["pushed"] += len(rows)
                self._counters["pushed_bytes"] += sum(map(len, rows))
            return first

    def _has_room(self, count: int) -> bool:
        with self.use() as backend:
            peek = backend.peek("push", count - 1)
        check_slot(peek, "push", self._name)
        return peek.reference_count == 0

    def pop(
        self,
        attempt: Callable[[Backend, float], Sequence[M]],
        timeout: float | None,
        *,
        popped: bool = True,
    ) -> Sequence[M]:
        """Return the messages that an attempt takes, or raise Empty; count them if `popped`.

        `attempt` gets the connection and the seconds that are left.
        """
        deadline = Deadline(timeout)
        while not (found := self._try_pop(attempt, deadline.remaining, popped)):
            if not self._wait("pop", self._has_messages, deadline):
                needed = f", or fewer than head_start {self._head_start}"
                raise Empty(
                    f"table ring {self._name!r}: no message for subscriber"
                    f" {self._subscriber!r}{needed if self._head_start else ''} in time"
                )
            self._head_start = 0
        return found

    def _try_pop(
        self, attempt: Callable[[Backend, float], Sequence[M]], timeout: float, popped: bool
    ) -> Sequence[M]:
        if self._head_start:
            return []
        with self.use() as backend:
            found = attempt(backend, timeout)
            if found:
                self._searches.found()
                if popped:
                    self._count(found)
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
            rows = self.pop(begin, timeout, popped=False)
            yield Claim(self._backend.connection, rows)
        except BaseException:
            if begun:
                # A lost connection has undone the transaction already.
                with contextlib.suppress(ShmringError, exc.SQLAlchemyError):
                    self._end_claim([])
            raise
        self._end_claim(rows)

    def _end_claim(self, taken: Sequence[Message]) -> None:
        with self.use(claiming=True) as backend:
            try:
                backend.end_claim(keep=bool(taken))
                self._count(taken)
            finally:
                # Not before: a push of another thread would be undone with the claim.
                self._claim_open = False
                while self._waited:
                    backend.unlisten(*self._waited.pop())

    def _count(self, taken: Sequence[bytes | Message]) -> None:
        self._counters["popped"] += len(taken)
        sizes = [len(found if isinstance(found, bytes) else found[2]) for found in taken]
        self._counters["popped_bytes"] += sum(sizes)

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
        return peek.returned or self._has_head_start(peek, waiting)

    def _has_head_start(self, peek: Peek, numbers: int) -> bool:
        if not self._head_start or not self._head_start <= numbers < self._layout.slots:
            # After a whole lap of numbers pushes wait, however few messages the ring has.
            return numbers >= max(1, self._head_start)
        with self.use() as backend:
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
