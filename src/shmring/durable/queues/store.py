"""The files behind a persistent queue: written, synced, and shortened to the living items."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from itertools import groupby
from typing import NamedTuple

from shmring._shmring import places_of, runs_of
from shmring.durable.base.files import Buffer, Disk, LockFile, check_names, replace_file
from shmring.durable.base.items import PLACE, TABLE_ENTRY_BYTES
from shmring.durable.queues.data_files import DataFile, DataFiles
from shmring.durable.queues.line import Run, Span
from shmring.durable.queues.transaction_log import Body, TransactionLog
from shmring.errors import Closed, Damaged, NoSpace, PermissionRefused

# What stops a queue and is told by Closed; other errors are raised too.
STOPPING = (OSError, Damaged)


class _Moved(NamedTuple):
    """A run that stood in the log, and the new places of its living items."""

    run: Run
    file: DataFile
    places: bytearray
    items: int


class Store:
    """The log and the data files of an open queue, written by one thread at a time.

    Parameters
    ----------
    owner : the lock of the queue in the directory `path`
    delayed : whether an append leaves the sync to :meth:`sync`

    Attributes
    ----------
    log : the present log
    failure : what stopped the queue; None while it runs
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
        self.log = log
        self.failure: BaseException | None = None
        self._disk = disk
        self._path = path
        self._owner = owner
        self._files = files
        self.delayed = delayed
        self._unsynced: set[DataFile] = set()
        self._rewritten_size = 0

    def closed(self) -> Closed:
        """Return the error of a queue that was closed, or has stopped."""
        if self.failure is None:
            return Closed(f"the queue at {self._path} was closed; open it again")
        closed = Closed(
            f"the queue at {self._path} has stopped ({self.failure}); whether the last flush was "
            f"committed shows when it is opened again"
        )
        closed.__cause__ = self.failure
        return closed

    @contextmanager
    def _writing(self) -> Generator[None]:
        """Keep an error of this block for :meth:`closed`, unless nothing was written."""
        try:
            yield
        except (NoSpace, PermissionRefused):
            raise
        except BaseException as error:
            self.failure = error
            if not isinstance(error, STOPPING):
                raise

    def _check_names(self) -> None:
        """Refuse to go on where a second owner may have come in, or what is written has no name."""
        check_names(self._owner, self.log.file)

    def append(self, body: Body, files: set[DataFile], *, only_takes: bool, delayed: bool) -> int:
        """Write one transaction, whose items are in these files; return where its body stands."""
        self._check_names()
        if files and not delayed:
            self._files.sync(files)
        base = self.log.append(body, deferred=delayed, may_use_reserve=only_takes)
        if delayed:
            self._unsynced |= files
        else:
            self.log.sync()
            self._check_names()
        return base

    def take(self, body: Body) -> None:
        """Write a transaction that only takes items, and sync it."""
        with self._writing():
            self.append(body, set(), only_takes=True, delayed=False)
        if self.failure is not None:
            raise self.closed()

    def discard_drained(self) -> None:
        """Delete the files of which no item is needed, unless a sync has to come first."""
        if not self.delayed and (drained := self._files.drained()):
            self._files.discard_drained(drained)

    def release(self, spans: Iterable[Span]) -> None:
        """Give up the places of items that have left the queue."""
        for span in spans:
            if isinstance(span.run.source, DataFile):
                self._files.release(span.run.source, len(span))

    def sync(self, *, closing: bool = False) -> None:
        """Return when every transaction is on disk."""
        if self.failure is not None or not self.delayed:
            return
        try:
            with self._writing():
                self._check_names()
                self._files.sync(self._unsynced)
                self._unsynced.clear()
                self.log.sync()
                self._check_names()
                drained = self._files.drained()
                if drained or (closing and self.log.unchecked):
                    # Without its files a transaction cannot be checked any more: first sync the
                    # transactions, so that they need no check.
                    self.log.witness()
                    self._files.discard_drained(drained)
        except NoSpace:
            # The reserve is used up: the files stay until the log is rewritten.
            return

    def is_long(self, size: int, live: int) -> bool:
        """Whether a log beyond this size would get much shorter, with so many items living."""
        end = self.log.end
        # A queue full of holes needs more than this estimate; the last condition avoids a rewrite
        # at every flush.
        return (
            self.failure is None
            and end > size
            and end > 2 * (120 + 8 * live)
            and end - self._rewritten_size > size // 2
        )

    def rewrite(self, live: list[Span], next_item: int, guard: threading.Lock) -> None:
        """Replace the log by one transaction that puts the live items, in one step, durably.

        Items that stand in the log are copied to a data file first. Without space the old log,
        which is only longer than necessary, stays.

        Parameters
        ----------
        live : the items in the queue or taken by sessions, by number
        guard : held while their places change
        """
        moved: list[_Moved] = []

        def make(name: str) -> TransactionLog:
            try:
                for run, spans in groupby(live, key=lambda span: span.run):
                    if run.source is self.log:
                        moved.append(_move(self.log, self._files, run, list(spans)))
                self._files.sync({each.file for each in moved})
                body = _body(live, moved)
                return self.log.write_anew(self._disk, name, body, next_item=next_item)
            except BaseException:
                # Only here: once the rename was tried, the log at the path may need what has moved.
                for each in moved:
                    self._files.release(each.file, each.items)
                raise

        try:
            with self._writing():
                self._check_names()
                self._files.sync(self._unsynced)
                log = replace_file(self._disk, self.log.path, make)
                log.regain_reserve()
                with guard:
                    for run, file, places, _ in moved:
                        run.source, run.places = file, places
                    old, self.log = self.log, log
                old.close()
                self._files.discard_drained(self._files.drained())
        except (NoSpace, PermissionRefused):
            pass
        self._rewritten_size = self.log.end

    def close(self, live: set[int] | None) -> None:
        """Close the files; delete those that are not in `live`, if their items are known gone."""
        try:
            known = self._owner.has_name() and self.failure is None and not self.log.unchecked
            self._files.close(live if known else None)
        finally:
            self.log.close()
            self._owner.release()


class Delay:
    """Syncs in a thread of its own, which begins within `seconds` of :meth:`soon`."""

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


def _move(log: TransactionLog, files: DataFiles, run: Run, spans: list[Span]) -> _Moved:
    """Copy the living items of a run to a data file, in one write."""
    parts: list[Buffer] = []
    tables: list[bytes] = []
    for span in spans:
        for offset, end, table in runs_of(run.places, span.begin, span.end):
            parts.append(log.read(end - offset, offset))
            tables.append(table)
    count = sum(map(len, spans))
    file, offset = files.write(parts, count)
    found = places_of(b"".join(tables), offset)
    places = bytearray(len(run.places))
    at = 0
    for span in spans:
        nbytes = len(span) * PLACE.size
        places[span.begin * PLACE.size : span.end * PLACE.size] = found[at : at + nbytes]
        at += nbytes
    return _Moved(run, file, places, count)


def _body(live: list[Span], moved: list[_Moved]) -> Body:
    body = Body()
    new = {id(each.run): each for each in moved}
    for span in live:
        run = span.run
        where = new.get(id(run))
        file = where.file if where is not None else run.source
        assert isinstance(file, DataFile)
        number = span.number
        places = where.places if where is not None else run.places
        for offset, _, table in runs_of(places, span.begin, span.end):
            body.put(number, file.number, offset, table)
            number += len(table) // TABLE_ENTRY_BYTES
    return body
