"""The files of an open persistent queue: its lock, its log and its data files."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager

from shmring.durable.base.files import Disk, LockFile, check_names
from shmring.durable.queues.data_files import DataFile, DataFiles
from shmring.durable.queues.line import Span
from shmring.durable.queues.recovery import Moved, rewrite
from shmring.durable.queues.transaction_log import Body, TransactionLog
from shmring.errors import Closed, Damaged, NoSpace, PermissionRefused

# Errors that stop the queue and are not raised themselves: the call and all later calls raise
# Closed, which names the error. Any other error also stops the queue, and is raised at once.
STOPPING = (OSError, Damaged)


class Store:
    """Writes transactions, and looks after the files of a queue.

    One thread at a time uses a store: the holder of the queue's commit lock.

    Attributes
    ----------
    log, files : the log, and the data files
    failure : the error that has stopped the queue; None while the queue works
    """

    def __init__(
        self,
        disk: Disk,
        path: str,
        owner: LockFile,
        log: TransactionLog,
        files: DataFiles,
        *,
        delayed: bool,
    ) -> None:
        self._disk = disk
        self._path = path
        self._owner = owner
        self.log = log
        self.files = files
        self._delayed = delayed
        self._unsynced: set[DataFile] = set()
        self._rewritten_size = 0
        self.failure: BaseException | None = None

    def closed(self) -> Closed:
        """Return the error to raise for a queue that was closed, or has stopped."""
        if self.failure is None:
            return Closed(f"the queue at {self._path} was closed; open it again")
        closed = Closed(
            f"the queue at {self._path} has stopped ({self.failure}); whether the last flush was "
            f"committed shows when it is opened again"
        )
        closed.__cause__ = self.failure
        return closed

    @contextmanager
    def writing(self) -> Generator[None]:
        """Stop the queue if the block raises, unless the error says that nothing was written.

        :meth:`closed` names the error afterwards.
        """
        try:
            yield
        except (NoSpace, PermissionRefused):
            raise
        except BaseException as error:
            self.failure = error
            if not isinstance(error, STOPPING):
                raise

    def _check_names(self) -> None:
        """Raise if the lock file or the log was removed or replaced.

        If the lock file is gone, a second owner may have opened the queue.  If the log is gone, the
        next opening of the queue does not find the transactions that are written to it.
        """
        check_names(self._owner, self.log.file)

    def append(self, body: Body, files: set[DataFile], *, only_takes: bool, delayed: bool) -> int:
        """Write one transaction with items in `files`; return the offset of its body in the log."""
        self._check_names()
        if files and not delayed:
            self.files.sync(files)
        base = self.log.append(body, deferred=delayed, may_use_reserve=only_takes)
        if delayed:
            self._unsynced |= files
        else:
            self.log.sync()
            self._check_names()
        return base

    def discard_drained(self) -> None:
        """Delete the data files that hold no item any more.

        With delayed durability, do nothing: sync() deletes these files after the next sync.
        """
        if not self._delayed and (drained := self.files.drained()):
            self.files.discard_drained(drained)

    def release(self, spans: Iterable[Span]) -> None:
        """Lower the reference counts of data files whose items have left the queue."""
        for span in spans:
            if isinstance(span.run.source, DataFile):
                self.files.release(span.run.source, len(span))

    def sync(self, *, closing: bool = False) -> None:
        """Wait until every transaction is on disk."""
        if self.failure is not None or not self._delayed:
            return
        try:
            with self.writing():
                self._check_names()
                self.files.sync(self._unsynced)
                self._unsynced.clear()
                self.log.sync()
                self._check_names()
                drained = self.files.drained()
                if drained or (closing and self.log.unchecked):
                    # Opening cannot check the items of an unsynced transaction once their data
                    # files are deleted. So record in the log first that all items are synced.
                    self.log.witness()
                    self.files.discard_drained(drained)
        except NoSpace:
            # The reserve is used up: the files stay until the log is rewritten.
            return

    def is_wasteful(self, size: int, count_live: Callable[[], int]) -> bool:
        """Whether the log is larger than `size`, and a rewrite would make it much shorter."""
        end = self.log.end
        if end <= size or self.failure is not None:
            return False
        # Estimated size of a rewritten log: some 120 bytes of headers, and 8 bytes (length and
        # checksum) for each item. The estimate is too low if the items in the queue are in many
        # separate ranges, each with a header of its own. Then the first condition stays true after
        # a rewrite; the second one, that the log has grown, avoids a rewrite at every flush.
        return end > 2 * (120 + 8 * count_live()) and end - self._rewritten_size > size // 2

    def rewrite(self, live: list[Span], next_item: int, move: Callable[[Moved], None]) -> None:
        """Replace the log by a shorter one, whose only transaction adds the items of `live`.

        `move` is called with the runs whose items were copied from the log to a data file. If the
        disk has no space for the new log, the old one stays: it is complete, only longer.
        """
        if self.failure is not None:
            return
        try:
            with self.writing():
                self._check_names()
                self.files.sync(self._unsynced)
                log, moved = rewrite(self._disk, self.log, self.files, live, next_item)
                log.regain_reserve()
                move(moved)
                old, self.log = self.log, log
                old.close()
                self.files.discard_drained(self.files.drained())
        except (NoSpace, PermissionRefused):
            pass
        self._rewritten_size = self.log.end

    def close(self, live: set[int] | None) -> None:
        """Close the files, and delete the data files without items.

        Parameters
        ----------
        live : numbers of the data files that hold items; None keeps all files. All files also stay
            if the queue has stopped, has lost its lock, or has transactions that the next opening
            must check
        """
        try:
            owned = self._owner.has_name()
            known = owned and self.failure is None and not self.log.unchecked
            self.files.close(live if known else None, owned=owned)
        finally:
            self.log.close()
            self._owner.release()
