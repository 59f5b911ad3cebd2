"""The transaction log of the persistent queue.

The file ``transaction.log`` is a file of frames (base/frames.py).  Each frame is a transaction, the
next one follows without a gap, and the rest of the file after the last one is zeros::

    file header, fields of the log            frame header, fields of the log
    24  8  random                             52  4  flags: 1 = data was not synced before
    32  8  number of the first frame          there is no table; the payload is the transaction's
    40  8  number of the next item            operations

An operation has a header of 32 bytes::

     0  4  kind: 1 put, 2 put inline, 3 take
     4  4  count of items
     8  8  number of the first item; the others follow it one by one
    16  8  put: offset of the first item in the data file; the others follow without a gap
    24  4  put: number of the data file
    28  4  zero

``count`` pairs (length, CRC32C) of 4 bytes each follow a put or put-inline, and the items
themselves follow the pairs of a put-inline.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from shmring._shmring import crc32c
from shmring.durable.base.files import Buffer, Disk, File, check_size, write_file
from shmring.durable.base.frames import HEADER_BYTES, FileFormat, Frame
from shmring.durable.base.items import TABLE_ENTRY_BYTES, items_length
from shmring.errors import Damaged, NoSpace

FORMAT = FileFormat(b"SHMRQLG1", 1, "<8sQQ", "log of a persistent queue")
# A frame's flag: its data was not synced before the frame was written.
DEFERRED = 1
_OPERATION = struct.Struct("<IIQQII")
_PUT, _PUT_INLINE, _TAKE = 1, 2, 3
_SLACK_BYTES = 128 << 10
# Bytes by which the reserve grows at a time.
_CHUNK = 64 << 10


@dataclass(slots=True)
class Put:
    """Items put at the back; ``file`` is None when their bytes stand in the log itself."""

    first: int
    file: int | None
    offset: int
    table: memoryview


@dataclass(slots=True)
class Take:
    """Items ``first`` to ``first + count - 1`` left the queue."""

    first: int
    count: int


class Body:
    """The operations of one transaction, until it is written."""

    def __init__(self) -> None:
        self.parts: list[Buffer] = []
        self.length = 0
        self.operations = 0

    def _add(self, *parts: Buffer) -> None:
        self.parts += parts
        self.length += sum(map(len, parts))

    def put(self, first: int, file: int, offset: int, table: Buffer) -> None:
        """Add items that are in a data file."""
        count = len(table) // TABLE_ENTRY_BYTES
        self._add(_OPERATION.pack(_PUT, count, first, offset, file, 0), table)
        self.operations += 1

    def put_inline(self, first: int, items: list[Buffer], table: Buffer) -> int:
        """Add items together with their bytes; return where in the body the bytes start."""
        count = len(table) // TABLE_ENTRY_BYTES
        self.parts += (_OPERATION.pack(_PUT_INLINE, count, first, 0, 0, 0), table, *items)
        start = self.length + _OPERATION.size + len(table)
        self.length = start + sum(map(len, items))
        self.operations += 1
        return start

    def take(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Add operations that remove ranges of items, each given as (first number, count)."""
        first = count = 0
        for number, more in sorted(ranges):
            if count and number == first + count:
                count += more
                continue
            self._take_range(first, count)
            first, count = number, more
        self._take_range(first, count)

    def _take_range(self, first: int, count: int) -> None:
        if count:
            self._add(_OPERATION.pack(_TAKE, count, first, 0, 0, 0))
            self.operations += 1


def parse_operations(frame: Frame, body: memoryview) -> list[Put | Take]:
    found: list[Put | Take] = []
    at = 0
    for _ in range(frame.entries):
        kind, count, first, offset, file, _ = _OPERATION.unpack_from(body, at)
        at += _OPERATION.size
        if kind == _TAKE:
            found.append(Take(first, count))
            continue
        if kind not in (_PUT, _PUT_INLINE):
            raise Damaged(f"transaction {frame.first} has an operation of unknown kind {kind}")
        table = body[at : at + count * TABLE_ENTRY_BYTES]
        at += len(table)
        if kind == _PUT:
            found.append(Put(first, file, offset, table))
        else:
            found.append(Put(first, None, frame.payload + at, table))
            at += items_length(table)
    return found


