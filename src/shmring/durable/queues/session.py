"""A transaction on a persistent queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shmring.durable.base.group_commit import Waiting
from shmring.durable.base.items import TABLE_ENTRY_BYTES, Items, Packing
from shmring.durable.queues.data_files import DataFile
from shmring.durable.queues.intake import Intake
from shmring.durable.queues.line import Span
from shmring.errors import NoSpace

if TYPE_CHECKING:
    from shmring.durable.queues.persistent import PersistentQueue

__all__ = ["Extent", "Session", "Transaction"]

# Up to this much goes into the log together with the transaction and so needs one sync, not two.
_INLINE_BYTES = 32 << 10


@dataclass(slots=True)
class Extent:
    """Items written one after the other into a data file, and their table."""

    file: DataFile
    offset: int
    table: bytes

    def __len__(self) -> int:
        return len(self.table) // TABLE_ENTRY_BYTES


class Transaction(Waiting):
    """What one flush wants committed, and how that went."""

    def __init__(self, extents: list[Extent], inline: Packing, taken: list[Span]) -> None:
        super().__init__()
        self.extents = extents
        self.inline = inline
        self.taken = taken


class Session(Intake):
    """A transaction; made by :meth:`PersistentQueue.session`.

    Leaving the ``with`` block, :meth:`rollback` or dropping the session undoes what was not
    flushed.  A queue may have any number of sessions; what threads do in one and the same session
    is committed or undone together.
    """

    def __init__(self, queue: PersistentQueue) -> None:
        super().__init__()
        self._queue = queue
        self._packing = Packing()
        self._extents: list[Extent] = []
        self._taken: list[Span] = []

    def _check_writable(self) -> None:
        self._queue.check()

    def _write_early(self) -> None:
        packing = self._packing
        packing.settle()
        files = self._queue.files
        try:
            file, offset = files.write(packing.parts, len(packing))
        except NoSpace:
            if not self._queue.reclaim():
                raise
            file, offset = files.write(packing.parts, len(packing))
        self._extents.append(Extent(file, offset, packing.table))
        self._packing = Packing()

    def dequeue(self) -> bytes | None:
        """Take the item at the front; None if no committed item is there.

        The item goes to nobody else.  It has left for good after the next flush.

        Raises
        ------
        Damaged : its bytes do not match their checksum; it stays at the front
        """
        with self._lock:
            self._queue.check()
            return self._queue.take(self._taken)

    def dequeue_many(self, max_items: int) -> Items:
        """Take up to so many items from the front; otherwise as :meth:`dequeue`.

        Returns
        -------
        a list of bytes, which ``to_numpy()`` and ``to_arrow()`` turn into an array; empty if no
        committed item is there, and shorter than asked if there are fewer, or one is damaged

        Raises
        ------
        Damaged : the first of them does not match its checksum; it stays at the front
        ValueError : `max_items` is negative
        """
        if max_items < 0:
            raise ValueError(f"max_items must not be negative, as {max_items} is")
        with self._lock:
            self._queue.check()
            return self._queue.take_many(self._taken, max_items)

    def flush(self) -> None:
        """Commit: returns when everything this session did is on disk (or will be, if delayed).

        Raises
        ------
        NoSpace : the disk is full; nothing was committed, the session is as it was: flush again
            when there is space, or roll back
        Closed : the queue was closed, or stopped after a failed write; or it was reset, and this
            session holds items that went with it: nothing was committed, roll back
        """
        with self._lock:
            self._queue.check()
            if self._packing.nbytes > _INLINE_BYTES:
                self._write_early()
            self._packing.settle()
            if not (len(self._packing) or self._extents or self._taken):
                return
            transaction = Transaction(self._extents, self._packing, self._taken)
            try:
                self._queue.commit(transaction)
            finally:
                if transaction.committed:
                    self._forget()

    def rollback(self) -> None:
        """Undo what was not flushed: enqueues vanish, dequeued items return to the front."""
        with self._lock:
            extents, taken = self._extents, self._taken
            self._forget()
        if not self._queue.usable:
            return
        for extent in extents:
            self._queue.files.release(extent.file, len(extent))
        self._queue.give_back(taken)

    close = rollback

    def _forget(self) -> None:
        self._packing = Packing()
        self._extents = []
        self._taken = []

    def __del__(self) -> None:
        # The collector may run inside the queue's own critical section, so nothing is locked here.
        # A signal handler that raised inside __init__ leaves a session without its lists.
        taken, extents = getattr(self, "_taken", []), getattr(self, "_extents", [])
        if taken or extents:
            self._queue.abandon(taken, extents)
