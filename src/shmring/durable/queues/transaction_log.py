"""The transaction log of the persistent queue.

The file ``transaction.log``, every number little-endian::

    file header, 64 bytes                   frame header, 56 bytes
     0  8  b"SHMRQLG1"                       0  4  b"\\xabTX\\x01"
     8  4  CRC32C of bytes 12 to 64          4  4  CRC32C of bytes 8 to 56
    12  4  version, 1                        8  8  salt of the file header
    16  8  salt, random                     16  8  number: one more than the frame before
    24  8  number of the first frame        24  8  every frame up to this number was on disk
    32  8  number of the next item                 when this one was written
    40 24  zero                             32  8  where this frame starts in the file
                                            40  4  bytes in the body
                                            44  4  operations in the body
                                            48  4  flags: 1 = data was not synced before
                                            52  4  CRC32C of the body

Frames follow the file header without a gap; behind the last come zeros to the end of the file.
A frame's body is its operations, each with a header of 32 bytes::

     0  4  kind: 1 put, 2 put inline, 3 take
     4  4  count of items
     8  8  number of the first item; the others follow it one by one
    16  8  put: offset of the first item in the data file; the others follow without a gap
    24  4  put: number of the data file
    28  4  zero

Behind a put or put-inline stand ``count`` pairs (length, CRC32C) of 4 bytes each, and behind a
put-inline's pairs the items themselves.

A frame is valid when both CRCs, the salt, the number and the place agree; so neither a copy of
a frame inside an item nor a frame of an older log is taken for one.  Reading stops at the first
place without a valid frame.  Zeros to the end of the file there are the clean end.  Otherwise,
if any later frame header is valid and says that the missing frame had been on disk, the file is
damaged in its middle; if none does, the rest was never synced and is a torn end.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from shmring._shmring import crc32c
from shmring.durable.base.files import Buffer, Disk, File, check_size, replace_file
from shmring.durable.base.items import TABLE_ENTRY_BYTES, items_length
from shmring.errors import Damaged, NoSpace, VersionMismatch

__all__ = ["Body", "Frame", "Put", "Take", "TransactionLog", "parse_operations"]

_FILE_MAGIC = b"SHMRQLG1"
_VERSION = 1
_FILE_HEADER = struct.Struct("<8sIIQQQ24x")
_MAGIC = b"\xabTX\x01"
_HEADER = struct.Struct("<4sIQQQQIIII")
_OPERATION = struct.Struct("<IIQQII")
_PUT, _PUT_INLINE, _TAKE = 1, 2, 3
_DEFERRED = 1
# The reserve is renewed in steps of this.
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


@dataclass(slots=True)
class Frame:
    """One transaction as found in the log."""

    number: int
    synced: int
    position: int
    deferred: bool
    operations: int
    body_length: int
    body_crc: int

    @property
    def body(self) -> int:
        """Where the body starts."""
        return self.position + _HEADER.size

    @property
    def end(self) -> int:
        """Where the next frame starts."""
        return self.body + self.body_length


class Body:
    """The operations of one transaction, in the making."""

    def __init__(self) -> None:
        self.parts: list[Buffer] = []
        self.length = 0
        self.operations = 0

    def _add(self, *parts: Buffer) -> None:
        self.parts += parts
        self.length += sum(map(len, parts))

    def put(self, first: int, file: int, offset: int, table: Buffer) -> None:
        """Add items that stand in a data file."""
        count = len(table) // TABLE_ENTRY_BYTES
        self._add(_OPERATION.pack(_PUT, count, first, offset, file, 0), table)
        self.operations += 1

    def put_inline(self, first: int, items: list[Buffer], table: Buffer) -> int:
        """Add items together with their bytes; return where in the body those start."""
        count = len(table) // TABLE_ENTRY_BYTES
        self._add(_OPERATION.pack(_PUT_INLINE, count, first, 0, 0, 0), table)
        start = self.length
        self._add(*items)
        self.operations += 1
        return start

    def take(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Add the removal of these items: (number of the first, count) each."""
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
    for _ in range(frame.operations):
        kind, count, first, offset, file, _ = _OPERATION.unpack_from(body, at)
        at += _OPERATION.size
        if kind == _TAKE:
            found.append(Take(first, count))
            continue
        if kind not in (_PUT, _PUT_INLINE):
            raise Damaged(f"transaction {frame.number} has an operation of unknown kind {kind}")
        table = body[at : at + count * TABLE_ENTRY_BYTES]
        at += len(table)
        if kind == _PUT:
            found.append(Put(first, file, offset, table))
        else:
            found.append(Put(first, None, frame.body + at, table))
            at += items_length(table)
    return found


