"""Items of a queue, many at a time: packed for a file, found in it, and read ahead.

In a file a *table* of pairs (length, checksum), 4 bytes each, describes items that stand side by
side.  In memory an *extent* describes an item: offset (8 bytes), length and checksum (4 each).  A
bytearray holds many extents, and only C code loops over them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Protocol

from shmring._shmring import crc32c, extents_of, pack, unpack, unpack_one
from shmring.durable.base.files import Buffer
from shmring.errors import MessageTooLarge

EXTENT = struct.Struct("=QII")
TABLE_ENTRY_BYTES = 8
_LARGEST = 0xFFFFFFFF
# Bytes read at a time for the next items; an item longer than a quarter of this is read alone.
_AHEAD_BYTES = 256 << 10


class Readable(Protocol):
    """A file with items."""

    def read(self, nbytes: int, offset: int, /) -> bytes:
        """Return the bytes from `offset` on; fewer than `nbytes` only at the file's end."""
        ...


def _item_bytes(data: Buffer) -> bytes:
    """Return an item's bytes; a copy unless the item is of type bytes, which never changes."""
    # Use a memoryview, which refuses what is not bytes-like: bytes(7) would return seven zeros.
    try:
        view = memoryview(data)
    except TypeError:
        raise TypeError(
            f"an item is bytes or another object with the buffer protocol (bytearray, memoryview, "
            f"numpy array), not {type(data).__name__}; encode it first"
        ) from None
    if view.nbytes > _LARGEST:
        raise MessageTooLarge(f"an item of {view.nbytes} bytes; the largest is {_LARGEST}")
    return data if isinstance(data, bytes) else view.tobytes()


def items_length(table: Buffer) -> int:
    if not len(table):
        return 0
    extents = extents_of(table, 0)
    offset, length, _ = EXTENT.unpack_from(extents, len(extents) - EXTENT.size)
    return offset + length


class Packing:
    """Items that will be written one after the other."""

    __slots__ = ("_loose", "count", "nbytes", "parts", "table")

    def __init__(self) -> None:
        self._loose: list[bytes] = []
        self.count = self.nbytes = 0  # number of items; bytes of the items and of their table
        # The bytes to be written, and their table; complete after settle().
        self.parts: list[Buffer] = []
        self.table = b""

    def add(self, data: Buffer) -> None:
        """Take one item; raise TypeError if it is not bytes-like, MessageTooLarge from 4 GiB on."""
        if type(data) is not bytes or len(data) > _LARGEST:
            data = _item_bytes(data)
        nbytes = self.nbytes + len(data) + TABLE_ENTRY_BYTES
        # Make no call before the last of these changes: a signal handler may raise after any call,
        # and would leave the others undone.
        self.count += 1
        self.nbytes = nbytes
        self._loose.append(data)

    def add_many(self, items: Iterable[Buffer]) -> int:
        """Take many items, or none if one is refused; return their number."""
        parts, table = pack(items)
        self.settle()
        count = len(table) // TABLE_ENTRY_BYTES
        nbytes = self.nbytes + sum(map(len, parts)) + len(table)
        self.count += count
        self.nbytes = nbytes
        self.parts += parts
        self.table += table
        return count

    def joined(self, other: Packing) -> Packing:
        """Return the items of this and of another Packing; both must be settled."""
        both = Packing()
        both.parts, both.table = self.parts + other.parts, self.table + other.table
        both.count, both.nbytes = self.count + other.count, self.nbytes + other.nbytes
        return both

    def settle(self) -> None:
        """Pack the items that add() has collected into `parts` and `table`."""
        if self._loose:
            parts, table = pack(self._loose)
            self.parts += parts
            self.table += table
            self._loose = []


class ReadAhead:
    """Reads items that are taken one after the other, a block of the file at a time.

    A block is only a hint: if an item in the block does not match its checksum, the file is read
    again. So this object need not be told when a file grows or is replaced.
    """

    def __init__(self) -> None:
        self._source: Readable | None = None
        self._start = 0
        self._block = b""

    def one(self, source: Readable, extents: bytearray, index: int) -> bytes | None:
        """Return an item; None if its bytes do not match their checksum."""
        if source is self._source:
            data = unpack_one(self._block, self._start, extents, index)
            if data is not None:
                return data
        data = self._read(source, extents, index, len(extents) // EXTENT.size)
        if data is None:
            return unpack_one(self._block, self._start, extents, index)
        return data

    def some(
        self, into: list[bytes], source: Readable, extents: bytearray, begin: int, end: int
    ) -> int:
        """Append items to `into`, at most those of one block of the file; return their number.

        The number is 0 if the first item is damaged.
        """
        if source is self._source and (count := self._unpack(into, extents, begin, end)):
            return count
        data = self._read(source, extents, begin, end)
        if data is None:
            return self._unpack(into, extents, begin, end)
        into.append(data)
        return 1

    def many(
        self, into: list[bytes], source: Readable, extents: bytearray, begin: int, end: int
    ) -> int:
        """Append items to `into` until one is damaged or cannot be read; return their number.

        Raise OSError if the first item cannot be read.
        """
        at = begin
        while at < end:
            try:
                count = self.some(into, source, extents, at, end)
            except OSError:
                if at == begin:
                    raise
                count = 0
            if not count:
                break
            at += count
        return at - begin

    def _unpack(self, into: list[bytes], extents: bytearray, begin: int, end: int) -> int:
        return unpack(into, self._block, self._start, extents, begin, end)

    def _read(self, source: Readable, extents: bytearray, begin: int, end: int) -> bytes | None:
        """Return the item at `begin` if it is long; else read a block from it on, and return None.

        If a long item does not match its checksum, empty the block and return None: the caller
        then finds no item in the block.
        """
        offset, length, crc = EXTENT.unpack_from(extents, begin * EXTENT.size)
        if length > _AHEAD_BYTES // 4:
            data = source.read(length, offset)
            if len(data) == length and crc32c(data) == crc:
                return data
            nbytes = 0
        else:
            last, behind, _ = EXTENT.unpack_from(extents, (end - 1) * EXTENT.size)
            nbytes = max(length, min(_AHEAD_BYTES, last + behind - offset))
        self._block, self._start = source.read(nbytes, offset), offset
        self._source = source
        return None
