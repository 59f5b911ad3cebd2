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

# Up to so many bytes go into the log with the transaction, and so need one sync, not two.
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
    """The changes of one flush, and whether they were committed."""

    def __init__(self, extents: list[Extent], inline: Packing, taken: list[Span]) -> None:
        super().__init__()
        self.extents = extents
        self.inline = inline
        self.taken = taken


class Session(Intake):
    """A transaction; made by :meth:`PersistentQueue.session`.

    Leaving the ``with`` block, :meth:`rollback` or garbage collection of the session undoes
    everything since the last flush.  A queue may have any number of sessions.  Everything that
    several threads do in one session is committed or undone together.
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
        """Take the item at the front; None if there is no committed item.

        No other session gets the item.  The next flush removes it for good.

        Raises
        ------
        Damaged : the item's bytes do not match their checksum; the item stays at the front
        """
        with self._lock:
            self._queue.check()
            return self._queue.take(self._taken)

    def dequeue_many(self, max_items: int) -> Items:
        """Take up to `max_items` items from the front; otherwise as :meth:`dequeue`.

        Returns
        -------
        a list of bytes, which ``to_numpy()`` and ``to_arrow()`` turn into an array. It is empty if
        there is no committed item, and shorter than `max_items` if there are fewer items, or an
        item is damaged

        Raises
        ------
        Damaged : the first item does not match its checksum; it stays at the front
        ValueError : `max_items` is negative
        """
        if max_items < 0:
            raise ValueError(f"max_items must not be negative, as {max_items} is")
        with self._lock:
            self._queue.check()
            return self._queue.take_many(self._taken, max_items)

    def flush(self) -> None:
        """Commit: return when all changes of this session are on disk (if delayed: at once).

        Raises
        ------
        NoSpace : the disk is full; nothing was committed, and the session is unchanged: flush again
            when there is space, or roll back
        Closed : the queue was closed, or stopped after a failed write; or it was reset, and this
            session holds items that the reset deleted: nothing was committed, roll back
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
        """Undo all changes since the last flush; dequeued items return to the front."""
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
        # The collector may run inside the queue's own critical section, so this takes no lock.
        # A signal handler that raised inside __init__ leaves a session without its lists.
        taken, extents = getattr(self, "_taken", []), getattr(self, "_extents", [])
        if taken or extents:
            self._queue.abandon(taken, extents)
