"""The journal's files: segments of records, each record a piece of the ring as it was.

Every number is little-endian.  A segment is named by its first sequence, ``%020d.journal``::

    segment header, 64 bytes                  record header, 64 bytes
     0  8  b"SHMRJNL1"                         0  4  b"\\xabJR1"
     8  4  CRC32C of bytes 12 to 64 and        4  4  CRC32C of bytes 8 to 64 and the entries,
           the schema                                begun with the segment's (its bytes 8 to 12)
    12  4  version, 1                          8  8  sequence of its first slot
                                              16  8  sequence behind its last slot
    16 16  uuid of the ring                   24  8  all below this sequence was on disk
    32  8  sequence of its first record              when this record was written
    40  8  made when, ns since 1970           32  8  bytes of payload
    48  4  bytes of a slot, 300               40  4  messages
    52  4  bytes of the ring's Arrow schema   44  4  CRC32C of the payload
    56  8  zero                               48  4  where the payload begins in the record
    64  .  the schema (an IPC message)        52  4  zero
                                              56  8  written when, ns since 1970
    entry, 20 bytes                           64  .  an entry for each message
     0  8  time of the message, ns             .  .  the payload: the slots, 300 bytes each
     8  4  its first slot in this record
    12  4  its length                         Records, and the first one behind the schema, begin
    16  1  its kind                           at multiples of 64.  The payload begins where its
    17  1  where it begins in its slot        first slot lay in the ring, modulo 64: what was
    18  2  zero                               aligned there is aligned here.

A segment is synced as a whole before the next one is made, and its header before its first
record.  Records that were written together may be torn together: what stands behind the last good
record counts as never written, unless a record behind it says that it had been on disk.  Then, and
in any segment but the last, it is damage.  The checksum of a segment's header differs from that of
any other, so a record that was copied (a journal may be what a message holds) never counts as one.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from shmring._shmring import SLOT_BYTES, crc32c
from shmring.durable.base.files import Buffer, Disk, File
from shmring.errors import Damaged, VersionMismatch

__all__ = [
    "ENTRY",
    "Record",
    "Segment",
    "encode_record",
    "encode_segment",
    "open_segment",
    "salt_of",
    "segment_names",
    "segment_path",
    "walk",
    "was_begun",
]

SUFFIX = ".journal"
ENTRY = struct.Struct("<QIIBB2x")

_SEGMENT = struct.Struct("<8sII16sQQII8x")
_RECORD = struct.Struct("<4sIQQQQIII4xQ")
_SEGMENT_MAGIC = b"SHMRJNL1"
_RECORD_MAGIC = b"\xabJR1"
_VERSION = 1
_ALIGN = 64
_MAX_SCHEMA = 1 << 28
# Bytes read at a time in search of a record behind damage.
_SEARCH_BYTES = 1 << 20


def _round_up(nbytes: int) -> int:
    return -(-nbytes // _ALIGN) * _ALIGN


@dataclass(frozen=True, slots=True)
class Segment:
    """What a segment's header says, and where its records begin."""

    path: str
    uuid: bytes
    first: int
    created_ns: int
    schema: bytes
    records: int
    salt: int


@dataclass(frozen=True, slots=True)
class Record:
    """What a record's header says; all offsets are in the file."""

    offset: int
    first: int
    end: int
    synced: int
    messages: int
    payload: int
    payload_bytes: int
    payload_crc: int
    written_ns: int

    @property
    def entries(self) -> int:
        """Where the entries begin."""
        return self.offset + _RECORD.size

    @property
    def next(self) -> int:
        """Where the next record begins."""
        return _round_up(self.payload + self.payload_bytes)


def segment_path(directory: str, first: int) -> str:
    """Where the segment that begins at a sequence is kept."""
    return os.path.join(directory, f"{first:020d}{SUFFIX}")


def segment_names(disk: Disk, directory: str) -> list[int]:
    """First sequences of the segments in a directory, in order."""
    stems = (name.removesuffix(SUFFIX) for name in disk.names(directory) if name.endswith(SUFFIX))
    return sorted(int(stem) for stem in stems if len(stem) == 20 and stem.isdecimal())


def encode_segment(uuid: bytes, first: int, created_ns: int, schema: bytes) -> bytes:
    """The beginning of a segment, up to its first record."""
    header = _SEGMENT.pack(
        _SEGMENT_MAGIC, 0, _VERSION, uuid, first, created_ns, SLOT_BYTES, len(schema)
    )
    crc = crc32c(schema, crc32c(header[12:]))
    data = header[:8] + crc.to_bytes(4, "little") + header[12:] + schema
    return data.ljust(_round_up(len(data)), b"\0")


