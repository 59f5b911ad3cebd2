"""Reading a journal: replay messages and Arrow batches, find damage, restore a ring.

These functions read only the journal's files: the ring that was journalled need not exist, and the
journal may still be running.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from shmring._shmring import KIND_END, SLOT_BYTES
from shmring.common.arguments import ARROW_KINDS, KIND_ARROW_BATCH, integer
from shmring.common.extras import need_pyarrow, read_schema
from shmring.durable.base.files import Disk, LockFile, replace_file, set_aside, write_file
from shmring.durable.base.frames import Frame
from shmring.durable.journal.log import (
    ENTRY,
    NotBegun,
    Segment,
    check_joint,
    segment_names,
    segment_path,
)
from shmring.errors import Damaged, JournalGap, PermissionRefused, RingNotFound, ShmringError
from shmring.ring.names import path_text

if TYPE_CHECKING:
    import pyarrow as pa

    from shmring.ring import Ring


class Message(NamedTuple):
    """One message of a journal; `data` is mapped from the file, not copied.

    `schema` is the Arrow schema of the message's ring, as an IPC message; empty if the ring had
    none.
    """

    message_id: int
    time: int
    kind: int
    data: memoryview
    schema: bytes

    @property
    def is_batch(self) -> bool:
        """Whether the message is an Arrow record batch."""
        return self.kind in ARROW_KINDS

    def batch(self) -> pa.RecordBatch:
        """Return the message's record batch, mapped and not copied.

        Raises
        ------
        Damaged : the message is no readable record batch
        """
        need_pyarrow("a record batch")
        import pyarrow as pa

        from shmring.arrow.batches import decode_batch

        schema = None
        if self.kind == KIND_ARROW_BATCH and self.schema:
            schema = _read_schema(self.schema)
        return decode_batch(
            pa.py_buffer(self.data), schema, ring="journal", message_id=self.message_id
        )


_read_schema = functools.lru_cache(maxsize=16)(read_schema)


@dataclass(slots=True)
class Verified:
    """A summary of a journal, whose messages have the sequences from `first` to `end` - 1.

    The summary has the numbers of segments, records, messages and their bytes, and the times at
    which the oldest and the newest message were published.

    `torn` is the number of bytes after the last valid record. A crash has left these bytes, or a
    journal is still writing them. They may also be a damaged record: the newest record has no
    record after it, so its damage looks the same as a record that a crash cut off.
    """

    first: int = 0
    end: int = 0
    segments: int = 0
    records: int = 0
    messages: int = 0
    nbytes: int = 0
    oldest_ns: int = 0
    newest_ns: int = 0
    torn: int = 0


# CHANGE: edit this for a new option of a journal
def _messages(segment: Segment, record: Frame) -> Iterator[Message]:
    payload = segment.read_mapped(record.payload_bytes, record.payload)
    first, schema = record.first, segment.schema
    for time_ns, slot, length, kind, shift in ENTRY.iter_unpack(record.table):
        begin = slot * SLOT_BYTES + shift
        if begin + length > len(payload):
            raise Damaged(f"{segment.path}: message {first + slot} reaches beyond its record")
        yield Message(first + slot, time_ns, kind, payload[begin : begin + length], schema)


def _segments(
    disk: Disk, path: str, from_: int = 0, *, allow_gap: bool = False
) -> Iterator[Segment]:
    """Yield in order the segments that reach beyond a sequence; sequence 0 yields all segments.

    The caller reads each segment to its end before it takes the next one. Raise RingNotFound if
    there is no journal; NotARing if `path` is a file; JournalGap if the journal begins after the
    sequence, lacks messages between two segments, or deletes old segments faster than the caller
    reads; Damaged if a segment overlaps another one, was renamed, or has an unreadable header.
    """
    reached = from_
    end: int | None = None  # sequence at which the previous segment ended
    while True:
        names = segment_names(disk, path)
        if not names:
            raise _no_journal(disk, path)
        if reached and names[0] > reached:
            raise JournalGap(
                f"{path} begins at sequence {names[0]}: the messages before it, from {reached} on, "
                f"were not journalled or have been forgotten"
            )
        at = max((first for first in names if first <= reached), default=names[0])
        last = at == names[-1]
        try:
            segment = Segment(disk, segment_path(path, at), last=last)
        except FileNotFoundError:
            continue  # the journal has deleted the segment meanwhile
        except NotBegun:
            return
        with contextlib.closing(segment):
            if end is not None:
                check_joint(path, end, at, allow_gap=allow_gap)
            yield segment
            end = segment.end
        if last:
            return
        reached = min(first for first in names if first > at)


def _no_journal(disk: Disk, path: str) -> RingNotFound:
    """Return the error for a path without a journal; it names journals in its subdirectories."""
    if not os.path.isdir(path):
        return RingNotFound(
            f"there is no directory {path}; ring.journal({path!r}) begins a journal"
        )
    deeper: list[str] = []
    for name in sorted(disk.names(path)):
        # Skip a file, and a directory that this user is not allowed to read.
        with contextlib.suppress(ShmringError):
            if segment_names(disk, os.path.join(path, name)):
                deeper.append(name)
    inside = f", but these directories in it do: {', '.join(deeper[:8])}" if deeper else ""
    return RingNotFound(f"{path} holds no journal{inside}; ring.journal({path!r}) begins one")


def _present_end(disk: Disk, path: str) -> int | None:
    """Return the sequence after the journal's last message; None if there is none, or at damage.

    A replay stops at this sequence. Otherwise a replay would never end if its caller pushes the
    messages into the ring that is journalled: the replay would read the pushed messages again.
    """
    names = segment_names(disk, path)
    for first in reversed(names):
        last = first == names[-1]
        try:
            with contextlib.closing(Segment(disk, segment_path(path, first), last=last)) as segment:
                try:
                    return segment.find_end()
                except Damaged:  # the end is torn, or a journal is writing a record there
                    return max((record.end for record in segment.walk()), default=first)
        except NotBegun:
            continue
        except FileNotFoundError:  # the journal has forgotten the segment since it was listed
            return None if segment_names(disk, path) == names else _present_end(disk, path)
        except Damaged:
            return None  # the replay raises the error when it opens this segment
    return None


def replay(
    path: str | os.PathLike[str],
    *,
    from_: int = 0,
    until: int | None = None,
    allow_gap: bool = False,
    disk: Disk | None = None,
) -> Iterator[Message]:
    """Yield the messages of a journal again, in order, with the end markers (kind 2).

    Parameters
    ----------
    path : the journal's directory; a journal may be writing there
    from_ : sequence to begin at; 0 begins with the oldest message that is kept
    until : the sequence before which to stop; None stops behind the last message that the journal
        has when the replay begins; if the journal runs, this message may not be synced yet
    allow_gap : whether to go on after messages that are missing between two segments
    disk : replacement for the calls of the file system; for tests

    Raises
    ------
    RingNotFound : there is no journal
    NotARing : `path` is a file
    JournalGap : the journal does not reach back to `from_`, or messages are missing between two
        segments; all messages before them were yielded
    Damaged : data that had been on disk is unreadable; all messages before it were yielded
    """
    integer("from_", from_)
    disk, where = disk or Disk(), path_text(path)
    until = _present_end(disk, where) if until is None else integer("until", until)
    for segment in _segments(disk, where, from_, allow_gap=allow_gap):
        for record in segment.walk(mapped=True):
            if until is not None and record.first >= until:
                return
            if record.end <= from_:
                continue
            for message in _messages(segment, record):
                if until is not None and message.message_id >= until:
                    return
                if message.message_id >= from_:
                    yield message
        if until is not None and segment.end >= until:
            return


def replay_batches(
    path: str | os.PathLike[str],
    *,
    from_: int = 0,
    until: int | None = None,
    allow_gap: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Yield the Arrow batches of a journal, mapped and not copied; otherwise as replay().

    Raises
    ------
    Damaged : a message is no Arrow batch
    """
    for message in replay(path, from_=from_, until=until, allow_gap=allow_gap):
        if message.kind != KIND_END:
            yield message.batch()


