"""The journal's directory: segments of records, each record a copy of some slots of the ring.

A segment is a file of frames (base/frames.py), named by its first sequence, ``%020d.journal``.  A
record is a frame; its numbers are sequences, and its payload is the slots, 300 bytes each::

    file header, fields of the journal        frame header, fields of the journal
    24 16  uuid of the ring                   56  8  time of writing
    40  8  sequence of its first record
    48  8  time of creation                   entry of the table, 20 bytes: a message
    56  4  bytes of a slot, 300                0  8  time of the message, ns
    60  4  1 if the messages before it         8  4  its first slot in this record
           were known to be lost              12  4  its length
    64  .  the ring's Arrow schema
           (an IPC message)
                                              16  1  its kind
                                              17  1  where it begins in its slot
                                              18  2  zero

The times of creation and of writing come from the journal's own clock: the time when the journal
began, in ns since 1970, plus the time for which it has run.

All records begin at multiples of 64.  Modulo 64, a payload's offset in the file equals its first
slot's offset in the ring: data that was aligned in the ring is aligned in the file.

A segment is synced as a whole before the next one is made, and its header before its first
record.  So only the newest segment can be torn; an unreadable part of any other one is damage.

A segment begins at the sequence at which the segment before it ends, even if its first record comes
after an aborted claim. If a segment begins later, messages are missing: another segment was
removed or cut, or (with 1 at byte 60) the journal was told to go on behind lost messages.
"""

from __future__ import annotations

import contextlib
import logging
import os
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

from shmring._shmring import SLOT_BYTES, crc32c
from shmring.durable.base.files import Buffer, Disk, File
from shmring.durable.base.frames import (
    HEADER_BYTES,
    FileFormat,
    FileHeader,
    Frame,
    offsets_of_frames,
)
from shmring.errors import Damaged, JournalGap
from shmring.ring.names import command_line

_LOG = logging.getLogger("shmring.durable")
# A segment, or a record, takes at most 1/8 of the disk space, so that removing old segments makes
# room for a new one.
_SHARES = 8
_LEAST_SHARE = 64 << 10  # bytes: minimum of `share`, even on an almost full disk

# Smallest jump of the wall clock that is logged; a smaller one may be a leap second or adjustment.
_JUMP_NS = 10 * 10**9

SUFFIX = ".journal"
ENTRY = struct.Struct("<QIIBB2x")
_ALIGN = 64
# CHANGE: edit this for a new option of a journal
FORMAT = FileFormat(
    b"SHMRJNL1", 1, "<16sQQII", "journal segment", entry_bytes=ENTRY.size, align=_ALIGN
)


def segment_path(directory: str, first: int) -> str:
    return os.path.join(directory, f"{first:020d}{SUFFIX}")


def segment_names(disk: Disk, directory: str) -> list[int]:
    """Return the first sequences of the segments in a directory, in order."""
    stems = (name.removesuffix(SUFFIX) for name in disk.names(directory) if name.endswith(SUFFIX))
    return sorted(int(stem) for stem in stems if len(stem) == 20 and stem.isdecimal())


def encode_segment(
    uuid: bytes, first: int, created_ns: int, schema: bytes, *, after_gap: bool = False
) -> bytes:
    """Return the beginning of a segment, up to its first record."""
    data = FORMAT.encode_header(uuid, first, created_ns, SLOT_BYTES, after_gap, extra=schema)
    return data.ljust(FORMAT.next_offset(len(data)), b"\0")


def was_begun(file: File) -> bool:
    """Return whether a segment with an unreadable header has records.

    If it has, the header is damaged: a header is synced before the first record is written, so a
    crash can have torn the header only in a segment without a record.
    """
    return any(offset % _ALIGN == 0 for offset in offsets_of_frames(file.read, 0, file.size()))


def check_joint(directory: str, end: int, first: int, *, allow_gap: bool) -> None:
    """Raise JournalGap if messages between segments are missing, Damaged if segments overlap."""
    if first < end:
        raise Damaged(
            f"{segment_path(directory, first)} overlaps the segment before it, which ends at "
            f"sequence {end}"
        )
    if first > end and not allow_gap:
        raise JournalGap(
            f"{directory} lacks the sequences {end} to {first - 1}: a segment was removed or cut, "
            f"or a journal went on behind lost messages; put the file back, or go on without them "
            f"by allow_gap=True"
        )


