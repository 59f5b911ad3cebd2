"""The file of the append-only queue: two stacks in one file in which nothing is ever edited.

It is a file of frames (base/frames.py), each a commit.  Numbers are *positions*: the header's base
plus an offset in the file, so that positions go on rising when a compaction starts a new file.
Every number is little-endian::

    file header, fields of the queue        commit, a frame with one entry of 48 bytes
    24  8  random                           64  8  front stack: position of its top, 0 if empty
    32  8  base, the position of byte 0     72  8  front stack: count of items
                                            80  8  back stack: position of its top, 0 if empty
    node, 32 bytes                          88  8  back stack: count of items
     0  8  position of the item             96  8  bytes of all items written to this file
     8  8  position of the node below,     104  8  position of the commit before, 0 if none
           0 at the bottom
    16  4  length of the item
    20  4  CRC32C of the item
    24  4  CRC32C of bytes 0 to 24; its start value is the CRC of the file's header
    28  4  zero

Regions and commits follow the header in turn.  A region has items and nodes in any order, and the
commit *after* the region is what puts them into the queue; the region is the commit's payload.  The
two numbers in the commit's frame header are the position of the region and the position of the
commit.  Flag 1 says that the region was synced before the commit was written; then the payload's
CRC is not checked.  The state of the file is its last valid commit; bytes behind this commit are
ignored.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, field

from shmring._shmring import crc32c, extents_of, runs_of, stack_nodes, stack_walk
from shmring.durable.base.files import (
    Buffer,
    Disk,
    File,
    SyncedAhead,
    write_file,
)
from shmring.durable.base.frames import HEADER_BYTES, FileFormat, Frame, offsets_of_frames
from shmring.durable.base.items import EXTENT, Packing
from shmring.errors import Damaged, NotARing, PositionNotFound

_STATE = struct.Struct("<QQQQQQ")
_FORMAT = FileFormat(b"SHMRAOQ1", 1, "<8sQ", "append-only queue", entry_bytes=_STATE.size)
_SYNCED = 1
# Maximum bytes of a region whose checksum is checked on opening. A larger region is synced before
# its commit instead, and is not read on opening.
_CHECKED_REGION = 1 << 20
# Bytes after which a sync begins in the background while more bytes of the commit are written. The
# persistent queue begins such a sync after as many bytes (the default of its file_size).
_SYNC_BYTES = 32 << 20
_WALK_BYTES = 64 << 10
NODE_BYTES = 32


class Held:
    """Holds items in memory that no flush has written yet; read() works as for a file.

    If an item is taken before the next flush, the item is never written.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data

    def read(self, nbytes: int, position: int) -> bytes:
        """Return `nbytes` bytes of the items from `position` on, counted from their first byte."""
        return self.data[position : position + nbytes]


@dataclass(slots=True, eq=False)
class Piece:
    """Items of the front stack, from the top down."""

    source: AppendOnlyFile | Held
    extents: bytearray  # extents of the items (see base/items.py)
    # Position of the first item's node; the node of each next item stands directly before it in the
    # file.  0 while the items have no nodes.
    link: int = 0
    begin: int = 0  # number of items that have been taken from this piece
    end: int = field(init=False)  # number of items in this piece, with the items already taken

    def __post_init__(self) -> None:
        self.end = len(self.extents) // EXTENT.size

    def __len__(self) -> int:
        return self.end - self.begin

    @property
    def top(self) -> int:
        """Position of the node of the first item that is left."""
        return self.link and self.link - self.begin * NODE_BYTES


@dataclass(slots=True, frozen=True)
class Commit:
    """A state of the queue: the contents of a commit record."""

    position: int = 0
    front: int = 0
    front_count: int = 0
    back: int = 0
    back_count: int = 0
    item_bytes: int = 0