def verify(
    path: str | os.PathLike[str], *, allow_gap: bool = False, disk: Disk | None = None
) -> Verified:
    """Read the whole journal and compare it with its checksums.

    Parameters
    ----------
    path : the journal's directory
    allow_gap : whether to read on after messages that are missing between two segments
    disk : replacement for the calls of the file system; for tests

    Raises
    ------
    RingNotFound : there is no journal
    NotARing : `path` is a file
    JournalGap : messages are missing between two segments; the text names their sequences
    Damaged : the journal is damaged; the text says where
    """
    return _read_all(disk or Disk(), path_text(path), allow_gap=allow_gap)[0]


def _read_all(disk: Disk, path: str, *, allow_gap: bool) -> tuple[Verified, bytes]:
    """Verify a journal; return its contents and the schema of its newest ring."""
    found, schema = Verified(), b""
    for segment in _segments(disk, path, allow_gap=allow_gap):
        if not found.segments:
            found.first = segment.first
        schema = segment.schema
        found.segments += 1
        nbytes = segment.file.size()
        found.nbytes += nbytes
        found.end = segment.first
        for record in segment.walk(mapped=True):
            found.end = record.end
            if record.entries:
                found.oldest_ns = found.oldest_ns or ENTRY.unpack_from(record.table)[0]
                found.newest_ns = ENTRY.unpack_from(record.table, -ENTRY.size)[0]
            found.records += 1
            found.messages += record.entries
        found.torn = max(0, nbytes - segment.offset)
    return found, schema