class NotBegun(Damaged):
    """The newest segment has no header yet, and so no records."""


class Segment:
    """An open segment; its mapped memory stays valid when the journal forgets the segment.

    Raise NotBegun if the newest segment is being made, or its writer died while making it; Damaged
    if the file is not a segment, does not match its checksum, or has another segment's name;
    VersionMismatch if another version wrote it.
    """

    def __init__(self, disk: Disk, path: str, *, last: bool = False, write: bool = False) -> None:
        self.path = path
        self._last = last  # whether the segment is the newest one, whose end may be torn
        self.file = disk.open(path, write=write)
        self._map = memoryview(b"")
        try:
            header = self._header()
        except BaseException:
            self.close()
            raise
        # `after_gap` is true if the messages before the segment were known to be lost.
        self.uuid, self.first, self.created_ns, _, self.after_gap = header.fields
        self.schema, self.salt = header.extra, header.salt
        # Offsets in the file where the last record found ends, and where the records begin.
        self.offset = self.records = FORMAT.next_offset(HEADER_BYTES + len(header.extra))
        self.end: int = self.first  # sequence after the last record found

    def _header(self) -> FileHeader:
        header = self._readable_header()
        named = segment_path(os.path.dirname(self.path), header.fields[1])
        if named != self.path:
            taken = ", once the file of this name is elsewhere" if os.path.lexists(named) else ""
            raise Damaged(
                f"{self.path} is the segment that begins at sequence {header.fields[1]}: rename it "
                f"to {os.path.basename(named)}{taken}"
            )
        return header

    def _readable_header(self) -> FileHeader:
        try:
            return FORMAT.decode_header(self.file.read, self.path)
        except Damaged as error:
            if self._last and not was_begun(self.file):
                raise NotBegun(*error.args) from None
        # Read the header once more: a running journal may have written it after the first attempt.
        return FORMAT.decode_header(self.file.read, self.path)

    def close(self) -> None:
        self.file.close()

    def read_mapped(self, nbytes: int, offset: int) -> memoryview:
        """Return the bytes without a copy."""
        if offset + nbytes > len(self._map):
            self._map = self.file.map()
        return self._map[offset : offset + nbytes]

    @property
    def _truncate(self) -> str:
        """The command that cuts the journal off where it is damaged."""
        return command_line("journal truncate", os.path.dirname(self.path))

    def find_end(self) -> int:
        """Return the sequence after the last record, without reading the other records.

        Raise Damaged if the file does not end with a record.
        """
        size = self.file.size()
        if size == self.records:
            return self.first
        last = FORMAT.last_frame(self.file.read, self.records, size, self.salt)
        if last is None:
            raise Damaged(
                f"{self.path}: the last record is damaged; `{self._truncate}` cuts the journal "
                f"there and keeps a copy"
            )
        return last.end

    def walk(self, *, mapped: bool = False) -> Iterator[Frame]:
        """Yield the records in order, once.

        Raise Damaged if data that had been on disk is unreadable; the text says where.
        """
        # Read the newest segment instead of mapping it: the next writer may cut off a torn end, and
        # mapped memory beyond a file's end must not be touched.
        read = self.read_mapped if mapped and not self._last else self.file.read
        size = self.file.size()
        for record in FORMAT.walk(read, self.offset, size, self.salt, self.first):
            self.offset, self.end = FORMAT.next_offset(record.payload_end), record.end
            yield record
        if self.offset < size and (
            not self._last or FORMAT.find_witness(read, self.offset + 1, size, self.salt, self.end)
        ):
            raise Damaged(
                f"{self.path}: the record at byte {self.offset} (sequence {self.end}) is damaged; "
                f"`{self._truncate}` cuts the journal there and keeps a copy"
            )


