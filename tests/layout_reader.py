"""A second reader of ring files, made of docs/layout.md, tables and all, and nothing else.

It maps the file read-only, holds nothing, and disturbs nobody.
"""

from __future__ import annotations

import mmap
import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

NONE = 2**64 - 1
MAGIC = int.from_bytes(b"\x89SHMRNG\n", "little")
CONTROL_BYTES = 32
SLOT_BYTES = 300
CURSORS_BYTES = 25600
SEAT_BYTES = 1280
BRANCH_BYTES = 384
BRANCHES = 64
LEASES = 48

ABORTED = 1
ONES, CHECKSUM = 1, 2
ROLES = ("attached", "producer", "consumer")

Fields = dict[str, tuple[int, str]]  # offset, format

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "layout.md").read_text()
# struct formats of the fields that are neither a single number nor bytes.
WORDS = {"d.consumers": "4Q", "range": f"{2 * LEASES}Q"}
NUMBERS = {1: "B", 2: "H", 4: "I", 8: "Q"}


def fields_of(struct_name: str) -> Fields:
    """Return the fields in the table under "### struct <name>"."""
    section = PAGE.split(f"### struct {struct_name}\n")[1].split("\n#")[0]
    rows = re.findall(r"^\| (\d+) \| (\d+) \| `([\w.]+)` \|", section, re.MULTILINE)
    return {
        name: (int(at), WORDS.get(name) or NUMBERS.get(int(nbytes)) or f"{nbytes}s")
        for at, nbytes, name in rows
    }


STRUCTS = {name: fields_of(name) for name in ("header", "control", "cursors", "branch", "seat")}
HEADER, CONTROL, CURSORS, BRANCH, SEAT = STRUCTS.values()
HEADER_BYTES = 4096


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


class NotARing(Exception):
    """The file is no ring, or one that contradicts itself."""


class Damage(Exception):
    """A control entry cannot be true."""


class Row(NamedTuple):
    slot: int
    message_id: int
    time: int
    length: int
    reference_count: int
    kind: int
    message: bytes


