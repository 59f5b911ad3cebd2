"""What pyarrow does not write: big-endian numbers."""

from __future__ import annotations

import struct
from typing import TypeAlias, Union

import numpy as np
import pyarrow as pa

import shmring
from shmring.choices import KIND_ARROW_STREAM

# A number with its format; text; a list of tables; a table, by the indices of its fields.
Value: TypeAlias = Union["tuple[str, int]", str, "list[Table]", "Table"]
Table: TypeAlias = "dict[int, Value]"

# Of the union Type in Schema.fbs.
INT = 2


def _pad(out: bytearray, remainder: int = 0) -> None:
    while len(out) % 8 != remainder:
        out.append(0)


def _write(out: bytearray, value: Value, refs: list[tuple[int, Value]]) -> int:
    """Where the value stands; what it refers to is to be written behind it."""
    if isinstance(value, dict):
        fields = max(value, default=-1) + 1
        while (len(out) + 4 + 2 * fields) % 8 != 4:
            out.append(0)
        begin = len(out)
        places = {index: 4 + 8 * i for i, index in enumerate(value)}
        size = 4 + 8 * len(value)
        out += struct.pack("<HH", 4 + 2 * fields, size)
        out += struct.pack(f"<{fields}H", *(places.get(i, 0) for i in range(fields)))
        at = len(out)
        out += struct.pack("<i", at - begin) + bytes(8 * len(value))
        for index, field in value.items():
            if isinstance(field, tuple):
                struct.pack_into(f"<{field[0]}", out, at + places[index], field[1])
            else:
                refs.append((at + places[index], field))
        return at
    _pad(out)
    at = len(out)
    assert not isinstance(value, tuple)
    out += struct.pack("<I", len(value))
    if isinstance(value, str):
        out += value.encode() + b"\0"
    else:
        for table in value:
            refs.append((len(out), table))
            out += bytes(4)
    return at


def _flat(root: Table) -> bytes:
    out = bytearray(4)
    refs: list[tuple[int, Value]] = [(0, root)]
    written: dict[int, int] = {}
    for at, value in refs:  # which grows
        if written.get(id(value), -1) < at:  # offsets lead forwards only
            written[id(value)] = _write(out, value, refs)
        struct.pack_into("<I", out, at, written[id(value)] - at)
    _pad(out)
    return bytes(out)


def field_of(type_type: int, type_: Table, children: list[Table], name: str = "x") -> Table:
    """A nullable field of Schema.fbs."""
    return {0: name, 1: ("B", 1), 2: ("B", type_type), 3: type_, 5: children}


def schema_of(fields: list[Table], *, big_endian: bool = False) -> bytes:
    """An encapsulated schema message."""
    schema: Table = {0: ("h", big_endian), 1: fields}
    flat = _flat({0: ("h", 4), 1: ("B", 1), 2: schema, 3: ("q", 0)})
    return struct.pack("<II", 2**32 - 1, len(flat)) + flat


def push_stream(ring: shmring.Ring, schema: bytes, batch: pa.RecordBatch) -> None:
    message = schema + batch.serialize().to_pybytes()
    with ring.producer() as out, out.claim(len(message), align=len(schema)) as claim:
        claim.buffer[:] = message
        claim.commit(kind=KIND_ARROW_STREAM)


def test_a_reader_swaps_the_bytes_of_every_big_endian_batch(ring):
    swapped = np.array([1, 2, 3], ">i8").view("<i8")
    schema = schema_of([field_of(INT, {0: ("i", 64), 1: ("B", 1)}, [])], big_endian=True)
    with ring.arrow_reader("r") as reader:
        for _ in range(3):
            push_stream(ring, schema, pa.record_batch({"x": swapped}))
            assert reader.read(timeout=0).to_pydict() == {"x": [1, 2, 3]}