class TransactionLog:
    """The open log: frames are appended, and synced when the caller says so.

    After the last frame the log keeps `reserve` bytes of zeros.  They make an append an overwrite,
    which syncs faster than growing a file, and leave room for transactions that only take items
    when the disk is full.
    """

    def __init__(self, disk: Disk, path: str, *, reserve: int, file: File | None = None) -> None:
        self.path = path
        self.reserve = reserve
        self.file: File = file or disk.open(path)
        self.file.path = path
        self.raw = memoryview(self.file.read(self.file.size(), 0))
        self.allocated = len(self.raw)  # size of the file, with the reserve
        header = FORMAT.decode_header(self._read, path)
        _, self.next_number, self.next_item = header.fields
        self._salt = header.salt
        self._first_number = self.next_number
        self.synced = self.next_number - 1  # number of the last frame known to be on disk
        self.end = HEADER_BYTES  # offset of the next frame in the file
        # Texts about a torn end, and about damage, in the bytes after the last of `frames`; cut()
        # removes these bytes.
        self.torn: str | None = None
        self.damage: str | None = None
        self.frames: list[Frame] = []  # the valid transactions found on opening
        self._scan()
        self._last_deferred = self._last_deferred_frame()

    def _last_deferred_frame(self) -> int:
        return max((frame.first for frame in self.frames if frame.flags & DEFERRED), default=0)

    @property
    def unchecked(self) -> bool:
        """True if there are transactions that the next opening would have to check."""
        return self._last_deferred > self._witnessed

    @property
    def unsynced(self) -> bool:
        """True if a transaction was appended after the last sync."""
        return self.synced != self.next_number - 1

    @property
    def transactions(self) -> int:
        return self.next_number - self._first_number

    @staticmethod
    def write_new(
        disk: Disk,
        name: str,
        path: str,
        body: Body,
        *,
        number: int,
        next_item: int,
        reserve: int,
        replaces: int = 0,
    ) -> TransactionLog:
        """Write a new log into the file `name`, which the caller renames to `path`.

        The log has `body` as its only transaction, or none if `body` has no operations.
        `replaces`: size in bytes of the log that the new log replaces; 0 for none.
        """
        header = FORMAT.encode_header(os.urandom(8), number, next_item)
        parts: list[Buffer] = [header]
        if body.operations:
            parts += _encode(body, number, number - 1, HEADER_BYTES, FORMAT.salt_of(header))
        try:
            file = write_file(disk, name, [*parts, bytes(reserve + _CHUNK if reserve else 0)])
        except NoSpace:
            if replaces < body.length + reserve + _SLACK_BYTES:
                raise
            # The disk is full: write the new log without its reserve. Removing the old log then
            # frees more than the reserve needs.
            file = write_file(disk, name, parts)
        return TransactionLog(disk, path, reserve=reserve, file=file)

    def _read(self, nbytes: int, offset: int) -> memoryview:
        return self.raw[offset : offset + nbytes]

    def _scan(self) -> None:
        size = len(self.raw)
        for frame in FORMAT.walk(self._read, self.end, size, self._salt, self.next_number):
            if frame.first != self.next_number:
                break
            self.frames.append(frame)
            self.end = frame.payload_end
            self.synced = max(self.synced, frame.synced - 1)
            self.next_number = frame.end
        self._witnessed = self.synced
        if self.raw[self.end :].tobytes().strip(b"\0") == b"":
            return
        where = f"{self.path}: transaction {self.next_number} at byte {self.end}"
        witness = FORMAT.find_witness(self._read, self.end, size, self._salt, self.next_number)
        if witness is None:
            self.torn = f"{where} was torn by a crash before it was committed"
            return
        self.synced = max(self.synced, self.next_number - 1)
        self.damage = (
            f"{where} is damaged, and transaction {witness.first} at byte {witness.offset} "
            f'follows it; open with damage="cut" to keep everything before it '
            f"(a copy goes to {os.path.basename(self.path)}.broken)"
        )

    def cut(self, position: int, number: int) -> None:
        """Forget frame `number`, at offset `position`, and all later frames, durably.

        Their space stays as reserve.
        """
        self.file.write([bytes(self.allocated - position)], position)
        self.file.sync()
        self.frames = [frame for frame in self.frames if frame.first < number]
        self._last_deferred = self._last_deferred_frame()
        self.end = position
        self.next_number = number

    def append(self, body: Body, *, deferred: bool, may_use_reserve: bool) -> int:
        """Write one transaction after the others; return the offset of its body.

        Raise NoSpace if nothing was written.
        """
        number = self.next_number
        parts = _encode(body, number, self.synced, self.end, self._salt, deferred=deferred)
        start = self.end + HEADER_BYTES
        end = start + body.length
        # Check even if the space is allocated: `ulimit -f` may have been lowered since, and the
        # kernel could then write only a part of the frame.
        check_size(self.path, end)
        if end + self.reserve > self.allocated:
            try:
                self._extend(end + self.reserve + _CHUNK)
            except NoSpace:
                if not may_use_reserve or end > self.allocated:
                    raise
        try:
            self.file.write(parts, self.end)
        except NoSpace as error:
            # The disk can only be full here if overwriting takes space.  Part of the frame may be
            # written, so raise no NoSpace, which would say that nothing was written.
            raise OSError(error.errno, "the disk is full inside the reserve", self.path) from error
        self.end = end
        self.next_number += 1
        self._witnessed = self.synced
        if deferred:
            self._last_deferred = number
        return start

    def _extend(self, size: int) -> None:
        self.allocated = self.file.append([bytes(size - self.allocated)], self.allocated)

    def regain_reserve(self) -> None:
        """Make the reserve whole again, if there is space."""
        with suppress(NoSpace):
            if self.end + self.reserve > self.allocated:
                self._extend(self.end + self.reserve + _CHUNK)

    def sync(self) -> None:
        """Wait until every transaction so far is on disk."""
        self.file.sync()
        self.synced = self.next_number - 1

    def witness(self) -> None:
        """Sync every transaction, then append and sync an empty one that records the sync."""
        self.sync()
        self.append(Body(), deferred=False, may_use_reserve=True)
        self.sync()

    def read(self, nbytes: int, offset: int) -> bytes:
        return self.file.read(nbytes, offset)

    def forget_raw(self) -> None:
        """Free the memory that opening needed."""
        self.raw = memoryview(b"")
        self.frames = []

    def close(self) -> None:
        self.file.close()


def _encode(
    body: Body, number: int, synced: int, offset: int, salt: int, *, deferred: bool = False
) -> list[Buffer]:
    crc = 0
    for part in body.parts:
        crc = crc32c(part, crc)
    flags = DEFERRED if deferred else 0
    frame = Frame(
        offset, number, number + 1, synced + 1, body.length, crc, body.operations, flags=flags
    )
    return [frame.encode(salt), *body.parts]
