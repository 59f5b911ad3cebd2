"""Sessions (transactions on a persistent queue), and a group commit for several threads.

The class `Ends` is shared with the append-only queue.
"""

from __future__ import annotations

import os
import threading
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from shmring.common.arguments import integer
from shmring.common.closing import Closing
from shmring.durable.base.files import Buffer
from shmring.durable.base.items import TABLE_ENTRY_BYTES, Packing
from shmring.durable.queues.data_files import DataFile
from shmring.durable.queues.line import Span
from shmring.errors import Contended, Damaged, NoSpace

if TYPE_CHECKING:
    from shmring.durable.queues.persistent import PersistentQueue

# Maximum bytes of new items held in memory until the flush. When there are more, the items are
# written to a file before the flush, which then only has to commit them.
BUFFER_BYTES = 1 << 20
# Maximum bytes of items that a flush writes into the log, inside its transaction: one sync of the
# log then makes the transaction and the items durable. More bytes go into a data file, which needs
# a sync of its own.
_INLINE_BYTES = 32 << 10


E = TypeVar("E", bound="Ends")
P = ParamSpec("P")
R = TypeVar("R")

# Ends whose locks a forked child renews: the child lacks the threads that would release them.
_all_ends: weakref.WeakSet[Ends] = weakref.WeakSet()


_REENTERED = (
    "a signal's handler has used the queue or session whose call it has interrupted; the handler's "
    "call has changed nothing; let the handler set a flag, and act on the flag after the call"
)


class Ends(Closing):
    """Both ends of a queue: takes items in, holds them until they are written, and gives them out.

    A subclass sets `_check_writable` and `_check_readable`, which raise if no item can be put in,
    or be taken, any more.
    """

    _check_writable: Callable[[], None]
    _check_readable: Callable[[], None]
    _packing: Packing

    def __init__(self) -> None:
        # Guards the items that are not written yet, and their writing. The lock is reentrant:
        # otherwise a signal's handler that uses a busy queue would wait for ever, and get no error.
        self._lock = threading.RLock()
        self._busy = False  # the thread that has the lock is in a call
        _all_ends.add(self)

    @staticmethod
    def _alone(method: Callable[Concatenate[E, P], R]) -> Callable[Concatenate[E, P], R]:
        """Let a method run alone: with the lock, and not within a call that it has interrupted.

        An interrupted call goes on with the state that it has read. So it would lose what a call
        of a signal's handler changes meanwhile, or its own change.
        """

        @wraps(method)
        def call(self: E, /, *args: P.args, **kwargs: P.kwargs) -> R:
            with self._lock:
                if self._busy:
                    raise Contended(_REENTERED)
                self._busy = True
                try:
                    return method(self, *args, **kwargs)
                finally:
                    self._busy = False

        return call

    def renew_locks(self) -> None:
        """Replace the lock in a forked child, if a thread of the parent held it in a call."""
        if not self._lock.acquire(blocking=False):
            self._lock = threading.RLock()
            self._busy = False
            self._in_a_call_at_fork()
            return
        self._lock.release()

    def _in_a_call_at_fork(self) -> None:
        """Do what a forked child needs if a thread of the parent was in a call at the fork.

        In the child this call never ends.
        """

    @abstractmethod
    def _write_early(self) -> None:
        """Write the items held in memory, uncommitted."""

    @abstractmethod
    def _take_some(self, items: list[bytes], most: int) -> bool:
        """Take items that stand side by side; return whether there may be more."""

    def enqueue(self, data: Buffer) -> None:
        """Put an item at the back; it is committed by the next flush.

        Raises
        ------
        NoSpace : the disk is full; this item was not put in, all items before it were
        MessageTooLarge : the item has 4 GiB or more
        TypeError : `data` is not bytes-like
        """
        with self._lock:
            # Repeat _alone() here: through its wrapper, a call would take 1.4 times as long.
            if self._busy:
                raise Contended(_REENTERED)
            self._busy = True
            try:
                self._check_writable()
                if self._packing.nbytes > BUFFER_BYTES:
                    self._write_early()
                self._packing.add(data)
            finally:
                self._busy = False

    def enqueue_many(self, items: Iterable[Buffer]) -> int:
        """Put items at the back, in their order; return their number. Otherwise as :meth:`enqueue`.

        Parameters
        ----------
        items : bytes-like objects; the iterable may use this queue itself

        Raises
        ------
        NoSpace : the disk is full; none of these items was put in, all items before them were
        MessageTooLarge, TypeError, BufferError : one of them cannot be an item; none was put in
        """
        self._make_room()
        # Read the iterable before taking the lock, because its code may use this queue.
        return self._add_many(list(items))

    @_alone
    def _make_room(self) -> None:
        self._check_writable()
        if self._packing.nbytes > BUFFER_BYTES:
            self._write_early()

    @_alone
    def _add_many(self, rows: list[Buffer]) -> int:
        self._check_writable()
        return self._packing.add_many(rows)

    def dequeue_many(self, max_items: int) -> list[bytes]:
        """Take up to `max_items` items from the front; otherwise as :meth:`dequeue`.

        Returns
        -------
        the items. There are none if the queue is empty, and fewer than `max_items` if it has fewer,
        or if one is damaged

        Raises
        ------
        Damaged : the first item does not match its checksum; it stays at the front
        ValueError : `max_items` is negative
        """
        integer("max_items", max_items)
        return self._take_many(max_items)

    @_alone
    def _take_many(self, most: int) -> list[bytes]:
        items: list[bytes] = []
        self._check_readable()
        try:
            while len(items) < most and self._take_some(items, most - len(items)):
                pass
        except (Damaged, OSError):
            # Return the items that were taken before the error; the next call raises the error.
            if not items:
                raise
        return items


