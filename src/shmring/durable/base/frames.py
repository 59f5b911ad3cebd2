"""The framing of the journal, the transaction log and the append-only queue.

Every number is little-endian.  A file begins with a header, and frames follow::

    file header, 64 bytes                     frame header, 64 bytes
     0  8  magic of the format                 0  4  b"\\xabSF\\x01"
     8  4  CRC32C of bytes 12 to 64 and of     4  4  CRC32C of the frame's offset in the file
           what belongs to the header                (8 bytes), of bytes 8 to 64 and of the
    12  4  version of the format                     table; start value: the file header's
                                                     CRC
    16  4  bytes behind the header that        8  8  number of the first thing in the frame
           belong to it                       16  8  number of its last thing, plus 1
    20  4  zero                               24  8  everything below this number was on disk
    24 40  fields of the format                      when this frame was written
                                              32  8  bytes of payload
                                              40  4  CRC32C of the payload
                                              44  4  entries in the table
                                              48  4  where the payload begins in the frame
                                              52  4  flags of the format
                                              56  8  a field of the format
                                              64  .  the table: entries of one size

Each format defines what the numbers count, what the table holds and where the next frame begins.

A frame's CRC depends on the frame's offset and on the CRC of the file's header, which differs from
file to file.  So a copy of a frame is valid neither at another offset nor in another file; a
message may well contain a whole file with frames.  Bytes behind the last good frame were torn by a
crash and count as never written.  They are damage only if a later frame says that they had been on
disk.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from shmring._shmring import crc32c
from shmring.durable.base.files import Buffer
from shmring.errors import Damaged, VersionMismatch

HEADER_BYTES = 64
MAGIC = b"\xabSF\x01"
_MAGIC_AT = re.compile(re.escape(MAGIC))
_FILE = struct.Struct("<8sIIII40s")
_FRAME = struct.Struct("<4sIQQQQIIIIQ")
_OFFSET = struct.Struct("<Q")
_LARGEST_EXTRA = 1 << 28
# Bytes that the search for a frame reads at a time.
_SEARCH_BYTES = 1 << 20

# Function of (nbytes, offset) that returns bytes of a file; fewer only at the end of the file.
Read = Callable[[int, int], Buffer]


@dataclass(frozen=True, slots=True)
class FileHeader:
    """The decoded header of a file of frames."""

    fields: tuple[Any, ...]  # values of the fields that the format defines
    extra: bytes  # bytes after the header that belong to it
    salt: int  # the start value of the checksums of the file's frames


class Frame(NamedTuple):
    """A frame's header and table, and its offset in the file."""

    offset: int
    first: int
    end: int
    synced: int
    payload_bytes: int
    payload_crc: int
    entries: int = 0
    payload_offset: int = HEADER_BYTES
    flags: int = 0
    own: int = 0
    table: Buffer = b""

    def encode(self, salt: int) -> bytes:
        header = _FRAME.pack(MAGIC, 0, *self[1:10])
        crc = _frame_crc(salt, self.offset, header, self.table)
        return MAGIC + crc.to_bytes(4, "little") + header[8:]

    @property
    def payload(self) -> int:
        """Offset in the file at which the payload begins."""
        return self.offset + self.payload_offset

    @property
    def payload_end(self) -> int:
        """Offset in the file at which the payload ends."""
        return self.payload + self.payload_bytes


