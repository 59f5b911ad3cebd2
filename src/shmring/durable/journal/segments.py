"""The journal's files: segments of records, each record a piece of the ring as it was.

A segment is a file of frames (base/frames.py), named by its first sequence, ``%020d.journal``.  A
record is a frame; its numbers are sequences, and its payload is the slots, 300 bytes each::

    file header, the journal's own            frame header, the journal's own
    24 16  uuid of the ring                   56  8  written when
    40  8  sequence of its first record
    48  8  made when                          entry of the table, 20 bytes: a message
    56  4  bytes of a slot, 300                0  8  time of the message, ns
    64  .  the ring's Arrow schema             8  4  its first slot in this record
           (an IPC message)                   12  4  its length
                                              16  1  its kind
                                              17  1  where it begins in its slot
                                              18  2  zero

Both times are the journal's own: ns since 1970 when it began, plus the time for which it ran.

All records begin at multiples of 64.  The payload has the same address modulo 64 as its first slot
had in the ring: data that was aligned there is aligned here.

A segment is synced as a whole before the next one is made, and its header before its first
record.  So only the newest segment can be torn; an unreadable part of any other one is damage.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from shmring._shmring import SLOT_BYTES, crc32c
from shmring.durable.base.files import Buffer, Disk, File
from shmring.durable.base.frames import HEADER_BYTES, FileFormat, Frame, Read, places_of_frames
from shmring.errors import Damaged

SUFFIX = ".journal"
ENTRY = struct.Struct("<QIIBB2x")
_ALIGN = 64
FORMAT = FileFormat(
    b"SHMRJNL1", 1, "<16sQQI", "journal segment", entry_bytes=ENTRY.size, align=_ALIGN
)


@dataclass(frozen=True, slots=True)
class Segment:
    """The header of a segment, and the place where its records begin."""

    path: str
    uuid: bytes
    first: int
    created_ns: int
    schema: bytes
    records: int
    salt: int


def next_record(record: Frame) -> int:
    """The place in the file where the next record begins."""
    return FORMAT.next_place(record.payload_end)


def segment_path(directory: str, first: int) -> str:
    """The path of the segment that begins at a sequence."""
    return os.path.join(directory, f"{first:020d}{SUFFIX}")


def segment_names(disk: Disk, directory: str) -> list[int]:
    """First sequences of the segments in a directory, in order."""
    stems = (name.removesuffix(SUFFIX) for name in disk.names(directory) if name.endswith(SUFFIX))
    return sorted(int(stem) for stem in stems if len(stem) == 20 and stem.isdecimal())


def encode_segment(uuid: bytes, first: int, created_ns: int, schema: bytes) -> bytes:
    """The beginning of a segment, up to its first record."""
    data = FORMAT.encode_header(uuid, first, created_ns, SLOT_BYTES, extra=schema)
    return data.ljust(FORMAT.next_place(len(data)), b"\0")


def open_segment(file: File, path: str) -> Segment:
    """Read and check a segment's header.

    Raises
    ------
    Damaged : it is not a segment, or does not match its checksum
    VersionMismatch : another version wrote it
    """
    header = FORMAT.decode_header(file.read, path)
    uuid, first, created_ns, _ = header.fields
    records = FORMAT.next_place(HEADER_BYTES + len(header.extra))
    return Segment(path, uuid, first, created_ns, header.extra, records, header.salt)


def was_begun(file: File) -> bool:
    """Whether a segment whose header is unreadable had records; a header is synced before them."""
    return any(place % _ALIGN == 0 for place in places_of_frames(file.read, 0, file.size()))


def encode_record(
    place: int,
    *,
    salt: int,
    first: int,
    end: int,
    synced: int,
    entries: Buffer,
    slots: list[Buffer],
    slot_address: int,
    written_ns: int,
) -> list[Buffer]:
    """Return the buffers of a record for `place`, up to where the next one will begin.

    Parameters
    ----------
    entries : each a packed ENTRY
    slots : the payload, in one piece or several; it is not copied
    slot_address : address of the first slot in its ring, in bytes
    """
    nbytes = sum(map(len, slots))
    behind = place + HEADER_BYTES + len(entries)
    payload = behind + (slot_address - behind) % _ALIGN
    payload_crc = 0
    for piece in slots:
        payload_crc = crc32c(piece, payload_crc)
    header = FORMAT.encode_frame(
        salt,
        place,
        first=first,
        end=end,
        synced=synced,
        payload_bytes=nbytes,
        payload_crc=payload_crc,
        table=entries,
        entries=len(entries) // ENTRY.size,
        payload_offset=payload - place,
        own=written_ns,
    )
    behind_slots = FORMAT.next_place(payload + nbytes) - payload - nbytes
    return [header, entries, bytes(payload - behind), *slots, bytes(behind_slots)]


def walk(read: Read, size: int, segment: Segment, *, last: bool) -> Iterator[Frame]:
    """Yield the records of a segment of this size in order.

    Parameters
    ----------
    last : whether it is the newest segment, whose end may be torn

    Raises
    ------
    Damaged : data that had been on disk is unreadable; the text says where
    """
    place, expected = segment.records, segment.first
    for record in FORMAT.walk(read, place, size, segment.salt, expected):
        yield record
        place, expected = next_record(record), record.end
    if place < size and (
        not last or FORMAT.find_witness(read, place + 1, size, segment.salt, expected)
    ):
        raise Damaged(
            f"{segment.path}: the record at byte {place} (sequence {expected}) is damaged; "
            f"`shmring journal truncate` cuts the journal there and keeps a copy"
        )