@dataclass(slots=True)
class Extent:
    """Items written one after the other into a data file, and their table."""

    file: DataFile
    offset: int
    table: bytes

    def __len__(self) -> int:
        return len(self.table) // TABLE_ENTRY_BYTES


def _renew_locks() -> None:
    for ends in list(_all_ends):
        ends.renew_locks()


os.register_at_fork(after_in_child=_renew_locks)


class Transaction:
    """The changes of one flush: committed if `done` is true and `error` is None."""

    def __init__(self, extents: list[Extent], inline: Packing, taken: list[Span]) -> None:
        self.extents = extents
        self.inline = inline
        self.taken = taken
        self.done = False
        self.error: BaseException | None = None
        self._turn = threading.Lock()
        self._turn.acquire()

    def finish(self, error: BaseException | None) -> None:
        self.error = error
        self.done = True
        self.wake()

    def wait(self) -> None:
        """Wait until the transaction is committed, or until its thread has to commit a group."""
        if not self.done:
            self._turn.acquire()

    def wake(self) -> None:
        """Make wait() return."""
        try:  # noqa: SIM105  suppress() would cost three calls in each flush
            self._turn.release()
        except RuntimeError:  # the lock is released already: wait() has returned, or will
            pass


class GroupCommit:
    """Lets threads that commit at the same time share one write and one sync.

    One of the waiting threads leads: it commits for all of them, then wakes them and the next
    leader.  So the threads that arrive during a sync share the next one.  `commit` commits a group
    of transactions, and calls finish() of each.  If a signal handler raises an exception, `commit`
    may end before all transactions are finished.
    """

    def __init__(self, commit: Callable[[list[Transaction]], None]) -> None:
        self._commit = commit
        self._lock = threading.Lock()
        self._waiting: list[Transaction] = []
        self._leader: Transaction | None = None

    def commit(self, wanted: Transaction) -> None:
        """Wait until these changes are committed, or raise their error."""
        try:
            with self._lock:
                self._waiting.append(wanted)
                if self._leader is None:
                    self._leader = wanted
            if self._leader is not wanted:
                wanted.wait()
            if not wanted.done:
                self._lead()
                self._hand_on()
        except BaseException:
            self._withdraw(wanted)
            raise
        if wanted.error is not None:
            raise wanted.error

    def _lead(self) -> None:
        group: list[Transaction] = []
        try:
            with self._lock:
                group = self._waiting
                self._waiting = []
            if group:
                self._commit(group)
        finally:
            # If an interrupt has left transactions of the group unfinished, put them back, so that
            # the next leader commits them.
            left = [each for each in group if not each.done]
            if left:
                with self._lock:
                    self._waiting = left + [each for each in self._waiting if each not in left]

    def _hand_on(self) -> None:
        with self._lock:
            following = self._waiting[0] if self._waiting else None
            if following is not None:
                # Wake the next leader before it is recorded. An interrupt in between may leave two
                # leaders; in the other order it could leave none, and all threads would hang.
                following.wake()
            self._leader = following

    def _withdraw(self, wanted: Transaction) -> None:
        """Remove a transaction after an interrupt, unless another thread commits it already."""
        while True:
            with self._lock:
                waiting = wanted in self._waiting
                if waiting:
                    self._waiting.remove(wanted)
            if waiting or wanted.done:
                break
            wanted.wait()
        if self._leader is wanted:
            self._hand_on()


