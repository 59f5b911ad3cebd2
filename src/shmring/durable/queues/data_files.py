"""The data files of the persistent queue: items one after the other, and nothing else.

Their names are ``data.0000000001`` and so on.  The transaction log has the extent and the checksum
of each item.
Writes only append to a file.  The write that takes a file to the maximum or beyond is its last, and
the file is deleted when none of its items is in the queue any more.  Bytes that no committed
transaction names are ignored.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from shmring.durable.base.files import Buffer, Disk, File, SyncedAhead, check_names, set_aside
from shmring.errors import Closed, Damaged, PermissionRefused

_PREFIX = "data."
_BROKEN = ".broken"
_OPEN_FILES = 64


class DataFile(SyncedAhead):
    """One data file, which is opened when it is needed.

    `used` is called after each use that may have opened the file.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        number: int,
        used: Callable[[DataFile], None],
        *,
        exists: bool = True,
    ) -> None:
        super().__init__()
        self.number = number
        self.path = os.path.join(directory, f"{_PREFIX}{number:010d}")
        self.exists = exists  # False if a transaction names the file, but the file is gone
        self.end = 0
        # Number of items of this file in the queue, taken by a session, or not committed yet.
        self.references = 0
        self.keep_broken = False
        self._disk = disk
        self._used = used
        self._lock = threading.Lock()
        self._handle: File | None = None
        # Identity of the last write, a new object for each write: a write that ends while a sync
        # runs must not count as synced.
        self._written = self._synced = object()

    def open(self) -> File:
        """Return the open file, which stays open as long as a caller has it."""
        with self._lock:
            if self._handle is None:
                self._handle = self._disk.open(self.path)
            return self._handle

    def create(self) -> None:
        """Make the file; its name is not durable yet."""
        self._handle = self._disk.open(self.path, create=True)

    def size(self) -> int:
        size = self.open().size()
        self._used(self)
        return size

    def read(self, nbytes: int, offset: int) -> bytes:
        """Return the bytes; fewer than asked for only at the end of the file."""
        data = self.open().read(nbytes, offset)
        self._used(self)
        return data

    def write(self, file: File, parts: Sequence[Buffer], offset: int) -> None:
        """Write at an offset reserved for the caller; `file` is the result of :meth:`open`."""
        file.write(parts, offset)
        # Keep the file open for the next sync, also if close() has forgotten it during the write.
        with self._lock:
            self._written = object()
            self._handle = self._handle or file
        self._used(self)

    def _sync(self) -> None:
        written = self._written
        if written is not self._synced:
            file = self.open()
            file.sync()
            check_names(file)
            self._synced = written

    def distrust(self) -> None:
        """Let the next sync cover writes of earlier processes, which may not have synced them."""
        self._written = object()

    def truncate(self, nbytes: int) -> None:
        """Set the file's size: cut off unused bytes, or reserve bytes that a session still writes.

        The next owner of the queue appends after the file's end, and so after the reserved bytes.
        """
        self.open().truncate(nbytes)

    def close(self) -> None:
        """Sync the file, and close it as soon as no other thread is using it.

        After a write that the sync did not cover, the file stays open, so that the next sync gets
        the write's errors.
        """
        if self._handle is not None:
            self.sync()
            with self._lock:
                if self._written is self._synced:
                    self._handle = None

    def discard(self, *, may_be_in_use: bool = False) -> None:
        """Remove a file without items, or put it aside as ``*.broken`` if `keep_broken` is set."""
        with self._sync_lock:  # another thread may be syncing the file ahead
            handle, self._handle = self._handle, None
            self._synced = self._written
        # Close the file now: the disk frees a removed file's space only when the file is closed. A
        # file that may be in use is closed when the last user lets go of it.
        if handle is not None and not may_be_in_use:
            handle.close()
        if self.exists:
            # If the system refuses, leave the file: the next opening of the queue removes it.
            with suppress(PermissionRefused):
                if self.keep_broken:
                    set_aside(self._disk, self.path)
                else:
                    self._disk.remove(self.path)