class LayoutReader:
    """Maps a ring read-only and reads it word by word."""

    def __init__(self, path: str | Path) -> None:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < HEADER_BYTES:
                raise NotARing("too short")
            self.map = mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ)
        raw = self.map[:HEADER_BYTES]
        self.header = {
            name: struct.unpack_from(f"<{fmt}", raw, at)[0] for name, (at, fmt) in HEADER.items()
        }
        self.slots = self.header["slots"]
        self._check(raw, size)

    def _check(self, raw: bytes, size: int) -> None:
        h = self.header
        # CHANGE: edit this for a new version of the layout
        if h["magic"] != MAGIC or h["major"] != 1:
            raise NotARing("no magic, or another layout")
        if crc32c(bytes(8) + raw[8:12] + bytes(4) + raw[16:]) != h["crc"]:
            raise NotARing("checksum")

        def up(n: int) -> int:
            return -(-n // h["page_bytes"]) * h["page_bytes"]

        at = [up(4096)]
        for nbytes in (h["schema_bytes"], CURSORS_BYTES, h["seats"] * SEAT_BYTES, self.slots * 32):
            at.append(at[-1] + up(nbytes))
        found = [
            h[f"{region}_offset"] for region in ("schema", "cursors", "seats", "control", "slots")
        ]
        if found != at or h["file_bytes"] != at[-1] + self.slots * SLOT_BYTES != size:
            raise NotARing("contradicts itself")
        if h["schema_crc"] != (crc32c(self.schema) if h["schema_bytes"] else 0):
            raise NotARing("schema")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.map.close()

    @property
    def schema(self) -> bytes:
        at = self.header["schema_offset"]
        return self.map[at : at + self.header["schema_bytes"]]

    # --- words ---------------------------------------------------------------

    def _word(self, base: int, fields: Fields, name: str) -> Any:
        at, fmt = fields[name]
        values = struct.unpack_from(f"<{fmt}", self.map, base + at)
        return values if len(values) > 1 else values[0]

    def cursor(self, name: str) -> int:
        return self._word(self.header["cursors_offset"], CURSORS, name)

    def branch(self, i: int, name: str) -> Any:
        at = self.header["cursors_offset"] + CURSORS["branch"][0] + i * BRANCH_BYTES
        return self._word(at, BRANCH, name)

    def seat(self, i: int, name: str) -> Any:
        return self._word(self.header["seats_offset"] + i * SEAT_BYTES, SEAT, name)

    def control(self, index: int, name: str) -> int:
        return self._word(self.header["control_offset"] + index * CONTROL_BYTES, CONTROL, name)

    # --- values computed from the fields --------------------------------------

    def index(self, sequence: int) -> int:
        return sequence % self.slots

    def is_published(self, sequence: int) -> bool:
        return self.control(self.index(sequence), "published") == sequence + 1

    def consumers(self, branch: int) -> Iterator[int]:
        words = self.branch(branch, "d.consumers")
        return (i for i in range(self.header["seats"]) if words[i // 64] >> i % 64 & 1)

    def ranges(self, seat: int) -> list[tuple[int, int]]:
        flat = self.seat(seat, "range")
        pairs = zip(flat[::2], flat[1::2], strict=True)
        return [(lo, hi % 2**56) for lo, hi in pairs if lo != NONE]

    def active(self) -> list[int]:
        return [i for i in range(BRANCHES) if self.cursor("graph.active") >> i & 1]

    def reference_count(self, sequence: int) -> int:
        return sum(
            (self.branch(i, "taken.v") >> 8) <= sequence
            or any(lo <= sequence < hi for s in self.consumers(i) for lo, hi in self.ranges(s))
            for i in self.active()
        )

    def released(self, branch: int) -> int:
        holds = [self.seat(s, "lease.hold") for s in self.consumers(branch)]
        return min([self.branch(branch, "taken.v") >> 8, *holds])

    def _in_open_claim(self, sequence: int) -> bool:
        for i in range(self.header["seats"]):
            lo = self.seat(i, "intent.lo")
            if lo <= sequence < lo + self.seat(i, "intent.n") and not self.is_published(lo):
                return True
        return False

    def payload(self, index: int, shift: int, length: int) -> bytes:
        start = self.header["slots_offset"]
        end = self.header["file_bytes"]
        at = start + index * SLOT_BYTES + shift
        piece = self.map[at : min(at + length, end)]
        return piece + self.map[start : start + length - len(piece)]

    def row(self, index: int) -> Row | None:
        published = self.control(index, "published")
        sequence = published - 1
        if (
            published == 0
            or self.index(sequence) != index
            or sequence < self.cursor("floor.v")
            or self._in_open_claim(sequence)
        ):
            return None
        entry = {name: self.control(index, name) for name in CONTROL}
        slots = 1 if entry["flags"] & ONES else entry["run"]
        if not 0 < entry["run"] <= self.slots or entry["length"] + entry["shift"] > slots * 300:
            raise Damage(f"entry of {sequence}")
        if entry["kind"] == ABORTED:
            return None
        # CHANGE: edit this for a new option of a ring
        message = self.payload(index, entry["shift"], entry["length"])
        if entry["flags"] & CHECKSUM and crc32c(message) != entry["crc"]:
            raise Damage(f"payload of {sequence}")
        count = self.reference_count(sequence)
        if self.cursor("floor.v") > sequence or self.control(index, "published") != published:
            return None
        return Row(index, sequence, entry["time"], entry["length"], count, entry["kind"], message)

    def rows(self) -> list[Row]:
        found = (self.row(i) for i in range(self.slots))
        return sorted((row for row in found if row), key=lambda row: row.message_id)

    def walk(self, sequence: int) -> Iterator[tuple[int, int]]:
        """(sequence, kind) of what is published from the boundary `sequence` on."""
        while self.is_published(sequence):
            index = self.index(sequence)
            yield sequence, self.control(index, "kind")
            run = self.control(index, "run")
            sequence += 1 if self.control(index, "flags") & ONES else run
