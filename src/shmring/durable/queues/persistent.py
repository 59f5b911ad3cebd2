"""A transactional queue in a directory, owned by one process.

The directory holds::

    lock              who owns it (see lockfile.py)
    transaction.log   what was put in and taken out (see transaction_log.py)
    data.0000000001   the items (see data_files.py), as many files as are needed
    *.tmp             a rewrite that was interrupted; means nothing, removed on opening
    *.broken          what a repair set aside; never read, never removed

A flush writes the items to a data file and syncs it, appends one transaction to the log and
syncs that, and then applies it in memory.  Small flushes carry their items inside the
transaction, which saves the first of the two syncs; they move to a data file when the log is
rewritten.  Flushes that arrive while another one syncs go into one transaction together.

With ``durability="delayed"`` nothing is synced in a flush.  A transaction then says so, and on
opening the items of such transactions are checked against their checksums, unless a later one
says that they had been synced.  The first that fails ends the queue's history, as a torn one does.
"""

from __future__ import annotations

import heapq
import logging
import os
import threading
from collections import deque
from typing import Literal

from shmring.closing import Closing
from shmring.durable.base.files import Disk, OsDisk
from shmring.durable.base.group_commit import GroupCommit
from shmring.durable.queues.compaction import snapshot
from shmring.durable.queues.data_files import DataFile, DataFiles
from shmring.durable.queues.recovery import recover
from shmring.durable.queues.session import Item, Run, Session, Transaction, items_of
from shmring.durable.queues.transaction_log import Body, TransactionLog
from shmring.errors import Closed, Damaged, ForkedHandle, NoSpace

__all__ = ["PersistentQueue"]

_log = logging.getLogger("shmring.durable")


