"""docs/layout.md is true: a reader written from it agrees with the package, and its tables with C.

The first half is a second reader of ring files, written from that page and nothing else. It maps
the file read-only, holds nothing, and disturbs nobody.
"""

from __future__ import annotations

import mmap
import os
import re
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pytest

import shmring

NONE = 2**64 - 1
MAGIC = b"\x89SHMRNG\n"
CONTROL_BYTES = 32
SLOT_BYTES = 300
CURSORS_BYTES = 25600
SEAT_BYTES = 1280
BRANCH_BYTES = 384
BRANCHES = 64
LEASES = 48

SINGLE_PRODUCER, SCATTERED = 1, 2
ABORTED = 1
ONES, CHECKSUM = 1, 2
ROLES = ("attached", "producer", "member")

Fields = dict[str, tuple[int, str]]  # offset, format

HEADER: Fields = {
    "magic": (0, "8s"),
    "major": (8, "H"),
    "minor": (10, "H"),
    "crc": (12, "I"),
    "slots": (16, "Q"),
    "slot_bytes": (24, "I"),
    "control_bytes": (28, "I"),
    "seats": (32, "I"),
    "seat_bytes": (36, "I"),
    "branches": (40, "I"),
    "page_bytes": (44, "I"),
    "schema_offset": (48, "Q"),
    "schema_bytes": (56, "Q"),
    "schema_crc": (64, "I"),
    "options": (68, "I"),
    "cursors_offset": (72, "Q"),
    "seats_offset": (80, "Q"),
    "control_offset": (88, "Q"),
    "slots_offset": (96, "Q"),
    "file_bytes": (104, "Q"),
    "first_sequence": (112, "Q"),
    "created_ns": (120, "Q"),
    "uuid": (128, "16s"),
    "owner_uid": (144, "I"),
    "mode": (148, "I"),
}
HEADER_BYTES = 152

CURSORS: Fields = {
    "claim.v": (0, "Q"),
    "floor.v": (128, "Q"),
    "floor_next.v": (256, "Q"),
    "graph.active": (384, "Q"),
    "graph.roots": (392, "Q"),
    "graph.single_producer": (400, "I"),
    "graph.changes": (404, "I"),
    "graph.adopter": (408, "I"),
    "asleep.v": (512, "Q"),
    "producers.futex": (640, "I"),
    "producers.wanted": (648, "Q"),
    "look.v": (768, "Q"),
    "spare": (896, "128s"),
    "branch": (1024, f"{BRANCHES * BRANCH_BYTES}s"),
}

BRANCH: Fields = {
    "d.state": (0, "I"),
    "d.options": (4, "I"),
    "d.upstream": (8, "Q"),
    "d.followers": (16, "Q"),
    "d.members": (24, "4Q"),
    "d.orphans": (56, "I"),
    "d.moves": (60, "I"),
    "d.name": (64, "48s"),
    "d.first": (112, "Q"),
    "taken.v": (128, "Q"),
    "taken.ended": (136, "Q"),
    "taken.ends": (144, "Q"),
    "futex.v": (256, "I"),
}

SEAT: Fields = {
    "id.state": (0, "I"),
    "id.role": (4, "I"),
    "id.branch": (8, "I"),
    "id.pid": (12, "I"),
    "id.start_time": (16, "Q"),
    "id.joined_ns": (24, "Q"),
    "id.name": (32, "56s"),
    "intent.lo": (128, "Q"),
    "intent.n": (136, "Q"),
    "lease.hold": (256, "Q"),
    "lease.take_lo": (264, "Q"),
    "lease.take_end": (272, "Q"),
    "lease.adopt_from": (280, "Q"),
    "lease.adopt_lo": (288, "Q"),
    "lease.adopt_hi": (296, "Q"),
    "counters.messages": (384, "Q"),
    "counters.bytes": (392, "Q"),
    "counters.full_waits": (400, "Q"),
    "counters.empty_waits": (408, "Q"),
    "counters.contended": (416, "Q"),
    "counters.recovered": (424, "Q"),
    "counters.lapsed": (432, "Q"),
    "counters.dropped": (440, "Q"),
    "waits": (448, "I"),
    "range": (512, f"{2 * LEASES}Q"),
}

CONTROL: Fields = {
    "published": (0, "Q"),
    "time": (8, "Q"),
    "length": (16, "I"),
    "crc": (20, "I"),
    "run": (24, "I"),
    "seat": (28, "B"),
    "kind": (29, "B"),
    "flags": (30, "B"),
    "shift": (31, "B"),
}

