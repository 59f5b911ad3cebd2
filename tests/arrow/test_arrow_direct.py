"""Batches that the binding writes by itself, from the arrays into the slots, read by pyarrow."""

from __future__ import annotations

import decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shmring
from shmring._shmring import arrow_layout, push_batch
from shmring.arrow.batches import BatchEncoder, most_bytes
from shmring.common.arguments import KIND_ARROW_BATCH, KIND_ARROW_STREAM

# --- random batches -----------------------------------------------------------------------------

LEAVES = [
    (pa.null(), st.none()),
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-128, 127)),
    (pa.uint16(), st.integers(0, 2**16 - 1)),
    (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    (pa.int16(), st.integers(0, 100)),
    (pa.int64(), st.integers(0, 100)),
    (pa.uint8(), st.integers(0, 100)),
    (pa.uint32(), st.integers(0, 100)),
    (pa.uint64(), st.integers(0, 100)),
    (pa.float32(), st.integers(0, 100)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.timestamp("us", tz="UTC"), st.integers(0, 2**40)),
    (pa.month_day_nano_interval(), st.tuples(*[st.integers(0, 9)] * 3)),
    (pa.decimal128(9, 2), st.integers(-999, 999).map(lambda n: decimal.Decimal(n) / 4)),
    (pa.decimal256(50, 1), st.integers(-999, 999).map(decimal.Decimal)),
    (pa.binary(3), st.binary(min_size=3, max_size=3)),
    (pa.binary(0), st.just(b"")),
    (pa.string(), st.text(max_size=9)),
    (pa.large_string(), st.text(max_size=9)),
    (pa.binary(), st.binary(max_size=9)),
    (pa.large_binary(), st.binary(max_size=9)),
]


def nested(inner):
    """A type around another one, and its values."""

    def around(pair):
        kind, values = pair
        some = st.one_of(values, st.none())
        several = st.lists(some, max_size=4)
        return st.sampled_from(
            [
                (pa.list_(kind), several),
                (pa.large_list(kind), several),
                (pa.list_(kind, 2), st.tuples(some, some).map(list)),
                (pa.list_(kind, 0), st.just([])),
                (
                    pa.map_(pa.string(), kind),
                    st.lists(st.tuples(st.text(max_size=3), some), max_size=3),
                ),
                (pa.struct([("x", kind), ("y", pa.bool_())]), st.fixed_dictionaries({"x": some})),
                (pa.struct([]), st.just({})),
            ]
        )

    return inner.flatmap(around)


TYPES = st.recursive(st.sampled_from(LEAVES), nested, max_leaves=3)


@st.composite
def columns(draw, rows: int):
    """An array whose rows lie at some offset, with or without nulls."""
    kind, values = draw(TYPES)
    if draw(st.booleans()):
        values = st.one_of(values, st.none())
    before = draw(st.integers(0, 17))
    behind = draw(st.integers(0, 9))
    size = before + rows + behind
    array = pa.array(draw(st.lists(values, min_size=size, max_size=size)), kind)
    return array.slice(before, rows)


@st.composite
def batches(draw):
    rows = draw(st.integers(0, 40))
    arrays = draw(st.lists(columns(rows), max_size=3))
    schema = pa.schema([(f"column {i}", array.type) for i, array in enumerate(arrays)])
    if not arrays:
        return pa.RecordBatch.from_arrays([], schema=schema)
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    first = draw(st.integers(0, rows))
    return batch.slice(first, draw(st.integers(0, rows - first)))


class Foreign:
    """An object of a library that has nothing of pyarrow's."""

    def __init__(self, array: pa.Array | pa.RecordBatch) -> None:
        self._array = array

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]:
        return self._array.__arrow_c_array__()


@pytest.mark.slow
@pytest.mark.parametrize("examples", [30, pytest.param(1000, marks=pytest.mark.long)])
def test_what_is_written_is_what_pyarrow_reads(name, examples):
    with (
        shmring.create(name, slots=4096, temporary=True) as ring,
        ring.producer() as out,
        ring.arrow_reader("r") as reader,
    ):

        @settings(max_examples=examples, deadline=None)
        @given(batches())
        def check(batch):
            message_id = BatchEncoder(batch.schema).push_within(
                most_bytes(ring.slots), out, batch, kind=KIND_ARROW_STREAM, timeout=0
            )
            assert message_id is not None
            got = reader.read(timeout=0)
            got.validate(full=True)
            assert got.equals(batch, check_metadata=True)

        check()


def test_a_struct_that_begins_anywhere_is_a_batch(both_ends):
    whole = pa.array([{"x": i, "s": "x" * i, "b": i % 3 == 0} for i in range(30)])
    schema = pa.schema(list(whole.type))
    with both_ends(schema) as (_, writer, reader):
        for first in range(20):
            part = whole.slice(first, 9)
            writer.write(Foreign(part))
            assert reader.read(timeout=0).to_struct_array().to_pylist() == part.to_pylist()


