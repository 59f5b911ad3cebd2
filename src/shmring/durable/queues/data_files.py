"""The data files of the persistent queue: items one after the other, and nothing else.

``data.0000000001`` and so on.  The transaction log has the place and the checksum of each item.
Writes only append to a file.  The write that takes a file to the maximum or beyond is its last, and
the file is deleted when none of its items is in the queue any more.  Bytes that no committed
transaction names are ignored.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager, suppress

from shmring.durable.base.files import Buffer, Disk, File, check_names, set_aside
from shmring.errors import Damaged, PermissionRefused

_PREFIX = "data."
_BROKEN = ".broken"
_OPEN_FILES = 64


class DataFile:
    """One data file; opened when it is needed."""

    def __init__(self, disk: Disk, directory: str, number: int) -> None:
        self.number = number
        self.path = os.path.join(directory, f"{_PREFIX}{number:010d}")
        self.end = 0
        # Items that are in the queue, taken by a session, or written but not committed yet.
        self.references = 0
        self.keep_broken = False
        self._disk = disk
        self._lock = threading.Lock()
        self._handle: File | None = None
        self._users = 0
        # A count, not a flag: a write that ends while a sync runs must not count as synced.
        self._writes = 0
        self._synced = 0
        self._failure: Damaged | OSError | None = None

    @contextmanager
    def _open(self) -> Generator[File]:
        with self._lock:
            if self._handle is None:
                self._handle = self._disk.open(self.path)
            handle = self._handle
            self._users += 1
        try:
            yield handle
        finally:
            with self._lock:
                self._users -= 1

    def create(self) -> None:
        """Make the file; its name is not durable yet."""
        self._handle = self._disk.open(self.path, create=True)

    def size(self) -> int:
        with self._open() as file:
            return file.size()

    def read(self, nbytes: int, offset: int) -> bytes:
        """Return the bytes; fewer than asked for only at the end of the file."""
        with self._open() as file:
            return file.read(nbytes, offset)

    def write(self, parts: Sequence[Buffer], offset: int) -> None:
        """Write into the part of the file that was given to the caller."""
        with self._open() as file:
            file.write(parts, offset)
            with self._lock:
                self._writes += 1

    def sync(self) -> None:
        """Return when everything written so far is on disk."""
        with self._lock:
            writes = self._writes
            if writes == self._synced:
                return
        try:
            if self._failure is None:
                with self._open() as file:
                    file.sync()
                    check_names(file)
        except (Damaged, OSError) as error:
            # The kernel reports a failed write only once; the next sync would seem to succeed.
            self._failure = error
        if self._failure is not None:
            raise type(self._failure)(*self._failure.args)
        with self._lock:
            self._synced = max(self._synced, writes)

    def sync_ahead(self) -> None:
        """Sync in the background; a failure shows at the next :meth:`sync`."""

        def work() -> None:
            with suppress(Damaged, OSError):
                self.sync()

        threading.Thread(target=work, name="shmring-sync", daemon=True).start()

    def force_sync(self) -> None:
        """Sync what a process before this one may have left unsynced."""
        with self._open() as file:
            file.sync()

    def truncate(self, nbytes: int) -> None:
        """Take back bytes at the end that nobody uses."""
        with self._open() as file:
            file.truncate(nbytes)

    def close(self) -> bool:
        """Close the file, synced; return False if another thread is using it."""
        self.sync()
        with self._lock:
            if self._users or self._writes != self._synced:
                return False
            if self._handle is not None:
                self._handle.close()
                self._handle = None
        return True

    def discard(self) -> None:
        """Remove the file, or put it aside if it holds damaged items."""
        with self._lock:
            handle = None if self._users else self._handle
            self._handle = None
            self._synced = self._writes
        with suppress(PermissionRefused):  # else the next opening does it
            if self.keep_broken:
                set_aside(self._disk, self.path)
            else:
                self._disk.remove(self.path)
        if handle is not None:  # until then the disk keeps its space
            handle.close()


class DataFiles:
    """All data files of one queue.

    Parameters
    ----------
    maximum : the write that takes a file to this size is its last
    """

    def __init__(self, disk: Disk, directory: str, *, maximum: int) -> None:
        self._disk = disk
        self._directory = directory
        self._maximum = maximum
        self._lock = threading.Lock()
        self._current: DataFile | None = None
        self._files: dict[int, DataFile] = {}
        self._gone: dict[int, DataFile] = {}
        self._drained: list[DataFile] = []
        self._recent: dict[int, DataFile] = {}
        self._next_number = 1
        self._new_names = False
        for name in disk.names(directory):
            number = _number_of(name.removesuffix(_BROKEN))
            if number is None:
                continue
            self._next_number = max(self._next_number, number + 1)
            if not name.endswith(_BROKEN):
                self._files[number] = DataFile(disk, directory, number)

    def numbers(self) -> list[int]:
        """Return the numbers of the existing files."""
        return sorted(self._files)

    def force_sync(self) -> None:
        """Sync what a process before this one may have left unsynced."""
        for file in self._files.values():
            file.force_sync()
        self._disk.sync_directory(self._directory)

    def sync(self, files: Iterable[DataFile]) -> None:
        """Return when these files, and the names of all files, are on disk."""
        for file in sorted(files, key=lambda file: file.number):
            file.sync()
        with self._lock:
            new_names, self._new_names = self._new_names, False
        if new_names:
            self._disk.sync_directory(self._directory)

    def find(self, number: int) -> DataFile:
        file = self._files.get(number)
        if file is None:
            raise Damaged(f"{self._directory}: the data file {_PREFIX}{number:010d} is missing")
        return file

    def has(self, file: DataFile) -> bool:
        return self._files.get(file.number) is file

    def expect(self, number: int) -> DataFile:
        """Return the file of this number; it need not exist any more if its items are gone."""
        if number not in self._files and number not in self._gone:
            self._gone[number] = DataFile(self._disk, self._directory, number)
        return self._files.get(number) or self._gone[number]

    def settle(self, *, keep_broken: bool) -> None:
        """Drop the files that recovery has found without references; go on in the last file."""
        self._gone.clear()
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

        Raises
        ------
        NoSpace : nothing was kept
        """
        nbytes = sum(map(len, parts))
        with self._lock:
            file = self._current or self._create()
            offset = file.end
            file.end += nbytes
            file.references += items
            self._current = None if file.end >= self._maximum else file
        try:
            file.write(parts, offset)
        except BaseException:
            self._take_back(file, offset, nbytes, items)
            raise
        self._note_open(file)
        if file.end >= self._maximum and self._disk.parallel:
            # The file is complete, and the commit will have to wait for its sync.
            file.sync_ahead()
        return file, offset

    def _take_back(self, file: DataFile, offset: int, nbytes: int, items: int) -> None:
        with self._lock:
            if file.end == offset + nbytes:
                file.truncate(offset)
                file.end = offset
                if self._current is None:
                    self._current = file
        self.release(file, items)

    def _create(self) -> DataFile:
        file = DataFile(self._disk, self._directory, self._next_number)
        self._next_number += 1
        file.create()
        self._new_names = True
        self._files[file.number] = file
        return file

    def read(self, file: DataFile, nbytes: int, offset: int) -> bytes:
        data = file.read(nbytes, offset)
        if file.number not in self._recent:
            self._note_open(file)
        return data

    def _note_open(self, file: DataFile) -> None:
        # Queues of thousands of files must not use up the process's descriptors.
        with self._lock:
            self._recent[file.number] = file
            if len(self._recent) <= _OPEN_FILES:
                return
            oldest = self._recent.pop(next(iter(self._recent)))
        if not oldest.close():
            with self._lock:
                self._recent[oldest.number] = oldest

    def release(self, file: DataFile, items: int) -> None:
        """Take references away; a file without any is deleted by :meth:`discard_drained`."""
        with self._lock:
            file.references -= items
            if file.references == 0 and file is not self._current:
                self._drained.append(file)

    def retire_current(self) -> None:
        """Complete the file that is being filled, so that it can go if no item in it is needed."""
        with self._lock:
            file = self._current
            if file is not None and file.references == 0:
                self._current = None
                self._drained.append(file)

    def drained(self) -> list[DataFile]:
        """Return the files that may go when the removal of their items is durable."""
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
        file.discard()

    def close(self, live: set[int] | None) -> None:
        """Close all files; delete those that are not in ``live``, unless it is None."""
        for file in list(self._files.values()):
            if live is not None and file.number not in live:
                self._discard(file)
            else:
                with suppress(Damaged, OSError):  # what was committed was synced then
                    file.close()
        self._files.clear()
        self._recent.clear()
        self._current = None


def _number_of(name: str) -> int | None:
    digits = name.removeprefix(_PREFIX)
    return int(digits) if digits != name and digits.isdecimal() else None
