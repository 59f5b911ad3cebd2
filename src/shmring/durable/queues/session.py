"""One thread's transaction on a persistent queue."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shmring.closing import Closing
from shmring.durable.base.checksums import Checksum
from shmring.durable.base.files import Buffer
from shmring.durable.base.group_commit import Waiting
from shmring.durable.base.items import item_bytes
from shmring.durable.queues.data_files import DataFile
from shmring.errors import NoSpace

if TYPE_CHECKING:
    from shmring.durable.queues.persistent import PersistentQueue

__all__ = ["Item", "Run", "Session", "Transaction", "items_of"]

# Up to this much goes into the log together with the transaction and so needs one sync, not two.
_INLINE_BYTES = 32 << 10
# From this much on a session writes early, uncommitted, rather than hold it in memory.
_BUFFER_BYTES = 1 << 20


@dataclass(slots=True, eq=False)
class Item:
    """A committed item and where its bytes are; ``file`` None means in the log."""

    number: int
    file: DataFile | None
    offset: int
    length: int
    crc: int


@dataclass(slots=True)
class Run:
    """Items written one after the other into a data file: length, crc, length, crc, ..."""

    file: DataFile
    offset: int
    table: list[int]


class Transaction(Waiting):
    """What one flush wants committed, and how that went."""

    def __init__(
        self, runs: list[Run], inline: list[bytes], table: list[int], taken: list[Item]
    ) -> None:
        super().__init__()
        self.runs = runs
        self.inline = inline
        self.table = table
        self.taken = taken


@dataclass(slots=True)
class _Buffer:
    items: list[bytes] = field(default_factory=list[bytes])
    nbytes: int = 0

    def table(self, checksum: Checksum) -> list[int]:
        """Return length, crc, length, crc, ... of the items."""
        return [n for item in self.items for n in (len(item), checksum(item, 0))]


class Session(Closing):
    """A transaction of one thread; made by :meth:`PersistentQueue.session`.

    Leaving the ``with`` block, :meth:`rollback` or dropping the session undoes what was not
    flushed.  A session is for one thread at a time; a queue may have any number of them.
    """

    def __init__(self, queue: PersistentQueue) -> None:
        self._queue = queue
        self._buffer = _Buffer()
        self._runs: list[Run] = []
        self._taken: list[Item] = []

    def enqueue(self, data: Buffer) -> None:
        """Put an item at the back, visible to others after the next flush.

        Raises
        ------
        NoSpace : the disk is full; this item is not in the session, all before it are
        MessageTooLarge : the item has 4 GiB or more
        TypeError : `data` is not bytes-like
        """
        self._queue.check()
        data = item_bytes(data)
        buffer = self._buffer
        if buffer.nbytes > _BUFFER_BYTES:
            self._write_early()
            buffer = self._buffer
        buffer.items.append(data)
        buffer.nbytes += len(data)

    def _write_early(self) -> None:
        buffer = self._buffer
        files = self._queue.files
        try:
            file, offset = files.write(buffer.items, len(buffer.items))
        except NoSpace:
            if not self._queue.reclaim():
                raise
            file, offset = files.write(buffer.items, len(buffer.items))
        self._runs.append(Run(file, offset, buffer.table(self._queue.checksum)))
        self._buffer = _Buffer()

    def dequeue(self) -> bytes | None:
        """Take the item at the front; None if no committed item is there.

        The item goes to nobody else.  It has left for good after the next flush.

        Raises
        ------
        Damaged : its bytes do not match their checksum; it stays at the front
        """
        queue = self._queue
        queue.check()
        while True:
            item = queue.take()
            if item is None:
                return None
            self._taken.append(item)
            try:
                data = queue.read(item)
            except BaseException:
                self._taken.pop()
                queue.give_back([item])
                raise
            if data is not None:
                return data

    def flush(self) -> None:
        """Commit: returns when everything this session did is on disk (or will be, if delayed).

        Raises
        ------
        NoSpace : the disk is full; nothing was committed, the session is as it was: flush again
            when there is space, or roll back
        Closed : the queue was closed, or stopped after a failed write; or it was reset, and this
            session holds items that went with it: nothing was committed, roll back
        """
        self._queue.check()
        buffer = self._buffer
        if buffer.nbytes > _INLINE_BYTES or len(buffer.items) > _INLINE_BYTES:
            self._write_early()
            buffer = self._buffer
        if not (buffer.items or self._runs or self._taken):
            return
        transaction = Transaction(
            self._runs, buffer.items, buffer.table(self._queue.checksum), self._taken
        )
        try:
            self._queue.commit(transaction)
        finally:
            if transaction.committed:
                self._forget()

    def rollback(self) -> None:
        """Undo what was not flushed: enqueues vanish, dequeued items return to the front."""
        runs, taken = self._runs, self._taken
        self._forget()
        if not self._queue.usable:
            return
        for run in runs:
            self._queue.files.release(run.file, len(run.table) // 2)
        self._queue.give_back(taken)

    close = rollback

    def _forget(self) -> None:
        self._buffer = _Buffer()
        self._runs = []
        self._taken = []

    def __del__(self) -> None:
        # The collector may run inside the queue's own critical section, so nothing is locked here.
        # A signal handler that raised inside __init__ leaves a session without its lists.
        taken, runs = getattr(self, "_taken", []), getattr(self, "_runs", [])
        if taken or runs:
            self._queue.abandon(taken, runs)


def items_of(number: int, file: DataFile | None, offset: int, table: list[int]) -> list[Item]:
    """Return the items of a table of lengths and checksums, numbered from ``number`` on."""
    found: list[Item] = []
    for i in range(0, len(table), 2):
        length, crc = table[i], table[i + 1]
        found.append(Item(number, file, offset, length, crc))
        number += 1
        offset += length
    return found