def test_a_struct_with_nulls_is_no_batch(name):
    array = pa.array([{"x": 1}, None])
    with (
        shmring.create(
            name, slots=1024, schema=pa.schema(list(array.type)), temporary=True
        ) as ring,
        ring.arrow_writer() as writer,
        pytest.raises(TypeError, match="no record batch"),
    ):
        writer.write(Foreign(array))


@pytest.mark.parametrize("rows", [1_000, 200_000], ids=["with the GIL", "without the GIL"])
def test_batches_of_any_size_are_one_copy_away(both_ends, rows, monkeypatch):
    def refuse(*_: object) -> None:
        raise AssertionError("pyarrow was to write this")

    monkeypatch.setattr(BatchEncoder, "pieces", refuse)
    batch = pa.record_batch(
        {"x": np.arange(rows), "s": pa.array(["text", None] * (rows // 2)), "b": [True] * rows}
    )
    with both_ends(batch.schema, slots=65_536) as (ring, writer, reader):
        for _ in range(5):
            message_id = writer.write(batch)
            assert ring.rows(message_id % ring.slots)[0][5] == KIND_ARROW_BATCH
            got = reader.read(timeout=0)
            assert got == batch
            assert got.column(0).buffers()[0] is None  # no nulls, no bitmap
            assert got.column(1).null_count == rows // 2


# --- batches left to pyarrow, or refused --------------------------------------------------------


@pytest.mark.parametrize(
    "kind",
    [
        pa.string_view(),
        pa.list_view(pa.int8()),
        pa.dictionary(pa.int8(), pa.string()),
        pa.run_end_encoded(pa.int16(), pa.int8()),
        pa.dense_union([pa.field("a", pa.int8())]),
        pa.list_(pa.struct([("v", pa.binary_view())])),
    ],
    ids=str,
)
def test_other_layouts_are_left_to_pyarrow(kind):
    assert arrow_layout(pa.schema([("x", pa.int8()), ("y", kind)])) is None


SCHEMA = pa.schema([pa.field("x", pa.int64(), metadata={"k": "v"})])

OTHERS = {
    "name": [pa.field("y", pa.int64())],
    "type": [pa.field("x", pa.timestamp("ns"))],
    "nullability": [pa.field("x", pa.int64(), nullable=False)],
    "extension": [pa.field("x", pa.opaque(pa.int64(), "t", "v"))],
    "columns": [pa.field("x", pa.int64()), pa.field("y", pa.int64())],
}


@pytest.mark.parametrize("fields", OTHERS.values(), ids=OTHERS.keys())
def test_batches_of_another_schema_are_refused(name, fields):
    other = pa.schema(fields).empty_table().combine_chunks()
    batch = pa.RecordBatch.from_arrays([pa.array([], f.type) for f in fields], schema=other.schema)
    with (
        shmring.create(name, slots=1024, schema=SCHEMA, temporary=True) as ring,
        ring.arrow_writer() as writer,
    ):
        with pytest.raises(shmring.SchemaMismatch):
            writer.write(batch)
        assert ring.claimed == 0


def test_metadata_of_fields_and_schemas_may_differ(both_ends):
    with both_ends(SCHEMA) as (_, writer, reader):
        for schema in (SCHEMA.remove_metadata(), SCHEMA.with_metadata({"a": "b"})):
            writer.write(pa.record_batch([[1]], schema=schema))
            assert reader.read(timeout=0).equals(
                pa.record_batch([[1]], schema=SCHEMA), check_metadata=True
            )


def test_arrays_whose_offsets_go_backwards_are_refused(name):
    offsets = np.array([0, 4], np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"text")]
    array = pa.Array.from_buffers(pa.string(), 1, buffers)
    batch = pa.RecordBatch.from_arrays([array], ["s"])
    offsets[:] = [4, 2]
    with (
        shmring.create(name, slots=1024, schema=batch.schema, temporary=True) as ring,
        ring.arrow_writer() as writer,
    ):
        with pytest.raises(ValueError, match='"s" is damaged: its offsets go backwards'):
            writer.write(batch)
        assert ring.claimed == 0


def test_a_head_that_would_shift_the_body_is_refused(out):
    layout = arrow_layout(SCHEMA)
    batch = pa.record_batch([[1]], schema=SCHEMA)
    assert layout
    with pytest.raises(ValueError, match="multiple of 4"):
        push_batch(out, layout, b"x", 16, 10**6, batch, 0)
    assert push_batch(out, layout, b"head", 16, 10**6, batch, 0) == 0