class DataFiles:
    """All data files of one queue; the write that takes a file to `maximum` bytes is its last."""

    def __init__(self, disk: Disk, directory: str, *, maximum: int) -> None:
        self._disk = disk
        self._directory = directory
        self._maximum = maximum
        self._lock = threading.Lock()
        self._current: DataFile | None = None
        self._files: dict[int, DataFile] = {}
        self._drained: list[DataFile] = []
        self._recent: dict[int, DataFile] = {}
        self._next_number = 1
        self._new_names = False
        self._closed = False
        for name in disk.names(directory):
            number = _number_of(name.removesuffix(_BROKEN))
            if number is None:
                continue
            self._next_number = max(self._next_number, number + 1)
            if not name.endswith(_BROKEN):
                self._files[number] = DataFile(disk, directory, number, self._note_open)

    def existing(self) -> list[DataFile]:
        return [file for file in self._files.values() if file.exists]

    def sync(self, files: Iterable[DataFile]) -> None:
        """Wait until these files, and the names of all files, are on disk."""
        for file in sorted(files, key=lambda file: file.number):
            file.sync()
            self._note_open(file)
        with self._lock:
            new_names, self._new_names = self._new_names, False
        if new_names:
            self._disk.sync_directory(self._directory)

    def expect(self, number: int) -> DataFile:
        """Return the file of this number; it need not exist any more if its items are gone."""
        if number not in self._files:
            self._files[number] = DataFile(
                self._disk, self._directory, number, self._note_open, exists=False
            )
        return self._files[number]

    def settle(self, *, keep_broken: bool) -> None:
        """Prepare for writes after recovery: remove the files that no item in the queue refers to.

        New items are appended to the last of the other files, unless it is complete, or
        `keep_broken` is set.
        """
        for file in list(self._files.values()):
            if file.references == 0:
                file.keep_broken = keep_broken
                self._discard(file)
        if self._files and not keep_broken:
            last = self._files[max(self._files)]
            last.end = last.size()
            if last.end < self._maximum:
                self._current = last

    def write(self, parts: Sequence[Buffer], items: int) -> tuple[DataFile, int]:
        """Append without a sync; return file and offset.  The items count as references now.

        Raise NoSpace if the disk is full; then no item was added. Raise Closed if the queue is
        closed.
        """
        nbytes = sum(map(len, parts))
        with self._lock:
            if self._closed:
                raise Closed(f"the queue at {self._directory} was closed; open it again")
            file = self._current or self._create()
            # Open under the lock: after close(), another process may own the queue and this file.
            opened = file.open()
            offset = file.end
            file.end += nbytes
            file.references += items
            self._current = None if file.end >= self._maximum else file
        try:
            file.write(opened, parts, offset)
        except BaseException:
            self._take_back(file, offset, nbytes, items)
            raise
        if file.end >= self._maximum and self._disk.parallel:
            # Begin the sync of the complete file now: the commit will have to wait for it.
            file.sync_ahead()
        return file, offset

    def _take_back(self, file: DataFile, offset: int, nbytes: int, items: int) -> None:
        with self._lock:
            if file.end == offset + nbytes and not self._closed:
                file.truncate(offset)
                file.end = offset
                if self._current is None:
                    self._current = file
        self.release(file, items)

    def _create(self) -> DataFile:
        file = DataFile(self._disk, self._directory, self._next_number, self._note_open)
        self._next_number += 1
        file.create()
        self._new_names = True
        self._files[file.number] = file
        return file

    def _note_open(self, file: DataFile) -> None:
        # Close the files used least recently: a queue of thousands of files must not use up the
        # process's descriptors.
        if file.number in self._recent:
            return
        with self._lock:
            self._recent[file.number] = file
            if len(self._recent) <= _OPEN_FILES:
                return
            oldest = self._recent.pop(next(iter(self._recent)))
        oldest.close()

    def release(self, file: DataFile, items: int) -> None:
        """Take references away; a file without any is deleted by :meth:`discard_drained`."""
        with self._lock:
            file.references -= items
            if file.references == 0 and file is not self._current:
                self._drained.append(file)

    def retire_current(self) -> None:
        """Stop filling the current file if it has no items, so that it can be deleted."""
        with self._lock:
            file = self._current
            if file is not None and file.references == 0:
                self._current = None
                self._drained.append(file)

    def drained(self) -> list[DataFile]:
        """Return the files that may be deleted once the removal of their items is durable."""
        with self._lock:
            return list(self._drained)

    def discard_drained(self, files: Iterable[DataFile]) -> None:
        """Delete files that :meth:`drained` returned."""
        for file in files:
            self._discard(file)

    def _discard(self, file: DataFile) -> None:
        with self._lock:
            self._files.pop(file.number, None)
            self._recent.pop(file.number, None)
            self._drained = [other for other in self._drained if other is not file]
        file.discard(may_be_in_use=self._closed)  # after close() a session may still be writing

    def close(self, live: set[int] | None, *, owned: bool = True) -> None:
        """Close all files; delete those that are not in ``live``, unless it is None.

        ``owned``: whether the files with these names are still the queue's.
        """
        with self._lock:
            self._closed = True
            self._current = None
        for file in list(self._files.values()):
            if live is not None and file.number not in live:
                self._discard(file)
            else:
                # Ignore errors: committed items were synced before, and the other items are lost
                # with their sessions in any case.
                with suppress(Damaged, OSError):
                    # Grow the file, so that the next owner appends after the bytes that a session
                    # of this process is still writing.
                    if owned and file.end and file.size() < file.end:
                        file.truncate(file.end)
                    file.close()
        self._files.clear()
        self._recent.clear()


def _number_of(name: str) -> int | None:
    digits = name.removeprefix(_PREFIX)
    return int(digits) if digits != name and digits.isdecimal() else None