class Session(Ends):
    """A transaction; made by :meth:`PersistentQueue.session`.

    Leaving the ``with`` block, :meth:`rollback` or garbage collection of the session undoes
    everything since the last flush.  A queue may have any number of sessions.  Everything that
    several threads do in one session is committed or undone together.
    """

    def __init__(self, queue: PersistentQueue) -> None:
        super().__init__()
        self._queue = queue
        self._check_writable = self._check_readable = queue.check
        self._packing = Packing()
        self._extents: list[Extent] = []
        self._taken: list[Span] = []

    def _write_early(self) -> None:
        packing = self._packing
        packing.settle()
        files = self._queue.files
        try:
            file, offset = files.write(packing.parts, packing.count)
        except NoSpace:
            if not self._queue.reclaim():
                raise
            file, offset = files.write(packing.parts, packing.count)
        extent, empty = Extent(file, offset, packing.table), Packing()
        # Make no call between these changes: a signal handler may raise after any call, and would
        # leave the items both written and waiting to be written.
        self._extents += [extent]
        self._packing = empty

    @Ends._alone
    def dequeue(self) -> bytes | None:
        """Take the item at the front; None if there is no committed item.

        No other session gets the item.  The next flush removes it for good.

        Raises
        ------
        Damaged : the item's bytes do not match their checksum; the item stays at the front
        """
        self._check_readable()
        return self._queue.take(self._taken)

    def _take_some(self, items: list[bytes], most: int) -> bool:
        return self._queue.take_some(items, most, self._taken)

    @Ends._alone
    def flush(self) -> None:
        """Commit all changes of this session; wait until they are on disk unless delayed.

        Raises
        ------
        NoSpace : the disk is full; nothing was committed, and the session is unchanged: flush again
            when there is space, or roll back
        Closed : the queue was closed, or stopped after a failed write; or it was reset, and this
            session holds items that the reset deleted: nothing was committed, roll back
        """
        self._queue.check()
        if self._packing.nbytes > _INLINE_BYTES:
            self._write_early()
        self._packing.settle()
        if not (self._packing.count or self._extents or self._taken):
            return
        transaction = Transaction(self._extents, self._packing, self._taken)
        empty = Packing()
        try:
            self._queue.commit(transaction)
        finally:
            if transaction.done and transaction.error is None:
                self._packing, self._extents, self._taken = empty, [], []

    @Ends._alone
    def rollback(self) -> None:
        """Undo all changes since the last flush; dequeued items return to the front."""
        self._packing, extents, self._extents = Packing(), self._extents, []
        if self._queue.usable:
            for extent in extents:
                self._queue.files.release(extent.file, len(extent))
            self._queue.give_back(self._taken)
        self._taken = []

    def close(self) -> None:
        """Undo all changes since the last flush, as :meth:`rollback`."""
        self.rollback()

    def __del__(self) -> None:
        # Take no lock: the garbage collector may run inside the queue's own critical section.
        # A signal handler that raised inside __init__ leaves a session without its lists.
        taken, extents = getattr(self, "_taken", []), getattr(self, "_extents", [])
        if taken or extents:
            self._queue.abandon(taken, extents)