def truncate(path: str | os.PathLike[str]) -> int:
    """Cut a journal at the first damage, and copy every file that changes to ``*.broken`` first.

    Return the sequence at which the journal ends now.

    Raises
    ------
    Locked : a journal is writing to the directory
    """
    disk = Disk()
    where = path_text(path)
    lock = _lock(disk, where)
    try:
        names = segment_names(disk, where)
        end = names[0]
        for i, first in enumerate(names):
            offset = 0
            try:
                with contextlib.closing(Segment(disk, segment_path(where, first))) as segment:
                    offset, end = segment.offset, segment.end
                    for _ in segment.walk():
                        offset, end = segment.offset, segment.end
            except Damaged:
                _cut(where, names[i:], offset)
                break
        return end
    finally:
        lock.release()


def _lock(disk: Disk, path: str) -> LockFile:
    """Lock the directory, so that no journal writes to it."""
    if not segment_names(disk, path):
        raise _no_journal(disk, path)
    return disk.lock(os.path.join(path, "lock"), f"journal {path}", 0)


def _cut(directory: str, names: list[int], offset: int) -> None:
    """Shorten the first of the segments in `names` to `offset` bytes, and remove the later ones.

    The last segment is removed first, so that after a crash no segment is missing between two
    others.  The shortened segment is a new file, because readers may have the old one mapped.
    """
    disk = Disk()
    for first in reversed(names):
        path = segment_path(directory, first)
        if first != names[0] or not offset:
            set_aside(disk, path)
            continue
        set_aside(disk, path, copy=True)
        with contextlib.closing(disk.open(path, write=False)) as file:
            kept = [file.read(offset, 0)]
            replace_file(disk, path, functools.partial(write_file, disk, parts=kept)).close()


def restore(
    path: str | os.PathLike[str],
    name: str | None = None,
    *,
    ring_path: str | os.PathLike[str] | None = None,
    allow_gap: bool = False,
    **options: Any,
) -> Ring:
    """Make a lost ring again, with its schema but empty; sequences go on where the journal ends.

    The messages stay in the journal; :func:`replay` yields them.

    Parameters
    ----------
    path : the journal's directory
    name, ring_path : name and path of the ring, as for :func:`shmring.create`
    allow_gap : make the ring although messages are missing between two segments
    options : further options of :func:`shmring.create`

    Raises
    ------
    Locked : a journal is writing to the directory: it would give its next messages the same
        sequences as the new ring gives to other messages
    the errors of :func:`verify` and :func:`shmring.create`
    """
    from shmring.ring import create

    disk, where = Disk(), path_text(path)
    with contextlib.ExitStack() as stack:
        # Go on without the lock if this process may not write to the directory, for example because
        # the directory is a copy on a read-only disk.
        with contextlib.suppress(PermissionRefused):
            stack.callback(_lock(disk, where).release)
        found, serialized = _read_all(disk, where, allow_gap=allow_gap)
        schema = _read_schema(serialized) if serialized else None
        return create(name, path=ring_path, schema=schema, first_sequence=found.end, **options)