def _file_header(salt: int, first: int, next_item: int) -> bytes:
    header = _FILE_HEADER.pack(_FILE_MAGIC, 0, _VERSION, salt, first, next_item)
    return _FILE_MAGIC + struct.pack("<I", crc32c(header[12:])) + header[12:]


def _frame_header(frame: Frame, salt: int) -> bytes:
    header = _HEADER.pack(
        _MAGIC,
        0,
        salt,
        frame.number,
        frame.synced,
        frame.position,
        frame.body_length,
        frame.operations,
        _DEFERRED if frame.deferred else 0,
        frame.body_crc,
    )
    return _MAGIC + struct.pack("<I", crc32c(header[8:])) + header[8:]


def _parse_header(raw: memoryview, position: int, salt: int) -> Frame | None:
    if position + _HEADER.size > len(raw):
        return None
    header = raw[position : position + _HEADER.size]
    magic, crc, found_salt, number, synced, place, length, operations, flags, body_crc = (
        _HEADER.unpack(header)
    )
    if magic != _MAGIC or found_salt != salt or place != position:
        return None
    if crc != crc32c(header[8:]):
        return None
    deferred = bool(flags & _DEFERRED)
    return Frame(number, synced, position, deferred, operations, length, body_crc)


class TransactionLog:
    """The open log: frames are appended, and synced when the caller says so.

    Parameters
    ----------
    reserve : bytes of zeros kept behind the last frame.  They make an append an overwrite, which
        syncs faster than growing a file, and leave room for transactions that only take items
        when the disk is full.

    Attributes
    ----------
    frames : the valid transactions found on opening
    torn : what was found behind them, if it was a torn end; it is still there until :meth:`cut`
    damage : what was found behind them, if it was damage; it is still there until :meth:`cut`
    end : where the next frame goes
    allocated : bytes of the file, with the reserve
    next_number : the next frame's number
    synced : the last frame known to be on disk
    """

    def __init__(self, disk: Disk, path: str, *, reserve: int) -> None:
        self.path = path
        self._reserve = reserve
        self._file: File = disk.open(path)
        self.raw = memoryview(self._file.read(self._file.size(), 0))
        self.allocated = len(self.raw)
        self._salt, self.next_number, self.next_item = self._read_header()
        self._first_number = self.next_number
        self.synced = self.next_number - 1
        self.end = _FILE_HEADER.size
        self.torn: str | None = None
        self.damage: str | None = None
        self.frames: list[Frame] = []
        self._scan()
        self._last_deferred = self._last_deferred_frame()

    def _last_deferred_frame(self) -> int:
        return max((frame.number for frame in self.frames if frame.deferred), default=0)

    @property
    def unchecked(self) -> bool:
        """Whether there are transactions that the next opening would have to check."""
        return self._last_deferred > self._witnessed

    @property
    def unsynced(self) -> bool:
        """Whether a transaction was appended after the last sync."""
        return self.synced != self.next_number - 1

    @property
    def transactions(self) -> int:
        """Transactions in the file."""
        return self.next_number - self._first_number

    @staticmethod
    def write_new(
        disk: Disk,
        path: str,
        body: Body,
        *,
        number: int,
        next_item: int,
        reserve: int,
    ) -> None:
        """Replace the log by one that holds a single transaction, in one step, durably."""
        salt = int.from_bytes(os.urandom(8), "little")
        parts: list[Buffer] = [_file_header(salt, number, next_item)]
        if body.operations:
            parts += _frame(body, number, number - 1, _FILE_HEADER.size, salt)[1]
        parts.append(bytes(reserve and reserve + _CHUNK))
        replace_file(disk, path, parts)

    def _read_header(self) -> tuple[int, int, int]:
        raw = self.raw
        if len(raw) < _FILE_HEADER.size:
            raise Damaged(f"{self.path} is {len(raw)} bytes long, shorter than its header of 64")
        magic, crc, version, salt, first, next_item = _FILE_HEADER.unpack_from(raw)
        if magic != _FILE_MAGIC or crc != crc32c(raw[12 : _FILE_HEADER.size]):
            raise Damaged(f"{self.path}: the header at byte 0 is damaged, or this is no queue")
        if version != _VERSION:
            raise VersionMismatch(
                f"{self.path} has version {version}; this shmring reads {_VERSION}"
            )
        return salt, first, next_item

    def _scan(self) -> None:
        while True:
            frame = _parse_header(self.raw, self.end, self._salt)
            if frame is None or frame.number != self.next_number:
                break
            body = self.raw[frame.body : frame.end]
            if len(body) != frame.body_length or crc32c(body) != frame.body_crc:
                break
            self.frames.append(frame)
            self.end = frame.end
            self.synced = max(self.synced, frame.synced)
            self.next_number += 1
        self._witnessed = self.synced
        rest = self.raw[self.end :].tobytes()
        if rest.strip(b"\0") == b"":
            return
        where = f"{self.path}: transaction {self.next_number} at byte {self.end}"
        witness = self._later_frame(rest)
        if witness is None:
            self.torn = f"{where} was torn by a crash before it was committed"
            return
        self.synced = max(self.synced, self.next_number - 1)
        self.damage = (
            f"{where} is damaged, and transaction {witness.number} at byte {witness.position} "
            f'follows it; open with damage="cut" to keep what stands before it '
            f"(a copy goes to {os.path.basename(self.path)}.broken)"
        )

    def _later_frame(self, rest: bytes) -> Frame | None:
        at = rest.find(_MAGIC)
        while at >= 0:
            frame = _parse_header(self.raw, self.end + at, self._salt)
            if frame is not None and frame.synced >= self.next_number:
                return frame
            at = rest.find(_MAGIC, at + 1)
        return None

    def cut(self, position: int, number: int) -> None:
        """Forget everything from this frame on, durably; the space stays as reserve."""
        self._file.write([bytes(self.allocated - position)], position)
        self._file.sync()
        self.frames = [frame for frame in self.frames if frame.number < number]
        self._last_deferred = self._last_deferred_frame()
        self.end = position
        self.next_number = number

    def append(self, body: Body, *, deferred: bool, may_use_reserve: bool) -> int:
        """Write one transaction behind the others; return where its body stands.

        Raises
        ------
        NoSpace : nothing was written
        """
        number = self.next_number
        frame, parts = _frame(body, number, self.synced, self.end, self._salt, deferred=deferred)
        check_size(self.path, frame.end)  # what is allocated may have come before the limit
        if frame.end + self._reserve > self.allocated:
            try:
                self._extend(frame.end + self._reserve + _CHUNK)
            except NoSpace:
                if not may_use_reserve or frame.end > self.allocated:
                    raise
        try:
            self._file.write(parts, self.end)
        except NoSpace as error:
            # Only where overwriting takes space.  Part of the frame may stand there now, so this
            # must not pass for the harmless kind.
            raise OSError(error.errno, "the disk is full inside the reserve", self.path) from error
        self.end = frame.end
        self.next_number += 1
        self._witnessed = self.synced
        if deferred:
            self._last_deferred = number
        return frame.body

    def _extend(self, size: int) -> None:
        try:
            self._file.write([bytes(size - self.allocated)], self.allocated)
        except NoSpace:
            self._file.truncate(self.allocated)
            raise
        self.allocated = size

    def regain_reserve(self) -> None:
        """Make the reserve whole again, if there is space."""
        with suppress(NoSpace):
            if self.end + self._reserve > self.allocated:
                self._extend(self.end + self._reserve + _CHUNK)

    def sync(self) -> None:
        """Return when every transaction so far is on disk."""
        self._file.sync()
        self.synced = self.next_number - 1

    def read(self, nbytes: int, offset: int) -> bytes:
        """Return the bytes of an item that stands in the log."""
        return self._file.read(nbytes, offset)

    def forget_raw(self) -> None:
        """Give back the memory that opening took."""
        self.raw = memoryview(b"")
        self.frames = []

    def close(self) -> None:
        self._file.close()


def _frame(
    body: Body,
    number: int,
    synced: int,
    position: int,
    salt: int,
    *,
    deferred: bool = False,
) -> tuple[Frame, list[Buffer]]:
    crc = 0
    for part in body.parts:
        crc = crc32c(part, crc)
    frame = Frame(number, synced, position, deferred, body.operations, body.length, crc)
    return frame, [_frame_header(frame, salt), *body.parts]
