"""The journal's directory as one log: append, sync, forget.  The format is in segments.py."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
import time
from dataclasses import dataclass

from shmring.durable.base.files import Buffer, Disk, File
from shmring.durable.journal.segments import (
    FORMAT,
    Segment,
    encode_record,
    encode_segment,
    next_record,
    open_segment,
    segment_names,
    segment_path,
    walk,
    was_begun,
)
from shmring.errors import Damaged

_LOG = logging.getLogger("shmring.durable")


_SHARES = 8  # of the space: so many segments fit into it, or so many of the largest records
_LEAST_SHARE = 64 << 10  # bytes

# A jump of the wall clock that is logged; a smaller one may be a leap second, or an adjustment.
_JUMP_NS = 10 * 10**9


class _Clock:
    """The journal's own time, by which its segments age: the time of its last record, plus the time
    that has passed since, also while the machine slept. The wall clock may jump either way. So
    records have this time too: a journal that starts again continues from there.
    """

    def __init__(self) -> None:
        self._began = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        self._wall = time.time_ns()
        self.start = self._wall

    def now(self) -> int:
        return self.start + time.clock_gettime_ns(time.CLOCK_BOOTTIME) - self._began

    def jumped(self) -> int:
        """The nanoseconds by which the wall clock has jumped since the last call; 0 for a few."""
        passed = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - self._began
        jump = time.time_ns() - self._wall - passed
        if abs(jump) < _JUMP_NS:
            return 0
        self._wall += jump
        return jump


@dataclass(slots=True)
class _Kept:
    """A segment that is complete."""

    path: str
    end: int
    nbytes: int
    ended_ns: int


class JournalLog:
    """The log, opened for appending; one process at a time.

    Parameters
    ----------
    uuid, schema : those of the ring that is written from now on
    segment_bytes : a segment is complete at this size, or at `share`

    Attributes
    ----------
    end : sequence behind the last record; 0 if there is none
    durable : everything below this sequence is on disk
    torn : text about what opening cut off
    same_ring : whether the last segment was written for this ring
    share : part of the space that the log has or may get, in bytes, when the last segment was
        begun: a larger segment could never be forgotten, and a larger record not be written
    """

    def __init__(
        self, disk: Disk, directory: str, *, uuid: bytes, schema: bytes, segment_bytes: int
    ) -> None:
        self.directory = directory
        self.end = self.durable = 0
        self.torn: str | None = None
        self.same_ring = True
        self._disk = disk
        self._uuid = uuid
        self._schema = schema
        self._segment_bytes = segment_bytes
        # A sync holds this; append() goes on meanwhile, unless it changes files.
        self._sync_lock = threading.Lock()
        self._file: File | None = None
        self._salt = 0
        self._offset = self._records = 0
        self._path = ""
        self._kept: list[_Kept] = []
        self._clock = _Clock()
        self.share = _LEAST_SHARE
        disk.make_directory(directory)
        self._lock = disk.lock(os.path.join(directory, "lock"), f"journal {directory}", 0)
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        names = segment_names(self._disk, self.directory)
        if names and not self._adopt(names[-1]):
            names.pop()
            if names and not self._adopt(names[-1]):
                raise Damaged(
                    f"{segment_path(self.directory, names[-1])}: a segment that had been on disk "
                    f"has no header any more"
                )
        older: list[_Kept] = []
        for first, behind in itertools.pairwise(names):
            path = segment_path(self.directory, first)
            with contextlib.closing(self._disk.open(path, write=False)) as file:
                older.append(_Kept(path, behind, file.size(), 0))
        self._kept[:0] = older
        self._measure()

    def _measure(self) -> None:
        room = self._total() + self._disk.room(self.directory)
        self.share = max(room // _SHARES, _LEAST_SHARE)

    def _total(self) -> int:
        return self._offset + sum(kept.nbytes for kept in self._kept)

    def _adopt(self, first: int) -> bool:
        """Continue after the last good record of the newest segment; False if it has no header."""
        path = segment_path(self.directory, first)
        file = self._disk.open(path)
        try:
            try:
                segment = open_segment(file, path)
            except Damaged:
                if was_begun(file):
                    raise
                self.torn = f"{path}: was being made when the writer died, and was removed"
                self._remove(path)
                return False
            return self._adopt_records(file, segment)
        finally:
            if self._file is not file:
                file.close()

    def _remove(self, path: str) -> None:
        self._disk.remove(path)
        self._disk.sync_directory(self.directory)

    def _adopt_records(self, file: File, segment: Segment) -> bool:
        self.same_ring = segment.uuid == self._uuid
        end, self._offset = segment.first, segment.records
        self._clock.start = segment.created_ns
        for record in walk(file.read, file.size(), segment, last=True):
            end, self._offset = record.end, next_record(record)
            self._clock.start = record.own
        if end == segment.first and not self.same_ring:
            self._remove(segment.path)
            return False
        self.end = end
        if file.size() > self._offset:
            self.torn = (
                f"{segment.path}: {file.size() - self._offset} bytes behind sequence {self.end} "
                f"were written but never known to be on disk, and were cut off"
            )
            file.truncate(self._offset)
        file.sync()
        self.durable = self.end
        self._path = segment.path
        if self.same_ring:
            self._file, self._salt, self._records = file, segment.salt, segment.records
        else:
            self._kept.append(_Kept(segment.path, self.end, self._offset, self._clock.now()))
            self._offset = 0
        return True

    def append(
        self, first: int, end: int, entries: Buffer, slots: list[Buffer], slot_address: int
    ) -> int:
        """Write a record; :meth:`sync` makes it durable.

        Returns
        -------
        bytes written

        Raises
        ------
        NoSpace : nothing was written; the call may be tried again
        """
        if self._file is None or (
            # One without a record is begun already, under the name that a new one would have.
            self._offset > self._records and self._offset >= min(self._segment_bytes, self.share)
        ):
            self._roll(first)
        file = self._file
        assert file is not None
        parts = encode_record(
            self._offset,
            salt=self._salt,
            first=first,
            end=end,
            synced=self.durable,
            entries=entries,
            slots=slots,
            slot_address=slot_address,
            written_ns=self._clock.now(),
        )
        begin, self._offset = self._offset, file.append(parts, self._offset)
        self.end = end
        return self._offset - begin

    def _roll(self, first: int) -> None:
        self.sync()
        path = segment_path(self.directory, first)
        file = self._disk.open(path, create=True)
        try:
            header = encode_segment(self._uuid, first, self._clock.now(), self._schema)
            file.write([header], 0)
            file.sync()
            self._disk.sync_directory(self.directory)
        except OSError:
            file.close()
            self._disk.remove(path)
            raise
        with self._sync_lock:
            if self._file is not None:
                self._file.close()
                self._kept.append(_Kept(self._path, first, self._offset, self._clock.now()))
            self._file, self._path = file, path
            self._offset = self._records = len(header)
            self._salt = FORMAT.salt_of(header)
        self._measure()

    def sync(self) -> None:
        """Return when every record written so far is on disk; any thread may call this."""
        with self._sync_lock:
            end = self.end
            if self._file is not None:
                self._file.sync()
            self._refuse_another_file()
            self.durable = end

    def _refuse_another_file(self) -> None:
        for file in self._lock, self._file:
            if file is not None and not file.has_name():
                raise self._gone(file.path)

    def refuse_other_files(self) -> None:
        """Refuse to go on where the directory does not lead to what was written any more.

        Somebody may have removed the directory or a segment, or have renamed it and made another
        one. Older segments may be removed, the oldest first. To be called by the thread that calls
        :meth:`append` and :meth:`forget`.

        Raises
        ------
        Damaged : the segment that is being written, or one between two others, has gone
        """
        self._refuse_another_file()
        names = set(self._disk.names(self.directory))
        there = [os.path.basename(kept.path) in names for kept in self._kept]
        removed = there.index(True) if True in there else len(there) - (self._file is None)
        if False in there[removed:]:
            raise self._gone(self._kept[there.index(False, removed)].path)
        del self._kept[:removed]

    def _gone(self, path: str) -> Damaged:
        return Damaged(
            f"the journal {self.directory} has stopped, as {path} was removed or replaced while it "
            f"ran: nothing more is acknowledged, and the messages that were not wait in the ring; "
            f"put the files back, or begin a journal in another directory"
        )

    def forget(self, *, max_bytes: int | None, max_age: float | None, consumed: int | None) -> None:
        """Remove the oldest segments as :class:`Retention` says; never the newest.

        Ages count in the journal's own time, see `_Clock`; a jump of the wall clock ages nothing.
        """
        jump = self._clock.jumped()
        if jump and max_age is not None:
            _LOG.warning(
                "journal %s: the system's clock has jumped by %.0f s; max_age counts the time that"
                " has really passed, so the jump removes no segment",
                self.directory,
                jump / 1e9,
            )
        total = self._total()
        while len(self._kept) > (self._file is None):
            oldest = self._kept[0]
            if consumed is not None and oldest.end > consumed:
                return
            aged = self._clock.now() - self._ended_ns()
            if not (
                (max_bytes is None and max_age is None)
                or (max_bytes is not None and total > max_bytes)
                or (max_age is not None and aged > max_age * 1e9)
            ):
                return
            self._disk.remove(oldest.path)
            # One at a time: after a crash, an older segment must not be there without the next one.
            self._disk.sync_directory(self.directory)
            total -= oldest.nbytes
            del self._kept[0]

    def _ended_ns(self) -> int:
        """The time when the second oldest segment was begun; read from its header once."""
        oldest = self._kept[0]
        if not oldest.ended_ns:
            behind = self._kept[1].path if len(self._kept) > 1 else self._path
            with contextlib.closing(self._disk.open(behind, write=False)) as file:
                oldest.ended_ns = open_segment(file, behind).created_ns
        return oldest.ended_ns

    def close(self) -> None:
        """Give files and lock back; a second call does nothing."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._lock.release()
