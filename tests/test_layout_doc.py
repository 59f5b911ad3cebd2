"""docs/layout.md is true: its tables agree with C, a reader made of it with the package."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from layout_reader import (
    ABORTED,
    BRANCH_BYTES,
    CONTROL_BYTES,
    CURSORS_BYTES,
    HEADER_BYTES,
    NONE,
    PAGE,
    ROLES,
    SEAT,
    SEAT_BYTES,
    SLOT_BYTES,
    STRUCTS,
    Damage,
    LayoutReader,
    NotARing,
    Row,
)
from programs import ended

import shmring

ROOT = Path(__file__).resolve().parent.parent


def rows_of(ring: shmring.Ring) -> list[Row]:
    rows = ring.rows(0, ring.slots, 1 << 20)
    return sorted((Row(*row) for row in rows), key=lambda row: row.message_id)


def agree(ring: shmring.Ring) -> list[Row]:
    """Return the rows that the reader sees, after comparing them with the package's."""
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
                branch[name] for name in ("exclusive", "ephemeral", "drop_oldest")
            ]
            assert [
                b["name"] for b in branches if reader.branch(i, "d.upstream") >> b["id"] & 1
            ] == branch["after"]
            assert reader.branch(i, "taken.v") >> 8 == branch["position"]
            assert reader.released(i) == branch["released"]
            assert len(list(reader.consumers(i))) == branch["consumers"] + branch["orphans"]
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
                value = reader.seat(i, field)
                key = field.partition(".")[2]
                assert value == (bytes(len(value)) if key == "reserved" else seat[key])
    return rows


def test_tables_of_the_page_are_what_the_core_uses(tmp_path):
    lines = ['#include "layout.h"']
    for name, fields in STRUCTS.items():
        for field, (offset, words) in fields.items():
            nbytes = struct.calcsize(f"<{words}")
            lines.append(
                f"static_assert(offsetof(struct {name}, {field}) == {offset} && "
                f'sizeof(((struct {name} *)0)->{field}) == {nbytes}, "{name}.{field}");'
            )
    enums = re.findall(r"^\| (\d+) \| `((?:OPT|KIND|FLAG)_\w+)` \|", PAGE, re.MULTILINE)
    core = (ROOT / "native/core/src/layout.h").read_text()
    assert set(enums) == {
        (value, name) for name, value in re.findall(r"\b((?:OPT|KIND|FLAG)_\w+) = (\d+)", core)
    }
    lines += [f'static_assert({name} == {value}, "{name}");' for value, name in enums]
    for number, names in {
        0: ["SEAT_FREE", "BRANCH_FREE", "ROLE_ATTACHED"],
        1: ["SEAT_ACTIVE", "BRANCH_ACTIVE", "ROLE_PRODUCER", "BRANCH_EXCLUSIVE", "TAKE_PENDING"],
        2: ["SEAT_ORPHAN", "BRANCH_DROPPING", "ROLE_CONSUMER", "BRANCH_EPHEMERAL"],
        3: ["BRANCH_DROPPED"],
        4: ["BRANCH_DROP_OLDEST"],
        8: ["ADMIN_LOCK_OFFSET"],
        48: ["LEASES"],
        64: ["BRANCHES", "BODY_ALIGN"],
        248: ["MAX_PARTICIPANTS"],
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
    (version,) = re.findall(r"every byte of a ring, layout (\d+)\.(\d+)", PAGE)
    assert re.findall(r"\| `(?:major|minor)` \| (\d+)", PAGE) == [*version]
    (used,) = re.findall(r"the first (\d+) of them used", PAGE)
    lines += [
        f'static_assert(LAYOUT_MAJOR == {version[0]} && LAYOUT_MINOR == {version[1]}, "version");',
        f'static_assert(offsetof(struct header, reserved) == {used}, "bytes in use");',
    ]
    source = tmp_path / "layout.c"
    source.write_text("\n".join(lines) + "\n")
    include = ROOT / "native" / "core" / "src"
    ended("cc", "-std=c11", "-fsyntax-only", "-I", include, source, check=True)


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


@pytest.mark.parametrize("options", [{}, {"checksum": True}])
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


def test_batched_run_is_one_run_of_messages(ring):
    with (
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


def test_rest_of_a_low_level_claim_is_an_aborted_run(ring, out):
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


def test_orphans_of_a_killed_consumer_are_seen(ring, child):
    with ring.producer() as out:
        out.push_many([b"%d" % i for i in range(10)])
        consumer = child(
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
        assert consumer.line() == "holds"
        consumer.kill()
        ring.recover()
        rows = agree(ring)
        assert [row.reference_count for row in rows] == [1] * 10
        with LayoutReader(ring.path) as reader:
            (branch,) = reader.active()
            (seat,) = reader.consumers(branch)
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