class AppendOnlyFile(SyncedAhead):
    """The open file: nodes and commits are appended, and read at their positions.

    Only one process at a time may `write`.  `file` is open, and has, or will get, the name `path`.
    """

    def __init__(self, disk: Disk, path: str, *, write: bool, file: File | None = None) -> None:
        super().__init__()
        self.path = path
        self._parallel = disk.parallel
        self.file: File = file or disk.open(path, write=write)
        self.file.path = path
        header = _FORMAT.decode_header(self.file.read, path)
        _, self.base = header.fields
        self._salt = header.salt
        self.torn: str | None = None  # text about bytes that were found after the last valid commit
        size = self.file.size()
        # The last valid commit when the file was opened, or the last commit written since.
        self.commit = self._last_commit(size)
        committed = self.commit.position + HEADER_BYTES + _STATE.size - self.base
        if size > (committed if self.commit.position else HEADER_BYTES):
            self.torn = f"{path}: the bytes behind position {self.commit.position} were ignored"
        self._end = size
        self._sync_begun = 0
        self._region_start = size
        self._region_crc = 0
        self.item_bytes = self.commit.item_bytes

    @staticmethod
    def write_new(disk: Disk, name: str, path: str, base: int) -> AppendOnlyFile:
        """Write an empty file called `name`, which the caller renames to `path`."""
        header = _FORMAT.encode_header(os.urandom(8), base)
        file = write_file(disk, name, [header])
        return AppendOnlyFile(disk, path, write=True, file=file)

    def refuse_other_names(self) -> None:
        """Raise NotARing if the file has hard links.

        Each name has its own lock file, so two writers could open the file under two names.  A
        compaction replaces the file under one name only: the other name keeps the old file.
        """
        if (names := self.file.stat().st_nlink) > 1:
            raise NotARing(
                f"the queue at {self.path} has {names} names (hard links): a writer under each "
                f"would overwrite what the other one flushed; remove the others, or copy the file"
            )

    @property
    def size(self) -> int:
        return self._end

    def _last_commit(self, size: int) -> Commit:
        for offset in offsets_of_frames(self.file.read, HEADER_BYTES, size, backwards=True):
            commit = self._commit_at(offset)
            if commit is not None:
                return commit
        return Commit()

    def commit_at(self, position: int) -> Commit:
        """Return the state that a flush left at this position."""
        offset = position - self.base
        there = HEADER_BYTES <= offset < self.file.size()
        commit = self._commit_at(offset) if there else None
        if commit is None:
            why = "a compaction dropped it" if position < self.base else "no flush returned it"
            raise PositionNotFound(f"{self.path} has no state at position {position}: {why}")
        return commit

    def _commit_at(self, offset: int) -> Commit | None:
        frame = _FORMAT.decode_frame(self.file.read, offset, self.file.size(), self._salt)
        if frame is None or frame.end != self.base + offset:
            return None
        if not frame.flags & _SYNCED:
            region = self.file.read(frame.payload_bytes, frame.first - self.base)
            if len(region) != frame.payload_bytes or crc32c(region) != frame.payload_crc:
                return None
        *state, _ = _STATE.unpack(frame.table)
        return Commit(frame.end, *state)

    def walk(self, link: int, *, upwards: bool = False) -> tuple[bytearray, int]:
        """Go down a stack from the node at ``link``; return the extents of the items on the way.

        Also return the link of the node below them, 0 at the bottom.  There is at least one extent
        (base/items.py).  With `upwards` the lowest item comes first.  Otherwise the top item comes
        first, and the walk stops at a node that does not stand right before the node above it.
        Raise Damaged if the node at ``link`` does not match its checksum.
        """
        # Read towards the beginning of the file: a stack was written from the bottom up.
        end = link - self.base + NODE_BYTES
        start = max(0, end - _WALK_BYTES)
        block = self.file.read(end - start, start)
        extents, below = stack_walk(block, self.base + start, link, self._salt, upwards)
        if not extents:
            raise Damaged(f"{self.path}: the node at position {link} does not match its checksum")
        return extents, below

    def read(self, nbytes: int, position: int) -> bytes:
        """Return the bytes at a position; fewer at the end of the file."""
        return self.file.read(nbytes, position - self.base)

    def append_back(self, packing: Packing, below: int) -> int:
        """Write items and their nodes on top of node ``below``; return the last node's position.

        Raise NoSpace if the disk is full; then no item was added.
        """
        items = self.base + self._end
        extents = extents_of(packing.table, items)
        count = packing.count
        item_bytes = packing.nbytes - len(packing.table)
        first = items + item_bytes
        nodes = stack_nodes(extents, first, below, self._salt, False)
        self._append([*packing.parts, nodes])
        self.item_bytes += item_bytes
        return first + (count - 1) * NODE_BYTES

    def append_front(self, pieces: list[Piece]) -> list[Piece]:
        """Write the nodes of a whole stack, the lowest first, and the items that are in memory.

        Return pieces that have the same items, but not those already taken, and refer to the new
        nodes.  Raise NoSpace if the disk is full; then the file has the old stack only.
        """
        position = self.base + self._end
        parts: list[Buffer] = []
        written: list[Piece] = []
        item_bytes = 0
        for piece in pieces:
            extents = piece.extents[piece.begin * EXTENT.size :]
            if isinstance(piece.source, Held):
                ((start, end, table),) = runs_of(extents, 0, len(extents) // EXTENT.size)
                parts.append(memoryview(piece.source.data)[start:end])
                extents = extents_of(table, position + item_bytes)
                item_bytes += end - start
            written.append(Piece(self, extents))
        position += item_bytes
        below = 0
        for piece in reversed(written):
            count = len(piece)
            parts.append(stack_nodes(piece.extents, position, below, self._salt, True))
            below = piece.link = position + (count - 1) * NODE_BYTES
            position += count * NODE_BYTES
        self._append(parts)
        self.item_bytes += item_bytes
        return written

    def _append(self, parts: list[Buffer]) -> None:
        self._end = self.file.append(parts, self._end)
        begun = max(self._region_start, self._sync_begun)
        if self._parallel and self._end - begun > _SYNC_BYTES:
            self._sync_begun = self._end
            self.sync_ahead()
        if self._end - self._region_start <= _CHECKED_REGION:
            for part in parts:
                self._region_crc = crc32c(part, self._region_crc)

    def append_commit(self, front: int, front_count: int, back: int, back_count: int) -> Commit:
        """Make these two stacks the state of the file; the state is on disk when the call returns.

        Raise NoSpace if the disk is full; the file then keeps its earlier state. Raise OSError if
        the sync failed: opening the file again shows which state the file has.
        """
        position = self.base + self._end
        flags = 0
        if self._end - self._region_start > _CHECKED_REGION:
            self.sync()
            flags = _SYNCED
        state = _STATE.pack(
            front, front_count, back, back_count, self.item_bytes, self.commit.position
        )
        frame = Frame(
            self._end,
            self.base + self._region_start,
            position,
            position if flags else 0,
            self._end - self._region_start,
            self._region_crc,
            entries=1,
            payload_offset=0,
            flags=flags,
            table=state,
        )
        self._append([frame.encode(self._salt), state])
        self.sync()
        self._region_start = self._end
        self._region_crc = 0
        self.commit = Commit(position, front, front_count, back, back_count, self.item_bytes)
        return self.commit

    def _sync(self) -> None:
        self.file.sync()

    def close(self) -> None:
        self.file.close()