class _Clock:
    """The journal's own time, by which its segments age.

    The time goes on while the machine sleeps, and ignores jumps of the wall clock. Every record
    stores the time: a journal that starts again continues from the time of the last record.
    """

    def __init__(self) -> None:
        self._began = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        self._wall = time.time_ns()
        self.start = self._wall

    def now(self) -> int:
        return self.start + time.clock_gettime_ns(time.CLOCK_BOOTTIME) - self._began

    def jumped(self) -> int:
        """Return how far the wall clock has jumped, in nanoseconds; 0 if less than 10 s.

        A jump is returned once. Smaller changes add up until they are a jump of 10 s.
        """
        passed = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - self._began
        jump = time.time_ns() - self._wall - passed
        if abs(jump) < _JUMP_NS:
            return 0
        self._wall += jump
        return jump


# CHANGE: edit this for a new option of a journal
@dataclass(slots=True)
class _Kept:
    """A complete segment that has not been forgotten yet."""

    path: str
    end: int
    nbytes: int
    ended_ns: int


class JournalLog:
    """The log, opened for appending; only one process at a time can open it.

    Raise Locked if another process writes to the directory; Damaged or JournalGap if the segments
    are no complete journal. With `allow_gap`, messages between two segments may be missing.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        *,
        uuid: bytes,
        schema: bytes,
        segment_bytes: int,
        allow_gap: bool = False,
    ) -> None:
        self.directory = directory
        self.end = 0  # sequence after the last record; 0 without a record
        self.durable = 0  # sequence below which everything is on disk
        self.torn: str | None = None  # text about the torn end that opening cut off
        self.same_ring = True  # whether the last segment was written for this ring
        self._disk = disk
        self._uuid = uuid  # uuid of the ring whose messages are written from now on
        self._schema = schema
        self._segment_bytes = segment_bytes  # size of a complete segment, unless `share` is less
        self._after_gap = False  # True if the next segment begins after lost messages
        # Held during a sync. append() takes this lock only to change to a new file, so records can
        # be written during a sync.
        self._sync_lock = threading.Lock()
        self._file: File | None = None
        self._salt = 0
        self._offset = self._records = 0
        self._path = ""
        self._kept: list[_Kept] = []
        self._clock = _Clock()
        # Maximum bytes of a segment and of a record: an eighth of the space that the log had or
        # could get when the last segment was begun. A larger segment could never be forgotten, and
        # a larger record could not be written.
        self.share = _LEAST_SHARE
        disk.make_directory(directory)
        self._lock = disk.lock(os.path.join(directory, "lock"), f"journal {directory}", 0)
        try:
            self._open(allow_gap=allow_gap)
        except BaseException:
            self.close()
            raise

    def _open(self, *, allow_gap: bool) -> None:
        names = segment_names(self._disk, self.directory)
        if names and not self._adopt(names[-1]):
            names.pop()
            if names and not self._adopt(names[-1]):
                raise Damaged(
                    f"{segment_path(self.directory, names[-1])}: a segment that had been on disk "
                    f"has no header any more"
                )
        older: list[_Kept] = []
        end: int | None = None
        for first in names:
            path = segment_path(self.directory, first)
            with contextlib.closing(Segment(self._disk, path)) as segment:
                if end is not None:
                    known = allow_gap or bool(segment.after_gap)
                    check_joint(self.directory, end, first, allow_gap=known)
                if first != names[-1]:  # _adopt() has read the newest segment already
                    end = segment.find_end()
                    older.append(_Kept(path, end, segment.file.size(), 0))
        self._kept[:0] = older
        self._measure()

    def _measure(self) -> None:
        room = self._total() + self._disk.room(self.directory)
        self.share = max(room // _SHARES, _LEAST_SHARE)

    def _total(self) -> int:
        return self._offset + sum(kept.nbytes for kept in self._kept)

    def _adopt(self, first: int) -> bool:
        """Continue after the last good record of the newest segment; True on success.

        Return False if the segment was removed instead: it has no header, or it has no record and
        was written for another ring.
        """
        path = segment_path(self.directory, first)
        try:
            segment = Segment(self._disk, path, last=True, write=True)
        except NotBegun:
            self.torn = f"{path}: was being made when the writer died, and was removed"
            self._remove(path)
            return False
        try:
            return self._adopt_records(segment)
        finally:
            if self._file is not segment.file:
                segment.close()

    def _remove(self, path: str) -> None:
        self._disk.remove(path)
        self._disk.sync_directory(self.directory)

    def _adopt_records(self, segment: Segment) -> bool:
        file = segment.file
        self.same_ring = segment.uuid == self._uuid
        self._clock.start = segment.created_ns
        for record in segment.walk():
            self._clock.start = record.own
        if segment.end == segment.first and not self.same_ring:
            self._remove(segment.path)
            return False
        self.end, self._offset = segment.end, segment.offset
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

    def skip_to(self, sequence: int) -> None:
        """Go on at a later sequence; the messages before it are lost."""
        self.end = self.durable = sequence
        self._after_gap = True

    # CHANGE: edit this for a new option of a journal
    def append(
        self, first: int, end: int, entries: Buffer, slots: list[Buffer], slot_address: int
    ) -> int:
        """Write a record, and return its number of bytes; :meth:`sync` makes the record durable.

        Raise NoSpace if nothing was written; the call may be tried again.

        Parameters
        ----------
        entries : packed ENTRY of each message
        slots : payload in one piece or several; it is not copied
        slot_address : address of the first slot in its ring, in bytes
        """
        if (
            self._file is None
            or self._after_gap
            # Append to a segment without a record, whatever its size: a segment is named by its
            # first sequence, so a new one would get the same name.
            or self._records < self._offset >= min(self._segment_bytes, self.share)
        ):
            self._roll(self.end or first)
        file = self._file
        assert file is not None
        offset = self._offset
        behind = offset + HEADER_BYTES + len(entries)
        payload = behind + (slot_address - behind) % _ALIGN
        payload_bytes = sum(map(len, slots))
        payload_crc = 0
        for piece in slots:
            payload_crc = crc32c(piece, payload_crc)
        frame = Frame(
            offset,
            first,
            end,
            self.durable,
            payload_bytes,
            payload_crc,
            entries=len(entries) // ENTRY.size,
            payload_offset=payload - offset,
            own=self._clock.now(),
            table=entries,
        )
        rest = -(payload + payload_bytes) % _ALIGN  # bytes up to the offset of the next record
        parts = [frame.encode(self._salt), entries, bytes(payload - behind), *slots, bytes(rest)]
        self._offset = file.append(parts, offset)
        self.end = end
        return self._offset - offset

    def _roll(self, first: int) -> None:
        self.sync()
        path = segment_path(self.directory, first)
        file = self._disk.open(path, create=True)
        try:
            header = encode_segment(
                self._uuid, first, self._clock.now(), self._schema, after_gap=self._after_gap
            )
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
            self._after_gap = False
        self._measure()

    def sync(self) -> None:
        """Wait until all records written so far are on disk; any thread may call this method.

        Raise Damaged if the journal's file or its lock file was removed or replaced.
        """
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
        """Raise Damaged if the directory no longer has the segments that were written.

        A user may have removed or renamed the directory or a segment, and made a new one in its
        place. The oldest segments may be missing, but no segment after one that is still there.
        Only the thread that calls :meth:`append` and :meth:`forget` may call this.
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

    # CHANGE: edit this for a new option of a journal
    def forget(self, *, max_bytes: int | None, max_age: float | None, consumed: int | None) -> None:
        """Remove the oldest segments by the rules of :class:`Retention`; never the newest.

        Ages count in the journal's own time (see `_Clock`), which a jump of the wall clock does not
        change.
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
            # Sync after each removal: a crash must not leave an older segment without the next one.
            self._disk.sync_directory(self.directory)
            total -= oldest.nbytes
            del self._kept[0]

    def _ended_ns(self) -> int:
        """Return the time at which the oldest segment ended.

        A segment ends when the next one begins. If the time is not known yet, it is read from the
        header of the next segment.
        """
        oldest = self._kept[0]
        if not oldest.ended_ns:
            behind = self._kept[1].path if len(self._kept) > 1 else self._path
            with contextlib.closing(Segment(self._disk, behind)) as segment:
                oldest.ended_ns = segment.created_ns
        return oldest.ended_ns

    def close(self) -> None:
        """Close the files and release the lock; a second call does nothing."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._lock.release()