STRUCTS: dict[str, Fields] = {
    "header": HEADER,
    "control": CONTROL,
    "cursors": CURSORS,
    "branch": BRANCH,
    "seat": SEAT,
}


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

    # --- what they mean --------------------------------------------------------

    def index(self, sequence: int) -> int:
        i = sequence % self.slots
        if self.header["options"] & SCATTERED:
            log2 = self.slots.bit_length() - 1
            return i >> 3 | (i & 7) << (log2 - 3)
        return i

    def is_published(self, sequence: int) -> bool:
        return self.control(self.index(sequence), "published") == sequence + 1

    def members(self, branch: int) -> Iterator[int]:
        words = self.branch(branch, "d.members")
        return (i for i in range(self.header["seats"]) if words[i // 64] >> i % 64 & 1)

    def ranges(self, seat: int) -> list[tuple[int, int]]:
        flat = self.seat(seat, "range")
        pairs = zip(flat[::2], flat[1::2], strict=True)
        return [(lo, hi) for lo, hi in pairs if lo != NONE]

    def active(self) -> list[int]:
        return [i for i in range(BRANCHES) if self.cursor("graph.active") >> i & 1]

    def reference_count(self, sequence: int) -> int:
        return sum(
            (self.branch(i, "taken.v") >> 8) <= sequence
            or any(lo <= sequence < hi for s in self.members(i) for lo, hi in self.ranges(s))
            for i in self.active()
        )

    def released(self, branch: int) -> int:
        holds = [self.seat(s, "lease.hold") for s in self.members(branch)]
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


# --- the package and the page ----------------------------------------------------

ROOT = Path(__file__).resolve().parent.parent
DOC = (ROOT / "docs" / "layout.md").read_text()


def documented(name: str) -> dict[str, tuple[int, int]]:
    """name -> (offset, bytes) of the table under "### struct <name>"."""
    section = DOC.split(f"### struct {name}\n")[1].split("\n#")[0]
    rows = re.findall(r"^\| (\d+) \| (\d+) \| `([\w.]+)` \|", section, re.MULTILINE)
    return {field: (int(offset), int(nbytes)) for offset, nbytes, field in rows}


def rows_of(ring: shmring.Ring) -> list[Row]:
    rows = ring.rows(0, ring.slots, 1 << 20)
    return sorted((Row(*row) for row in rows), key=lambda row: row.message_id)


def agree(ring: shmring.Ring) -> list[Row]:
    """What the reader sees, once it has been compared with what the package says."""
    with LayoutReader(ring.path) as reader:
        rows = reader.rows()
        assert rows == rows_of(ring)
        table = ring.table()
        assert table["slot"].to_pylist() == [row.slot for row in rows]
        assert table["message_id"].to_pylist() == [row.message_id for row in rows]
        assert table["message"].to_pylist() == [row.message[:300] for row in rows]
        assert table["reference_count"].to_pylist() == [row.reference_count for row in rows]

        stats = ring.stats()
        branches = sorted(stats["branches"], key=lambda branch: branch["id"])
        assert reader.cursor("claim.v") == stats["claimed"]
        assert reader.cursor("floor.v") == ring.floor
        assert reader.active() == [branch["id"] for branch in branches]
        for branch in branches:
            i = branch["id"]
            options = reader.branch(i, "d.options")
            assert reader.branch(i, "d.state") == 1
            assert reader.branch(i, "d.name").rstrip(b"\0").decode() == branch["name"]
            assert [bool(options & bit) for bit in (1, 2, 4)] == [
                branch[name] for name in ("exclusive", "ephemeral", "lapse")
            ]
            assert [
                b["name"] for b in branches if reader.branch(i, "d.upstream") >> b["id"] & 1
            ] == branch["after"]
            assert reader.branch(i, "taken.v") >> 8 == branch["position"]
            assert reader.released(i) == branch["released"]
            assert len(list(reader.members(i))) == branch["members"] + branch["orphans"]
        seats = {seat["seat"]: seat for seat in stats["participants"]}
        assert seats.keys() == {
            i for i in range(reader.header["seats"]) if reader.seat(i, "id.state")
        }
        for i, seat in seats.items():
            assert reader.seat(i, "id.state") == (2 if seat["orphaned"] else 1)
            assert ROLES[reader.seat(i, "id.role")] == seat["role"]
            assert reader.seat(i, "id.pid") == seat["pid"]
            assert reader.seat(i, "id.joined_ns") == seat["joined_ns"]
            assert reader.seat(i, "id.name").rstrip(b"\0").decode() == seat["name"]
            for word, key in (("intent.lo", "claim"), ("lease.hold", "hold")):
                value = reader.seat(i, word)
                assert (None if value == NONE else value) == seat[key]
            for field in (name for name in SEAT if name.startswith("counters.")):
                assert reader.seat(i, field) == seat[field.removeprefix("counters.")]
    return rows


@pytest.mark.parametrize("name", STRUCTS)
def test_tables_of_the_page_are_what_the_reader_uses(name):
    used = {field: (at, struct.calcsize(f"<{fmt}")) for field, (at, fmt) in STRUCTS[name].items()}
    assert documented(name) == used


def test_tables_of_the_page_are_what_the_core_uses(tmp_path):
    lines = ['#include "layout.h"']
    for name in STRUCTS:
        for field, (offset, nbytes) in documented(name).items():
            lines.append(
                f"static_assert(offsetof(struct {name}, {field}) == {offset} && "
                f'sizeof(((struct {name} *)0)->{field}) == {nbytes}, "{name}.{field}");'
            )
    enums = re.findall(r"^\| (\d+) \| `((?:OPT|KIND|FLAG)_\w+)` \|", DOC, re.MULTILINE)
    assert len(enums) == 10 + 5 + 2
    lines += [f'static_assert({name} == {value}, "{name}");' for value, name in enums]
    for number, names in {
        0: ["SEAT_FREE", "BRANCH_FREE", "ROLE_ATTACHED"],
        1: ["SEAT_ACTIVE", "BRANCH_ACTIVE", "ROLE_PRODUCER", "BRANCH_EXCLUSIVE", "TAKE_PENDING"],
        2: ["SEAT_ORPHAN", "BRANCH_DROPPING", "ROLE_MEMBER", "BRANCH_EPHEMERAL"],
        3: ["BRANCH_DROPPED"],
        4: ["BRANCH_LAPSE"],
        8: ["ADMIN_LOCK_OFFSET"],
        48: ["LEASES"],
        64: ["BRANCHES", "BODY_ALIGN"],
        248: ["MAX_SEATS"],
        255: ["NOBODY"],
        1024: ["MIN_SLOTS"],
        BRANCH_BYTES: ["sizeof(struct branch)"],
        CONTROL_BYTES: ["sizeof(struct control)"],
        CURSORS_BYTES: ["sizeof(struct cursors)"],
        HEADER_BYTES: ["sizeof(struct header)"],
        SEAT_BYTES: ["sizeof(struct seat)"],
        SLOT_BYTES: ["SLOT_BYTES"],
    }.items():
        lines += [f'static_assert({c} == {number}, "{c}");' for c in names]
    source = tmp_path / "layout.c"
    source.write_text("\n".join(lines) + "\n")
    include = ROOT / "native" / "core" / "src"
    done = subprocess.run(
        ["cc", "-std=c11", "-fsyntax-only", "-I", str(include), str(source)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_fresh_ring_is_empty_and_its_header_says_what_was_asked(name):
    schema = pa.schema([("a", pa.int64())])
    with shmring.create(
        name, slots=2048, participants=17, schema=schema, first_sequence=5_000, temporary=True
    ) as ring:
        assert agree(ring) == []
        with LayoutReader(ring.path) as reader:
            assert reader.header["slots"] == 2048
            assert reader.header["seats"] == 17
            assert reader.header["first_sequence"] == reader.cursor("floor_next.v") == 5_000
            assert reader.header["uuid"].hex() == ring.info.uuid
            assert pa.ipc.read_schema(pa.py_buffer(reader.schema)) == schema


@pytest.mark.parametrize("options", [{}, {"checksum": True}, {"scattered": True}])
def test_one_slot_messages_leased_released_and_wrapped(name, options):
    with (
        shmring.create(name, slots=1024, temporary=True, **options) as ring,
        ring.producer() as out,
        ring.consumer("a", start="earliest") as a,
        ring.consumer("b", start="earliest") as b,
    ):
        for i in range(1500):
            out.push(b"%d" % i * (i % 70))
            if i < 1400:
                a.pop()
            if i < 1300:
                b.pop()
        with a.lease(), b.lease():
            rows = agree(ring)
        assert [row.message_id for row in rows if row.reference_count] == list(range(1300, 1500))
        counts = {row.message_id: row.reference_count for row in rows}
        assert counts[1300] == 1
        assert counts[1400] == 2
        assert counts[1499] == 2


def test_messages_of_several_slots_cross_the_wrap(ring):
    data = np.random.default_rng(1).integers(0, 256, 100 * 300, np.uint8).tobytes()
    with ring.producer() as out, ring.consumer("a", start="earliest") as inp:
        for _ in range(25):
            out.push(data[:29_777])
            assert inp.pop() == data[:29_777]
        out.push(data)
        out.push(b"")
        rows = agree(ring)
    assert rows[-2].message == data
    assert any(row.slot + 100 > 1024 for row in rows)


@pytest.mark.parametrize("scattered", [False, True])
def test_batched_run_is_one_run_of_messages(name, scattered):
    with (
        shmring.create(name, slots=1024, scattered=scattered, temporary=True) as ring,
        ring.producer() as out,
        ring.consumer("a", start="earliest") as inp,
    ):
        first = out.push_many([b"row %d" % i for i in range(50)])
        with inp.lease_many(20):
            rows = agree(ring)
        assert [row.message for row in rows] == [b"row %d" % i for i in range(50)]
        with LayoutReader(ring.path) as reader:
            runs = [reader.control(reader.index(first + i), "run") for i in range(50)]
            assert runs == list(range(50, 0, -1))


def test_aborted_claims_and_open_ones_are_no_messages(ring):
    with ring.producer() as out, ring.producer() as other:
        out.push(b"before")
        with pytest.raises(ZeroDivisionError), out.claim(1000):
            raise ZeroDivisionError
        out.push(b"after")
        claim = other.claim(600)
        out.push(b"behind the open claim")
        rows = agree(ring)
        assert [row.message for row in rows] == [b"before", b"after", b"behind the open claim"]
        with LayoutReader(ring.path) as reader:
            assert list(reader.walk(0)) == [(0, 0), (1, ABORTED), (5, 0)]
        claim.abort()
        agree(ring)


def test_rest_of_a_low_level_claim_is_an_aborted_run(ring):
    with ring.producer() as out:
        first = out.next(5)
        out.done(first + 1, 10)
        assert len(agree(ring)) == 2
        with LayoutReader(ring.path) as reader:
            assert list(reader.walk(first)) == [(0, 0), (1, 0), (2, ABORTED)]


@pytest.mark.parametrize("stored", [False, True])
def test_arrow_body_lies_on_a_64_byte_boundary(name, stored):
    batch = pa.record_batch({"x": np.arange(1000.0), "s": [str(i) for i in range(1000)]})
    schema = batch.schema if stored else None
    with (
        shmring.create(name, slots=1024, schema=schema, temporary=True) as ring,
        ring.arrow_writer(None if stored else batch.schema) as writer,
    ):
        for _ in range(5):
            writer.write(batch)
        rows = agree(ring)
        assert len(rows) == 5
        for row in rows:
            with LayoutReader(ring.path) as reader:
                shift = reader.control(row.slot, "shift")
            if stored:
                assert row.kind == 3
                found = pa.ipc.read_record_batch(pa.py_buffer(row.message), batch.schema)
            else:
                assert row.kind == 4
                found = pa.ipc.open_stream(row.message).read_next_batch()
            assert found == batch
            body = row.message.index(np.arange(1000.0).tobytes())
            assert (300 * row.slot + shift + body) % 64 == 0


def test_orphans_of_a_killed_member_are_seen(ring, child):
    with ring.producer() as out:
        out.push_many([b"%d" % i for i in range(10)])
        member = child(
            """
            import sys, shmring
            ring = shmring.attach(sys.argv[1])
            inp = ring.consumer("a", start="earliest")
            lease = inp.lease_many(4)
            print("holds")
            sys.stdin.readline()
            """,
            ring.name,
        )
        assert member.line() == "holds"
        member.kill()
        ring.recover()
        rows = agree(ring)
        assert [row.reference_count for row in rows] == [1] * 10
        with LayoutReader(ring.path) as reader:
            (branch,) = reader.active()
            (seat,) = reader.members(branch)
            assert reader.branch(branch, "d.orphans") == 1
            assert reader.seat(seat, "id.state") == 2
            assert reader.ranges(seat) == [(0, 4)]


def test_reader_refuses_what_is_damaged(ring, tmp_path):
    with ring.producer() as out:
        out.push(b"x" * 100)
    raw = bytearray(Path(ring.path).read_bytes())
    copy = tmp_path / "copy"

    def open_with(at: int, value: bytes) -> LayoutReader:
        copy.write_bytes(bytes(raw[:at]) + value + bytes(raw[at + len(value) :]))
        return LayoutReader(copy)

    for at in (0, 8, 16, 72, 148):
        with pytest.raises(NotARing):
            open_with(at, b"\xfe")
    control = int.from_bytes(raw[88:96], "little")
    with open_with(control + 24, bytes(4)) as reader, pytest.raises(Damage):
        reader.rows()
