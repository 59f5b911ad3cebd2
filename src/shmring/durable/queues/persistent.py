"""A transactional queue in a directory, owned by one process.

The directory holds::

    lock              names the owner (see LockFile)
    transaction.log   which items were enqueued and dequeued (see transaction_log.py)
    data.0000000001   the items (see data_files.py), as many files as are needed
    transaction.log.tmp   an interrupted rewrite; ignored, and removed on opening
    *.broken          files that a repair put aside; never read, never removed

A flush writes the items to a data file and syncs the file, appends one transaction to the log and
syncs the log, and then applies the transaction in memory.  Small flushes carry their items inside
the transaction, which saves the first of the two syncs; these items move to a data file when the
log is rewritten.  Flushes that arrive while another one syncs go into one transaction together.

With ``durability="delayed"`` a flush syncs nothing, and its transaction says so.  Opening checks
the items of such transactions against their checksums, unless a later transaction says that they
had been synced.  The first item that fails the check ends the queue's history, as a torn
transaction does.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from copy import copy
from typing import Literal

from shmring._shmring import extents_of
from shmring.common.arguments import integer, seconds_of
from shmring.common.closing import Closing
from shmring.common.forks import lineage
from shmring.durable.base.files import Disk
from shmring.durable.base.items import EXTENT, Packing, ReadAhead
from shmring.durable.queues.data_files import DataFile, DataFiles
from shmring.durable.queues.line import Line, Run, Span, by_number
from shmring.durable.queues.recovery import Moved, Recovery
from shmring.durable.queues.session import Extent, GroupCommit, Session, Transaction
from shmring.durable.queues.store import STOPPING, Store
from shmring.durable.queues.transaction_log import Body
from shmring.errors import Closed, Damaged, ForkedHandle, NoSpace
from shmring.ring.names import path_text

_LOG = logging.getLogger("shmring.durable")
# Run of items that a transaction adds: number of the first item, file (None for the log), offset of
# the first item in the file, and the items' table of lengths and checksums (see base/items.py).
Placed = tuple[int, DataFile | None, int, bytes]
_NONE = Packing()  # no items
# Largest log_reserve: opening reads the whole log into memory.
_MOST_RESERVE = 1 << 30
# Closing rewrites a log that is larger than 1/16 of log_size.
_CLOSING_SHARE = 16


class PersistentQueue(Closing):
    """Open the queue in a directory, or create it.

    Parameters
    ----------
    path : the directory
    timeout : seconds to wait for another owner to close the queue; None waits for ever, 0 does not
        wait
    durability : "sync": a flush returns when its items are on disk; "delayed": a flush returns at
        once, and the sync begins within ``delay`` seconds
    delay : maximum seconds between a delayed flush and the beginning of its sync
    damage : "refuse": raise an error on damage in the middle of the files; "cut": keep everything
        before the damage, put the rest aside as ``*.broken``, and continue
    file_size : size in bytes at which a data file is complete
    log_size : size in bytes below which the log is not rewritten while the queue is open
    log_reserve : bytes reserved in the log, so that sessions can take items on a full disk: about
        one flush for each 90 bytes; at most 1 GiB, because opening reads the whole log
    disk : replacement for the calls of the file system; for tests

    Attributes
    ----------
    recovered : text about the data that opening had to drop; None if nothing was dropped

    Raises
    ------
    Locked : another process owns the queue, or this process has the queue open already; ``pid`` is
        the owner's process id
    Damaged : the files are inconsistent; the text says where
    NoSpace : no space to create the queue
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
        self.path = os.path.abspath(path_text(path))
        self.is_open = False
        if durability not in ("sync", "delayed"):
            raise ValueError(f'durability is "sync" or "delayed", not {durability!r}')
        if damage not in ("refuse", "cut"):
            raise ValueError(f'damage is "refuse" or "cut", not {damage!r}')
        integer("file_size", file_size, 1)
        integer("log_reserve", log_reserve, 0, _MOST_RESERVE)
        disk = disk or Disk()
        self._cut = damage == "cut"
        self._log_size = integer("log_size", log_size)
        self._pid, self._forks = os.getpid(), lineage.forks
        self._group = GroupCommit(self._commit)
        # Commits a transaction, together with the transactions of other threads that wait.
        self.commit = self._group.commit
        # Held while files are written. A thread that needs both locks takes this lock before _lock.
        self._commit_lock = threading.Lock()
        # Guards _abandoned, _line, _ahead and _next_item; held briefly, at the longest while a
        # block is read ahead.
        self._lock = threading.Lock()
        self._abandoned: deque[tuple[list[Span], list[Extent]]] = deque()
        self._was_reset = False
        if timeout is not None:
            seconds_of("timeout", timeout)
        self._delay = _Delay(seconds_of("delay", delay, threading.TIMEOUT_MAX), self._sync_in_time)
        disk.make_directory(self.path)
        owner = disk.lock(os.path.join(self.path, "lock"), f"the queue at {self.path}", timeout)
        try:
            state = Recovery(
                disk, self.path, cut=self._cut, file_size=file_size, reserve=log_reserve
            )
        except BaseException:
            owner.release()
            raise
        self._delayed = durability == "delayed"
        self._store = Store(disk, self.path, owner, state.log, state.files, delayed=self._delayed)
        self.recovered = "; ".join(state.notes) or None
        self._line: Line = state.line
        self._ahead = ReadAhead()
        self._next_item = state.next_item
        self.is_open = True
        if self.recovered is not None:
            _LOG.warning("%s", self.recovered)
        if state.damaged:
            with self._commit_lock:
                self._rewrite_log()

    def session(self) -> Session:
        """Begin a transaction; use the session as a context manager."""
        self.check()
        return Session(self)

    def __len__(self) -> int:
        """Return the number of committed items that no session has taken."""
        self.check()
        with self._lock:
            self._adopt()
            return self._line.count

    @property
    def transactions(self) -> int:
        """Number of transactions in the log; several flushes may share one transaction."""
        return self._store.log.transactions

    @property
    def unsynced(self) -> bool:
        """Whether a delayed flush is not on disk yet."""
        return self._store.log.unsynced

    def sync(self) -> None:
        """Wait until every flush so far is on disk; useful only with delayed durability."""
        self.check()
        with self._commit_lock:
            self._store.sync()
        if self._store.failure is not None:
            raise self._store.closed()

    def check(self) -> None:
        """Raise unless this process may use the queue."""
        if self._forks != lineage.forks:
            raise ForkedHandle(f"only process {self._pid} can use the queue at {self.path}")
        if not self._is_usable:
            raise self._store.closed()

    @property
    def files(self) -> DataFiles:
        """The data files, for sessions."""
        return self._store.files

    @property
    def _is_usable(self) -> bool:
        return self._store.failure is None and self.is_open

    @property
    def usable(self) -> bool:
        """Whether :meth:`check` would pass."""
        return self.is_open and self._forks == lineage.forks

    def reset(self) -> None:
        """Delete every item, also the items that sessions have taken, in one durable step.

        The queue stays open and is empty.  A session can still flush items that it has enqueued.  A
        session that holds taken items must roll back.  Files put aside as ``*.broken`` stay.

        Raises
        ------
        NoSpace : the disk is full and the log's reserve is used up; nothing was deleted
        Closed : the queue was closed, or stopped after a failed write
        """
        self.check()
        with self._commit_lock:
            self._store.sync()
            try:
                self._take_all()
            except NoSpace:
                if not self._reclaim():
                    raise
                self._take_all()
            self._store.files.retire_current()
            self._store.files.discard_drained(self._store.files.drained())
            # Rewrite the log too: small items stand in the log, not in a data file.
            self._rewrite_log()

    def _take_all(self) -> None:
        if not self._is_usable:
            raise self._store.closed()
        # The lock keeps sessions from taking items, or giving items back, meanwhile.
        with self._lock:
            self._adopt()
            gone = [*self._line, *self._line.taken]
            body = Body()
            body.take((span.number, len(span)) for span in gone)
            with self._store.writing():
                self._store.append(body, set(), only_takes=True, delayed=False)
            if self._store.failure is not None:
                raise self._store.closed()
            self._line.clear()
            self._was_reset = True
            self._store.release(gone)

    # --- calls of sessions ---------------------------------------------------------------------

    def take(self, taken: list[Span]) -> bytes | None:
        """Take the front item, and note it in a session's ``taken``; None if there is no item."""
        with self._lock:
            if not self._is_usable:
                raise self._store.closed()
            if self._abandoned:
                self._adopt()
            while self._line.count:
                front = self._line.spans[0]
                run = front.run
                data = self._ahead.one(run.source, run.extents, front.begin)
                if data is None:
                    self._pass_over(front)
                self._line.hand_over(1, taken)
                if data is not None:
                    return data
            return None

    def take_some(self, items: list[bytes], most: int, taken: list[Span]) -> bool:
        """Take items of one span for a session; return whether there may be more."""
        with self._lock:
            if not self._is_usable:
                raise self._store.closed()
            if self._abandoned:
                self._adopt()
            if not self._line.count:
                return False
            front = self._line.spans[0]
            run, begin = front.run, front.begin
            end = min(front.end, begin + most)
            got = self._ahead.many(items, run.source, run.extents, begin, end)
            if got:
                self._line.hand_over(got, taken)
            if got < end - begin:
                if items:
                    return False
                self._pass_over(front)
                self._line.hand_over(1, taken)
            return True

    def _pass_over(self, span: Span) -> None:
        """Raise Damaged for the damaged first item of a span; with damage="cut", only log it."""
        source = span.run.source
        offset, length, _ = EXTENT.unpack_from(span.run.extents, span.begin * EXTENT.size)
        text = (
            f"{source.path}: item {span.number}, {length} bytes at {offset}, does not match its "
            f"checksum"
        )
        if not self._cut:
            raise Damaged(f'{text}; open with damage="cut" to pass over such items')
        if isinstance(source, DataFile):
            source.keep_broken = True
        self.recovered = f"{text}; it was passed over"
        _LOG.warning("%s", self.recovered)

    def give_back(self, spans: list[Span]) -> None:
        """Return items to the front, in the order of their numbers."""
        with self._lock:
            self._line.put_back(spans)

    def abandon(self, spans: list[Span], extents: list[Extent]) -> None:
        """Note a dropped session's items: the queue's next call returns them to the front.

        The garbage collector drops a session at any point of any thread, also in a thread that
        holds the locks. So this method takes no lock.
        """
        self._abandoned.append((spans, extents))

    def _adopt(self) -> None:
        while self._abandoned:
            spans, extents = self._abandoned.popleft()
            for extent in extents:
                self._store.files.release(extent.file, len(extent))
            self._line.put_back(spans)

    def _commit(self, group: list[Transaction]) -> None:
        with self._commit_lock:
            self._commit_group(group)
            if self._store.is_wasteful(self._log_size, self._count_live):
                self._rewrite_log()

    def _commit_group(self, group: list[Transaction], *, reclaimed: bool = False) -> None:
        if not self._is_usable:
            for transaction in group:
                transaction.finish(self._store.closed())
            return
        if self._was_reset:
            group = self._without_reset(group)
            if not group:
                return
        try:
            self._write_group(group)
        except NoSpace as error:
            if len(group) > 1:
                # The group as a whole did not fit on the disk. Commit each transaction alone: a
                # transaction that only takes items may use the log's reserve.
                for transaction in group:
                    self._commit_group([transaction])
            elif not reclaimed and self._reclaim():
                self._commit_group(group, reclaimed=True)
            else:
                group[0].finish(error)
        except BaseException as error:
            self._store.failure = error
            for transaction in group:
                transaction.finish(self._store.closed())
            if not isinstance(error, STOPPING):
                raise

    def _without_reset(self, group: list[Transaction]) -> list[Transaction]:
        """Refuse the transactions whose items a reset has deleted; return the others."""
        others: list[Transaction] = []
        for transaction in group:
            if self._line.taken.issuperset(transaction.taken):
                others.append(transaction)
                continue
            transaction.finish(
                Closed(
                    f"the queue at {self.path} was reset while this session held items of it; "
                    f"nothing was committed: roll the session back, then go on"
                )
            )
        return others

    def _write_group(self, group: list[Transaction]) -> None:
        body = Body()
        number = self._next_item
        # Items that this group adds, in the order of their numbers. Offsets of items in the log are
        # counted from the transaction's body, whose own offset is not known yet.
        put: list[Placed] = []
        files: set[DataFile] = set()
        taken: list[Span] = []
        small = _NONE
        for transaction in group:
            if transaction.extents:
                number = _put_inline(body, put, number, small)
                small = _NONE
            for extent in transaction.extents:
                body.put(number, extent.file.number, extent.offset, extent.table)
                put.append((number, extent.file, extent.offset, extent.table))
                files.add(extent.file)
                number += len(extent)
            small = small.joined(transaction.inline) if small.count else transaction.inline
            taken += transaction.taken
        number = _put_inline(body, put, number, small)
        if taken:
            body.take((span.number, len(span)) for span in taken)
        only_takes, delayed = number == self._next_item, self._delayed
        base = self._store.append(body, files, only_takes=only_takes, delayed=delayed)
        if delayed:
            self._delay.soon()
        with self._lock:
            for first, file, offset, table in put:
                if file is None:
                    self._line.append(Run(first, self._store.log, extents_of(table, base + offset)))
                else:
                    self._line.append(Run(first, file, extents_of(table, offset)))
            self._next_item = number
            if taken:
                self._line.taken.difference_update(taken)
                self._store.release(taken)
        for transaction in group:
            transaction.finish(None)
        self._store.discard_drained()

    def reclaim(self) -> bool:
        """Free disk space that the queue does not need; return whether there was any."""
        with self._commit_lock:
            return self._reclaim()

    def _reclaim(self) -> bool:
        if not self._is_usable:
            return False
        self._store.files.retire_current()
        before = len(self._store.files.existing())
        self._store.sync()
        self._store.discard_drained()
        if len(self._store.files.existing()) < before:
            return True
        size = self._store.log.allocated
        self._rewrite_log()
        return self._store.log.allocated < size

    def _sync_in_time(self) -> None:
        with self._commit_lock:
            if self.is_open:
                self._store.sync()

    def close(self) -> None:
        """Sync, shorten a long log, and release the lock; open sessions are rolled back."""
        if self._forks != lineage.forks:
            self.is_open = False
            return
        if not self.is_open:
            with self._lock:
                self._store.close(None)  # files left open if an earlier close() was interrupted
            return
        with self._commit_lock:
            try:
                self._store.sync(closing=True)
                if self._store.is_wasteful(self._log_size // _CLOSING_SHARE, self._count_live):
                    self._rewrite_log()
            finally:
                self.is_open = False
                self._delay.stop()
                # Sessions read items with this lock held, so no file is closed during a read.
                with self._lock:
                    live = {span.run.source for span in (*self._line, *self._line.taken)}
                    self._store.close({f.number for f in live if isinstance(f, DataFile)})
        if self._store.failure is not None:
            raise self._store.closed()

    def _count_live(self) -> int:
        """Return the number of items that the queue holds, also those that sessions have taken."""
        with self._lock:
            self._adopt()
            return self._line.count + sum(map(len, self._line.taken))

    def _rewrite_log(self) -> None:
        """Replace the log by a shorter one."""
        with self._lock:
            self._adopt()
            # Copy the spans: sessions take items, and give items back, while the log is written.
            live = sorted(map(copy, (*self._line, *self._line.taken)), key=by_number)
        self._store.rewrite(live, self._next_item, self._move)

    def _move(self, moved: Moved) -> None:
        with self._lock:
            for run, where in moved.items():
                run.source, run.extents = where


class _Delay:
    """Runs `sync` in a thread, within `seconds` of each call of :meth:`soon`."""

    def __init__(self, seconds: float, sync: Callable[[], None]) -> None:
        self._seconds = seconds
        self._sync = sync
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def soon(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="shmring-durable", daemon=True)
            self._thread.start()
        self._wake.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.wait()
            self._stop.wait(self._seconds)
            self._wake.clear()
            self._sync()

    def stop(self) -> None:
        self._stop.set()
        self._wake.set()


def _put_inline(body: Body, put: list[Placed], number: int, items: Packing) -> int:
    """Add small items to a transaction's body; return the number after the last item."""
    if items.count:
        put.append((number, None, body.put_inline(number, items.parts, items.table), items.table))
    return number + items.count