class PersistentQueue(Closing):
    """Open, or create, the queue in a directory.

    Parameters
    ----------
    path : the directory
    timeout : seconds to wait for another owner to close it; None waits for ever, 0 does not wait
    durability : "sync": a flush returns when it is on disk; "delayed": it is within ``delay``
    delay : seconds; how long after a delayed flush the sync begins at the latest
    damage : "refuse": an error on damage in the middle of the files; "cut": keep what stands
        before it, put what is cut off aside as ``*.broken``, and go on
    file_size : bytes at which a data file is complete
    log_size : bytes under which the log is not rewritten while the queue is open
    log_reserve : bytes held back in the log, so that taking items works on a full disk:
        about one flush for each 90 bytes
    disk : for tests

    Attributes
    ----------
    recovered : what opening had to drop, in words; None if nothing

    Raises
    ------
    Locked : another process owns it, or this one has it open already; ``pid`` says which
    Damaged : the files contradict themselves; says where
    NoSpace : no space to create it
    NotARing : `path` is a file
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        timeout: float | None = 0.0,
        durability: Literal["sync", "delayed"] = "sync",
        delay: float = 0.05,
        damage: Literal["refuse", "cut"] = "refuse",
        file_size: int = 32 << 20,
        log_size: int = 32 << 20,
        log_reserve: int = 1 << 20,
        disk: Disk | None = None,
    ) -> None:
        self.path = os.path.abspath(path)
        self.is_open = False
        if durability not in ("sync", "delayed"):
            raise ValueError(f'durability is "sync" or "delayed", not {durability!r}')
        if damage not in ("refuse", "cut"):
            raise ValueError(f'damage is "refuse" or "cut", not {damage!r}')
        self._disk = disk or OsDisk()
        self._delayed = durability == "delayed"
        self._cut = damage == "cut"
        self._log_size = log_size
        self._log_reserve = log_reserve
        self._pid = os.getpid()
        self._group = GroupCommit(self._commit)
        # Held while a group is written; taken before _lock, never the other way round.
        self._commit_lock = threading.Lock()
        # Guards what follows it; held for moments only.
        self._lock = threading.Lock()
        self._returned: list[tuple[int, Item]] = []
        self._taken: dict[int, Item] = {}
        self._abandoned: deque[tuple[list[Item], list[Run]]] = deque()
        self._failure: BaseException | None = None
        self._unsynced_files: set[DataFile] = set()
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._delay = delay
        self._syncer: threading.Thread | None = None
        self._disk.make_directory(self.path)
        lock_path = os.path.join(self.path, "lock")
        self._owner = self._disk.lock(lock_path, f"the queue at {self.path}", timeout)
        try:
            state = recover(
                self._disk,
                self.path,
                cut=self._cut,
                file_size=file_size,
                log_reserve=log_reserve,
            )
        except BaseException:
            self._owner.release()
            raise
        self.files: DataFiles = state.files
        self.recovered: str | None = state.recovered
        self._journal: TransactionLog = state.log
        self.checksum = state.log.checksum
        self._queue: deque[Item] = state.items
        self._next_item = state.next_item
        self._rewritten_size = 0
        self.is_open = True
        if self.recovered is not None:
            _log.warning("%s", self.recovered)
        if state.rewrite:
            with self._commit_lock:
                self._rewrite_log()

    def session(self) -> Session:
        """Begin a transaction; use it as a context manager."""
        self.check()
        return Session(self)

    def __len__(self) -> int:
        """Return the number of committed items that nobody has taken."""
        self.check()
        with self._lock:
            self._adopt()
            return len(self._queue) + len(self._returned)

    @property
    def transactions(self) -> int:
        """Transactions in the log: fewer than flushes, where several went into one."""
        return self._journal.transactions

    @property
    def unsynced(self) -> bool:
        """Whether a delayed flush is not on disk yet."""
        return self._journal.unsynced

    def sync(self) -> None:
        """Return when every flush so far is on disk; only of use with delayed durability."""
        self.check()
        with self._commit_lock:
            self._sync_now()
        if self._failure is not None:
            raise self._closed()

    def check(self) -> None:
        """Raise unless this process may use the queue."""
        if self._pid != os.getpid():
            raise ForkedHandle(f"only process {self._pid} can use the queue at {self.path}")
        if not self.is_open:
            raise Closed(f"the queue at {self.path} was closed; open it again")

    @property
    def usable(self) -> bool:
        """Whether :meth:`check` would pass."""
        return self.is_open and self._pid == os.getpid()

    def reset(self) -> None:
        """Delete every item, in the queue or in a session's hands, in one step, durably.

        The queue goes on empty.  What sessions have enqueued and not flushed is still theirs to
        flush; one that holds items it took must roll back.  Files put aside as ``*.broken`` stay.

        Raises
        ------
        NoSpace : the disk is full and the log's reserve used up; nothing was deleted
        Closed : the queue was closed, or stopped after a failed write
        """
        self.check()
        with self._commit_lock:
            self._sync_now()
            try:
                self._take_all()
            except NoSpace:
                if not self._reclaim():
                    raise
                self._take_all()
            self.files.retire_current()
            self.files.discard_drained(self.files.drained())
            # Small items stood in the log.
            self._rewrite_log()

    def _take_all(self) -> None:
        if self._failure is not None or not self.is_open:
            raise self._closed()
        # Nobody takes or gives back meanwhile.
        with self._lock:
            self._adopt()
            gone = [item for _, item in self._returned]
            gone += self._queue
            gone += self._taken.values()
            body = Body()
            body.take(item.number for item in gone)
            try:
                self._journal.append(body, deferred=False, may_use_reserve=True)
                self._journal.sync()
            except NoSpace:
                raise
            except BaseException as error:
                self._failure = error
                if not isinstance(error, OSError):
                    raise
                raise self._closed() from error
            self._returned.clear()
            self._queue.clear()
            self._taken.clear()
            for item in gone:
                if item.file is not None:
                    self.files.release(item.file, 1)

    # What sessions need.

    def take(self) -> Item | None:
        """Give the front item to a session."""
        with self._lock:
            if self._abandoned:
                self._adopt()
            if self._returned:
                item = heapq.heappop(self._returned)[1]
            elif self._queue:
                item = self._queue.popleft()
            else:
                return None
            self._taken[item.number] = item
            return item

    def commit(self, transaction: Transaction) -> None:
        """Commit, together with whatever else waits for it."""
        self._group.commit(transaction)

    def give_back(self, items: list[Item]) -> None:
        """Return items to the front, where their numbers put them in their old order."""
        with self._lock:
            self._return(items)

    def _return(self, items: list[Item]) -> None:
        for item in items:
            if self._taken.pop(item.number, None) is not None:  # else a reset has deleted it
                heapq.heappush(self._returned, (item.number, item))

    def abandon(self, items: list[Item], runs: list[Run]) -> None:
        """Leave what a dropped session held to whoever comes next; takes no lock."""
        self._abandoned.append((items, runs))

    def _adopt(self) -> None:
        while self._abandoned:
            items, runs = self._abandoned.popleft()
            for run in runs:
                self.files.release(run.file, len(run.table) // 2)
            self._return(items)

    def read(self, item: Item) -> bytes | None:
        """Return the bytes of an item that was taken.

        None if a reset has deleted it since, or if it is damaged and the queue was told to cut.
        """
        with self._lock:
            if item.number not in self._taken:
                return None
            # A rewrite of the log moves its items, and holds this lock while it does.
            file = item.file
            data = self._journal.read(item.length, item.offset) if file is None else b""
        if file is not None:
            try:
                data = self.files.read(file, item.length, item.offset)
            except FileNotFoundError:
                if item.number in self._taken:
                    raise
                return None
        if len(data) == item.length and self.checksum(data, 0) == item.crc:
            return data
        path = self._journal.path if file is None else file.path
        what = f"item {item.number}, {item.length} bytes at {item.offset},"
        text = f"{path}: {what} does not match its checksum"
        if not self._cut:
            raise Damaged(f'{text}; open with damage="cut" to pass over such items')
        if file is not None:
            file.keep_broken = True
        self.recovered = f"{text}; it was passed over"
        _log.warning("%s", self.recovered)
        return None

    def _commit(self, group: list[Transaction]) -> None:
        with self._commit_lock:
            self._commit_group(group)
            if self._should_rewrite():
                self._rewrite_log()

    def _commit_group(self, group: list[Transaction], *, reclaimed: bool = False) -> None:
        if self._failure is not None or not self.is_open:
            for transaction in group:
                transaction.finish(self._closed())
            return
        group = self._without_reset(group)
        if not group:
            return
        try:
            self._write_group(group)
        except NoSpace as error:
            if len(group) > 1:
                # Those that only take items may still succeed.
                for transaction in group:
                    self._commit_group([transaction])
            elif not reclaimed and self._reclaim():
                self._commit_group(group, reclaimed=True)
            else:
                group[0].finish(error)
        except BaseException as error:
            self._failure = error
            for transaction in group:
                transaction.finish(self._closed())
            if not isinstance(error, OSError):
                raise

    def _without_reset(self, group: list[Transaction]) -> list[Transaction]:
        """Refuse the transactions whose items a reset has deleted; return the others."""
        others: list[Transaction] = []
        for transaction in group:
            if all(item.number in self._taken for item in transaction.taken):
                others.append(transaction)
                continue
            transaction.finish(
                Closed(
                    f"the queue at {self.path} was reset while this session held items of it; "
                    f"nothing was committed: roll back, then go on"
                )
            )
        return others

    def _closed(self) -> Closed:
        if self._failure is None:
            return Closed(f"the queue at {self.path} was closed; open it again")
        failure = self._failure
        closed = Closed(
            f"the queue at {self.path} stopped after a failed write ({failure}); whether the last "
            f"flush was committed shows when it is opened again"
        )
        closed.__cause__ = failure
        return closed

    def _write_group(self, group: list[Transaction]) -> None:
        files = {run.file for transaction in group for run in transaction.runs}
        if files and not self._delayed:
            self.files.sync(files)
        body = Body()
        number = self._next_item
        items: list[Item] = []
        inline: list[tuple[int, Transaction, int]] = []
        for transaction in group:
            for run in transaction.runs:
                body.put(number, run.file.number, run.offset, run.table)
                items += items_of(number, run.file, run.offset, run.table)
                number += len(run.table) // 2
            if transaction.inline:
                start = body.put_inline(number, transaction.inline, transaction.table)
                inline.append((number, transaction, start))
                items += items_of(number, None, start, transaction.table)
                number += len(transaction.inline)
            body.take(item.number for item in transaction.taken)
        base = self._journal.append(
            body, deferred=self._delayed, may_use_reserve=number == self._next_item
        )
        if self._delayed:
            self._unsynced_files |= files
            self._sync_soon()
        else:
            self._journal.sync()
        for item in items:
            if item.file is None:
                item.offset += base
        self._apply(group, items, number)
        if not self._delayed:
            self.files.discard_drained(self.files.drained())

    def reclaim(self) -> bool:
        """Free what the queue holds on the disk without need; return whether it was anything."""
        with self._commit_lock:
            return self._reclaim()

    def _reclaim(self) -> bool:
        if self._failure is not None or not self.is_open:
            return False
        self.files.retire_current()
        before = len(self.files.numbers())
        self._sync_now()
        if not self._delayed:
            self.files.discard_drained(self.files.drained())
        if self.files.await_space() or len(self.files.numbers()) < before:
            return True
        size = self._journal.allocated
        self._rewrite_log()
        return self._journal.allocated < size

    def _apply(self, group: list[Transaction], items: list[Item], next_item: int) -> None:
        with self._lock:
            self._queue.extend(items)
            self._next_item = next_item
            released: dict[DataFile, int] = {}
            for transaction in group:
                for item in transaction.taken:
                    del self._taken[item.number]
                    if item.file is not None:
                        released[item.file] = released.get(item.file, 0) + 1
            for file, count in released.items():
                self.files.release(file, count)
        for transaction in group:
            transaction.finish(None)

    def _sync_soon(self) -> None:
        if self._syncer is None:
            self._syncer = threading.Thread(
                target=self._sync_in_time, name="shmring-durable", daemon=True
            )
            self._syncer.start()
        self._wake.set()

    def _sync_in_time(self) -> None:
        while not self._stop.is_set():
            self._wake.wait()
            self._stop.wait(self._delay)
            with self._commit_lock:
                self._wake.clear()
                if self.is_open:
                    self._sync_now()

    def _sync_now(self) -> None:
        if self._failure is not None or not self._delayed:
            return
        try:
            self.files.sync(self._unsynced_files)
            self._unsynced_files.clear()
            self._journal.sync()
            drained = self.files.drained()
            if drained:
                # Without its files a transaction cannot be checked any more; first make it
                # durable that it need not be.
                self._journal.append(Body(), deferred=False, may_use_reserve=True)
                self._journal.sync()
                self.files.discard_drained(drained)
        except NoSpace:
            # The reserve is used up: the files stay until the log is rewritten.
            return
        except BaseException as error:
            self._failure = error
            if not isinstance(error, OSError):
                raise

    def _should_rewrite(self) -> bool:
        end = self._journal.end
        if end <= self._log_size or self._failure is not None:
            return False
        with self._lock:
            live = len(self._queue) + len(self._returned) + len(self._taken)
        # The second condition keeps a queue full of holes, whose optimum is larger than this
        # estimate, from being rewritten at every flush.
        return end > 2 * (120 + 8 * live) and end - self._rewritten_size > self._log_size // 2

    def _rewrite_log(self) -> None:
        if self._failure is not None:
            return
        with self._lock:
            self._adopt()
            live = [item for _, item in self._returned]
            live += self._queue
            live += self._taken.values()
        live.sort(key=lambda item: item.number)
        try:
            self.files.sync(self._unsynced_files)
            log, moved = snapshot(
                self._disk,
                self._journal,
                self.files,
                live,
                next_item=self._next_item,
                reserve=self._log_reserve,
            )
        except NoSpace:
            # The old log is whole; it is only longer than it need be.
            self._rewritten_size = self._journal.end
            return
        except BaseException as error:
            self._failure = error
            if not isinstance(error, OSError):
                raise
            return
        with self._lock:
            for item, file, offset in moved:
                item.file, item.offset = file, offset
            old, self._journal = self._journal, log
        old.close()
        self._rewritten_size = log.end
        self._unsynced_files.clear()
        self.files.discard_drained(self.files.drained())

    def close(self) -> None:
        """Sync, trim the log, and let the next owner in; open sessions are rolled back."""
        if not self.is_open:
            return
        if self._pid != os.getpid():
            self.is_open = False
            return
        with self._commit_lock:
            try:
                self._sync_now()
                if self._journal.transactions > 1:
                    self._rewrite_log()
            finally:
                self.is_open = False
                self._stop.set()
                self._wake.set()
                self._shut()
        if self._failure is not None:
            raise self._closed()

    def _shut(self) -> None:
        with self._lock:
            live = {item.file for item in self._queue}
            live |= {item.file for _, item in self._returned}
            live |= {item.file for item in self._taken.values()}
        numbers = {file.number for file in live if file is not None}
        try:
            self.files.close(numbers if self._failure is None else None)
        finally:
            self._journal.close()
            self._owner.release()