class FileFormat:
    """One kind of file."""

    def __init__(
        self,
        magic: bytes,
        version: int,
        fields: str,
        what: str,
        *,
        entry_bytes: int = 0,
        align: int = 1,
    ) -> None:
        self._magic = magic  # 8 bytes
        self._version = version  # the version that is written and read
        self._fields = struct.Struct(fields)  # the format's fields in the header; 40 bytes at most
        self._what = what  # name of such a file in errors, for example "journal segment"
        self._entry_bytes = entry_bytes  # bytes of one entry in a frame's table
        self._align = align  # every frame begins at a multiple of this number of bytes

    def encode_header(self, *fields: Any, extra: bytes = b"") -> bytes:
        own = self._fields.pack(*fields)
        header = _FILE.pack(self._magic, 0, self._version, len(extra), 0, own)
        crc = crc32c(extra, crc32c(header[12:]))
        return header[:8] + crc.to_bytes(4, "little") + header[12:] + extra

    def decode_header(self, read: Read, path: str) -> FileHeader:
        """Read and check the beginning of a file.

        Raise Damaged if the file is of another kind, or its header does not match its checksum;
        VersionMismatch if another version wrote it.
        """
        header = bytes(read(HEADER_BYTES, 0))
        if len(header) < HEADER_BYTES or header[:8] != self._magic:
            raise Damaged(f"{path} is no {self._what}: no header of 64 bytes at byte 0")
        _, crc, version, extra_bytes, _, own = _FILE.unpack(header)
        extra = bytes(read(extra_bytes, HEADER_BYTES)) if extra_bytes <= _LARGEST_EXTRA else b""
        if crc != crc32c(extra, crc32c(header[12:])):
            raise Damaged(f"{path}: the header at byte 0 does not match its checksum")
        # Check the version after the checksum: damage could otherwise look like another version.
        # All versions compute the checksum alike.
        if version != self._version:
            raise VersionMismatch(
                f"{path} has version {version}; this shmring reads {self._version}"
            )
        return FileHeader(self._fields.unpack_from(own), extra, crc)

    @staticmethod
    def salt_of(header: bytes) -> int:
        return int.from_bytes(header[8:12], "little")

    def decode_frame(self, read: Read, offset: int, size: int, salt: int) -> Frame | None:
        """Return the frame at an offset; None unless its header and table are valid.

        A table that goes beyond `size`, the size of the file, is not valid.
        """
        header = bytes(read(HEADER_BYTES, offset))
        if len(header) < HEADER_BYTES or header[:4] != MAGIC:
            return None
        _, crc, *fields = _FRAME.unpack(header)
        frame = Frame(offset, *fields)
        table_bytes = frame.entries * self._entry_bytes
        if offset + HEADER_BYTES + table_bytes > size or frame.end < frame.first:
            return None
        if table_bytes:
            frame = frame._replace(table=bytes(read(table_bytes, offset + HEADER_BYTES)))
        return frame if crc == _frame_crc(salt, offset, header, frame.table) else None

    def next_offset(self, end: int) -> int:
        """Return the first aligned offset at or after `end`, where the next frame begins."""
        return -(-end // self._align) * self._align

    def walk(self, read: Read, offset: int, size: int, salt: int, number: int) -> Iterator[Frame]:
        """Yield consecutive frames, up to the first frame that is not valid.

        `number` is the lowest number that the first frame may have.
        """
        while offset < size:
            frame = self.decode_frame(read, offset, size, salt)
            if frame is None or frame.first < number or frame.payload_end > size:
                return
            if crc32c(read(frame.payload_bytes, frame.payload)) != frame.payload_crc:
                return
            yield frame
            offset, number = self.next_offset(frame.payload_end), frame.end

    def last_frame(self, read: Read, start: int, size: int, salt: int) -> Frame | None:
        """Return the frame that ends where the file ends, if its header and table are valid."""
        for offset in offsets_of_frames(read, start, size, backwards=True):
            frame = self.decode_frame(read, offset, size, salt)
            if frame is not None:
                # A crash may have cut off the zeros that pad this frame up to the next frame's
                # offset.
                whole = frame.payload_end <= size <= self.next_offset(frame.payload_end)
                return frame if whole else None
        return None

    def find_witness(
        self, read: Read, start: int, size: int, salt: int, number: int
    ) -> Frame | None:
        """Find a frame from `start` on whose header says that the frame `number` had been on disk.

        Such a frame shows that the unreadable bytes before it are damaged, and not torn.
        """
        for offset in offsets_of_frames(read, start, size):
            frame = self.decode_frame(read, offset, size, salt)
            if frame is not None and frame.synced > number:
                return frame
        return None


def _frame_crc(salt: int, offset: int, header: bytes, table: Buffer) -> int:
    crc = crc32c(_OFFSET.pack(offset) + header[8:], salt)
    return crc32c(table, crc) if table else crc


def offsets_of_frames(
    read: Read, start: int, size: int, *, backwards: bool = False
) -> Iterator[int]:
    """Yield the offsets from `start` on where a frame may begin, in reverse if `backwards`."""
    lows = range(start, size, _SEARCH_BYTES)
    for low in reversed(lows) if backwards else lows:
        # Read a little more: the magic of a frame may begin in this piece and end in the next one.
        piece = bytes(read(min(_SEARCH_BYTES, size - low) + len(MAGIC) - 1, low))
        found = [low + match.start() for match in _MAGIC_AT.finditer(piece)]
        yield from reversed(found) if backwards else found