def open_segment(file: File, path: str) -> Segment:
    """Read and check a segment's header.

    Raises
    ------
    Damaged : it is not one, or does not match its checksum
    VersionMismatch : written by another version
    """
    header = file.read(_SEGMENT.size, 0)
    if len(header) < _SEGMENT.size or header[:8] != _SEGMENT_MAGIC:
        raise Damaged(f"{path} is no journal segment: no header of 64 bytes at byte 0")
    _, crc, version, uuid, first, created_ns, _, schema_bytes = _SEGMENT.unpack(header)
    if version != _VERSION:
        raise VersionMismatch(f"{path} has version {version}; this shmring reads {_VERSION}")
    schema = file.read(schema_bytes, _SEGMENT.size) if schema_bytes <= _MAX_SCHEMA else b""
    if crc != crc32c(schema, crc32c(header[12:])):
        raise Damaged(f"{path}: the header at byte 0 does not match its checksum")
    records = _round_up(_SEGMENT.size + schema_bytes)
    return Segment(path, uuid, first, created_ns, schema, records, crc)


def salt_of(header: bytes) -> int:
    """The salt of a segment that begins with what encode_segment() gave."""
    return int.from_bytes(header[8:12], "little")


def was_begun(file: File) -> bool:
    """Whether a segment whose header is unreadable had records; a header is synced before them."""
    size = file.size()
    pieces = (file.read(_SEARCH_BYTES, at) for at in range(0, size, _SEARCH_BYTES))
    return any(True for piece in pieces for _ in _aligned(piece))


def encode_record(
    offset: int,
    *,
    salt: int,
    first: int,
    end: int,
    synced: int,
    entries: Buffer,
    slots: list[Buffer],
    slot_address: int,
    written_ns: int,
) -> tuple[list[Buffer], int]:
    """The buffers of a record that is to stand at `offset`, and where the next one will begin.

    Parameters
    ----------
    entries : packed ENTRY each
    slots : the payload, in one piece or several; neither is copied
    slot_address : where the first slot lies in its ring, in bytes
    """
    nbytes = sum(map(len, slots))
    behind = offset + _RECORD.size + len(entries)
    payload = behind + (slot_address - behind) % _ALIGN
    payload_crc = 0
    for piece in slots:
        payload_crc = crc32c(piece, payload_crc)
    header = _RECORD.pack(
        _RECORD_MAGIC,
        0,
        first,
        end,
        synced,
        nbytes,
        len(entries) // ENTRY.size,
        payload_crc,
        payload - offset,
        written_ns,
    )
    crc = crc32c(entries, crc32c(header[8:], salt))
    following = _round_up(payload + nbytes)
    return [
        header[:4] + crc.to_bytes(4, "little") + header[8:],
        entries,
        bytes(payload - behind),
        *slots,
        bytes(following - payload - nbytes),
    ], following


def _parse_record(file: File, offset: int, size: int, salt: int) -> Record | None:
    """The record at an offset, if a whole one with a good header and good entries stands there."""
    header = file.read(_RECORD.size, offset)
    if len(header) < _RECORD.size or header[:4] != _RECORD_MAGIC:
        return None
    _, crc, first, end, synced, nbytes, messages, payload_crc, payload, written_ns = _RECORD.unpack(
        header
    )
    record = Record(
        offset, first, end, synced, messages, offset + payload, nbytes, payload_crc, written_ns
    )
    entries_bytes = messages * ENTRY.size
    if payload < _RECORD.size + entries_bytes or record.payload + nbytes > size or end <= first:
        return None
    entries = file.read(entries_bytes, record.entries)
    return record if crc == crc32c(entries, crc32c(header[8:], salt)) else None


def _is_whole(file: File, record: Record) -> bool:
    return crc32c(file.read(record.payload_bytes, record.payload)) == record.payload_crc


def _aligned(piece: bytes) -> Iterator[int]:
    """Where a record may begin in what was read from an aligned offset."""
    found = piece.find(_RECORD_MAGIC)
    while found >= 0:
        if found % _ALIGN == 0:
            yield found
        found = piece.find(_RECORD_MAGIC, found + 1)


def _find_records(file: File, offset: int, size: int, salt: int) -> Iterator[Record]:
    """The whole records that stand anywhere behind an offset."""
    for at in range(_round_up(offset), size, _SEARCH_BYTES):
        for found in _aligned(file.read(_SEARCH_BYTES, at)):
            record = _parse_record(file, at + found, size, salt)
            if record is not None and _is_whole(file, record):
                yield record


def walk(
    file: File,
    segment: Segment,
    *,
    last: bool,
    is_whole: Callable[[File, Record], bool] = _is_whole,
) -> Iterator[Record]:
    """The records of a segment in order.

    Parameters
    ----------
    last : whether it is the newest segment, whose end may be torn
    is_whole : whether a record's payload matches its checksum

    Raises
    ------
    Damaged : something that had been on disk is unreadable; says where
    """
    size = file.size()
    offset = segment.records
    expected = segment.first
    while offset < size:
        record = _parse_record(file, offset, size, segment.salt)
        if record is None or record.first < expected or not is_whole(file, record):
            if not last or any(
                later.synced > expected
                for later in _find_records(file, offset + 1, size, segment.salt)
            ):
                raise Damaged(
                    f"{segment.path}: the record at byte {offset} (sequence {expected}) is "
                    f"damaged; `shmring journal truncate` cuts the journal there and keeps a copy"
                )
            return
        yield record
        offset, expected = record.next, record.end
