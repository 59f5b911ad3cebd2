"""Record batches through a ring come out as they went in, whatever their type."""

from __future__ import annotations

import datetime
import decimal
import re

import numpy as np
import pyarrow as pa
import pytest

import shmring
from shmring.arrow.batches import BatchEncoder


class Celsius(pa.ExtensionType):
    """An extension type that pyarrow does not know by itself."""

    def __init__(self, storage: pa.DataType = pa.float32()) -> None:  # noqa: B008
        super().__init__(storage, "shmring.test.celsius")

    def __arrow_ext_serialize__(self) -> bytes:
        return b"C"

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, serialized: bytes) -> Celsius:
        assert serialized == b"C"
        return cls(storage)


@pytest.fixture(autouse=True)
def _celsius_is_registered():
    pa.register_extension_type(Celsius())
    yield
    pa.unregister_extension_type("shmring.test.celsius")


def extension(values, storage):
    return pa.ExtensionArray.from_storage(Celsius(storage), pa.array(values, storage))


DAY = datetime.date(2024, 2, 29)
WORDS = ["a", None, "", "a string that no view holds inline", "ä"]
COLOURS = pa.array(["red", "green", None, "red"]).dictionary_encode()

# Arrays that other tests of this file use; test_arrow_direct.py covers writing without pyarrow.
ARRAYS = {
    "int64": pa.array([0, None, 100]),
    "float16": pa.array(np.array([0, 1.5], np.float16)),
    "nan": pa.array([float("inf"), -0.0]),
    "date32": pa.array([DAY, None], pa.date32()),
    "date64": pa.array([DAY, None], pa.date64()),
    "time32": pa.array([1, None], pa.time32("ms")),
    "time64": pa.array([1, None], pa.time64("ns")),
    "timestamp without zone": pa.array([1, None], pa.timestamp("ns")),
    "duration": pa.array([1, None], pa.duration("s")),
    "string": pa.array(WORDS),
    "string_view": pa.array(WORDS, pa.string_view()),
    "binary_view": pa.array([b"\0" * 20, None], pa.binary_view()),
    "string_view cast from short strings": pa.array(["a", None, "bc"]).cast(pa.string_view()),
    "list_view": pa.array([["a"], None, []], pa.list_view(pa.string())),
    "large_list_view": pa.array([[1, 2], None], pa.large_list_view(pa.int64())),
    "fixed lists of no views": pa.array([[], None], pa.list_(pa.string_view(), 0)),
    "struct": pa.array([{"x": 1, "y": ["a", None]}, None, {"x": None, "y": None}]),
    "sparse union": pa.UnionArray.from_sparse(
        pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["a", "b"])]
    ),
    "dense union": pa.UnionArray.from_dense(
        pa.array([0, 1, 0], pa.int8()),
        pa.array([0, 0, 1], pa.int32()),
        [pa.array([1, 2]), pa.array(["a"])],
    ),
    "run_end_encoded": pa.RunEndEncodedArray.from_arrays(pa.array([2, 5], pa.int32()), ["a", None]),
    "dictionary": COLOURS,
    "dictionary of structs": pa.DictionaryArray.from_arrays(
        pa.array([1, 0, None], pa.int8()), pa.array([{"x": 1}, {"x": 2}])
    ),
    "dictionary in a struct": pa.StructArray.from_arrays([COLOURS], ["colour"]),
    "dictionary in a list": pa.ListArray.from_arrays([0, 1, 4], COLOURS),
    "dictionary in a dictionary": pa.DictionaryArray.from_arrays(
        pa.array([1, 0], pa.int8()), pa.ListArray.from_arrays([0, 1, 4], COLOURS)
    ),
    "extension": extension([20.5, None], pa.float32()),
    "extension over a dictionary": pa.ExtensionArray.from_storage(Celsius(COLOURS.type), COLOURS),
    "extension in a list": pa.ListArray.from_arrays([0, 2], extension([1, 2], pa.float32())),
    "fixed_shape_tensor": pa.FixedShapeTensorArray.from_numpy_ndarray(
        np.arange(12, dtype=np.int32).reshape(2, 3, 2)
    ),
}
if hasattr(pa, "decimal32"):  # from pyarrow 19 on
    ARRAYS["decimal32"] = pa.array([decimal.Decimal("1.23"), None], pa.decimal32(5, 2))


def batch_of(array: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([array], ["column"])


def through(name, batches, schema, **options):
    """Write the batches and return them as read, through rings with and without the schema."""
    for stored in (schema, None):
        with shmring.create(name, slots=1024, schema=stored, temporary=True) as ring:
            with ring.arrow_reader("r") as reader, ring.arrow_writer(schema, **options) as writer:
                for batch in batches:
                    writer.write(batch)
                writer.end()
                got = list(reader)
            for batch in got:
                batch.validate(full=True)
            yield got


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS.keys())
def test_every_type_comes_out_as_it_went_in(name, array):
    whole = batch_of(array)
    batches = [whole, whole.slice(1), whole.slice(0, 1), whole.slice(0, 0)]
    for got in through(name, batches, whole.schema):
        assert got == batches


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
@pytest.mark.parametrize("kind", ["int64", "string", "struct", "dictionary in a list"])
def test_compressed_batches_come_out_as_they_went_in(name, kind, compression):
    batch = batch_of(pa.concat_arrays([ARRAYS[kind]] * 50))
    for got in through(name, [batch, batch], batch.schema, compression=compression):
        assert got == [batch, batch]


def test_compression_makes_messages_smaller(name):
    batch = batch_of(pa.array([7] * 10_000))
    with (
        shmring.create(name, slots=1024, schema=batch.schema, temporary=True) as ring,
        ring.arrow_writer(compression="zstd") as writer,
    ):
        ring.subscribe("r")
        writer.write(batch)
        (row,) = ring.rows()
        assert row[3] < batch.nbytes // 10


def test_dictionary_may_change_or_grow_between_batches(name):
    kind = pa.dictionary(pa.int32(), pa.string())
    dictionaries = (["a", "b"], ["a", "b", "c"], ["x"], [])
    batches = [
        batch_of(pa.DictionaryArray.from_arrays(pa.array([0, None][: len(d)], pa.int32()), d))
        if d
        else batch_of(pa.array([None], kind))
        for d in dictionaries
    ]
    for got in through(name, batches, batches[0].schema):
        assert [b.column(0).to_pylist() for b in got] == [b.column(0).to_pylist() for b in batches]


def test_batch_without_rows_or_without_columns_is_a_message(name):
    empty = pa.RecordBatch.from_arrays([], schema=pa.schema([]))
    for got in through(name, [empty, empty], empty.schema):
        assert got == [empty, empty]


def test_schema_keeps_its_metadata(name):
    schema = pa.schema([pa.field("x", pa.int64(), nullable=False, metadata={"u": "K"})], {"v": "1"})
    batch = pa.record_batch([pa.array([1])], schema=schema)
    for got in through(name, [batch], schema):
        assert got[0].schema.equals(schema, check_metadata=True)


def test_table_is_written_batch_by_batch(both_ends):
    table = pa.table({"x": pa.chunked_array([[1, 2], [], [3]])})
    with both_ends(table.schema, until="empty") as (ring, writer, reader):
        last = writer.write(table)
        assert last == ring.rows()[-1][1]
        assert pa.Table.from_batches(reader) == table
        assert writer.write(table.schema.empty_table()) == -1


@pytest.mark.parametrize("stored", [True, False], ids=["schema stored", "no schema"])
@pytest.mark.parametrize("nbytes", [1000, 300_000])
def test_body_begins_at_a_64_byte_boundary_in_the_mapping(name, nbytes, stored):
    batch = batch_of(pa.array(np.arange(nbytes // 8)))
    schema = batch.schema if stored else None
    with (
        shmring.create(name, slots=4096, schema=schema, temporary=True) as ring,
        ring.arrow_reader("r") as reader,
        ring.arrow_writer(batch.schema) as writer,
    ):
        for _ in range(5):
            writer.write(batch)
            got = reader.read(timeout=0)
            address = got.column(0).buffers()[1].address
            assert address % 64 == 0
            assert any(low <= address < high for low, high in mapped(ring.path))
            assert got == batch


def mapped(path: str) -> list[tuple[int, int]]:
    """Where this process maps the file."""
    with open("/proc/self/maps") as maps:
        ranges = [line.split()[0].split("-") for line in maps if line.rstrip().endswith(path)]
    return [(int(low, 16), int(high, 16)) for low, high in ranges]


# --- batches that are larger than the ring ------------------------------------------------------


TEXTS = pa.array([f"{i:0100d}" for i in range(10_000)])
LISTS = pa.array([None if i % 7 == 0 else [i] * 30 for i in range(10_000)])
LARGE = {
    "numbers": pa.array(np.arange(300_000)),
    "strings": TEXTS,
    "string views": TEXTS.cast(pa.string_view()),
    "binary views": TEXTS.cast(pa.binary_view()),
    "lists": LISTS,
    "structs": pa.StructArray.from_arrays([TEXTS, LISTS], ["text", "list"]),
    "dictionary": pa.array([f"{i % 100}" for i in range(300_000)]).dictionary_encode(),
}


def sent(ring, batches, thread):
    """Return the batches that a reader gets while another thread writes them."""

    def write():
        with ring.arrow_writer() as writer:
            for batch in batches:
                writer.write(batch)
            writer.end()

    with ring.arrow_reader("r", copy=True) as reader:
        writing = thread(write)
        got = list(reader)
        writing.outcome()
    return got


@pytest.mark.parametrize("array", LARGE.values(), ids=LARGE.keys())
def test_batch_larger_than_the_ring_is_split_by_rows(name, array, thread):
    batch = batch_of(array)
    with shmring.create(name, slots=1024, schema=batch.schema, temporary=True) as ring:
        assert pa.ipc.get_record_batch_size(batch) > ring.slots * 300
        got = sent(ring, [batch], thread)
    assert len(got) > 2
    assert pa.Table.from_batches(got).combine_chunks() == pa.table(batch)


VIEWS = pa.array([None if i % 7 == 0 else f"{i:0100d}" for i in range(10_000)], pa.string_view())
SLICED = {"strings": VIEWS, "bytes": TEXTS.cast(pa.binary_view())}


def written(ring):
    """Bytes of all messages of the ring's producer."""
    [producer] = [p for p in ring.participants() if p["role"] == "producer"]
    return producer["bytes"]


@pytest.mark.parametrize("column", SLICED.values(), ids=SLICED.keys())
@pytest.mark.parametrize("rows", [slice(0, 10), slice(101, 111), slice(0, 0), slice(3, 4)])
def test_slice_of_views_takes_the_room_of_its_own_rows(both_ends, column, rows):
    batch = batch_of(column[rows])
    with both_ends(batch.schema, slots=4096) as (ring, writer, reader):
        writer.write(batch, timeout=0)
        assert 0 < written(ring) < 30_000
        got = reader.read(timeout=0)
        got.validate(full=True)
        assert got == batch


def test_views_that_are_all_used_are_not_copied(ring):
    batch = batch_of(VIEWS)
    encoder = BatchEncoder(batch.schema)
    [(piece, _)] = encoder.pieces(batch, 1 << 20, ring="r")
    assert [b.address for b in piece[0].buffers()[1:]] == [
        b.address for b in batch[0].buffers()[1:]
    ]


UNION = pa.UnionArray.from_sparse(
    pa.array([0, 1] * 50, pa.int8()), [pa.array(range(100)), pa.array(map(str, range(100)))]
)
UNIONS = {
    "union": UNION,
    "dense union": pa.UnionArray.from_dense(
        pa.array([0] * 4, pa.int8()), pa.array(range(4), pa.int32()), [pa.array(range(4))]
    ),
    "list": pa.ListArray.from_arrays(pa.array([0, 50, 100], pa.int32()), UNION),
    "struct": pa.StructArray.from_arrays([UNION], ["u"]),
    "extension": pa.ExtensionArray.from_storage(Celsius(UNION.type), UNION),
    "map": pa.MapArray.from_arrays(pa.array([0, 50, 100], pa.int32()), pa.array(range(100)), UNION),
    "run ends": pa.RunEndEncodedArray.from_arrays(pa.array(range(1, 101), pa.int32()), UNION),
}


@pytest.mark.parametrize("column", UNIONS.values(), ids=UNIONS.keys())
@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_union_is_not_compressed(ring, column, compression):
    schema = batch_of(column).schema
    with pytest.raises(ValueError, match="write without compression"):
        ring.arrow_writer(schema, compression=compression)
    assert not [p for p in ring.participants() if p["role"] == "producer"]
    ring.arrow_writer(schema).close()


@pytest.mark.parametrize("length", [1_000, 3_000])
def test_batches_of_as_many_rows_may_have_any_size(name, length, thread):
    """Small, then too large for half of the ring, or for all of it, then small again."""
    batches = [batch_of(pa.array(["x" * n] * 200)) for n in (1, 1, length, 1)]
    with shmring.create(name, slots=1024, schema=batches[0].schema, temporary=True) as ring:
        got = sent(ring, batches, thread)
    assert len(got) > len(batches)
    assert pa.Table.from_batches(got) == pa.Table.from_batches(batches)


def test_reader_may_hold_a_piece_while_the_next_is_written(ring):
    batch = batch_of(LARGE["numbers"])
    rows = ring.slots * 300 // 2 // 8 - 200
    with ring.arrow_reader("r") as reader, ring.arrow_writer(batch.schema) as writer:
        writer.write(batch.slice(0, rows), timeout=0)
        held = reader.read(timeout=0)
        writer.write(batch.slice(rows, rows), timeout=0)
        assert held == batch.slice(0, rows)


def test_row_that_cannot_fit_is_refused_and_publishes_nothing(name):
    batch = batch_of(pa.array(["x" * 200_000]))
    with shmring.create(name, slots=1024, schema=batch.schema, temporary=True) as ring:
        with ring.arrow_writer() as writer, pytest.raises(shmring.MessageTooLarge, match=name):
            writer.write(batch)
        assert ring.claimed == 0


def test_full_ring_gives_full_in_time_and_the_next_write_goes_on(both_ends):
    batch = batch_of(pa.array(np.arange(15_000)))
    with both_ends(batch.schema) as (_, writer, reader):
        writer.write(batch, timeout=0)
        writer.write(batch, timeout=0)
        with pytest.raises(shmring.Full):
            writer.write(batch, timeout=0)
        assert reader.read(timeout=0) == batch
        writer.write(batch, timeout=0)


# --- schemas ------------------------------------------------------------------------------------


def test_ring_without_schema_needs_one_from_the_writer(ring):
    with pytest.raises(shmring.SchemaMismatch, match="give the writer one"):
        ring.arrow_writer()


def test_writer_with_another_schema_than_the_ring_is_refused(name):
    schema = pa.schema([("x", pa.int64())])
    with shmring.create(name, slots=1024, schema=schema, temporary=True) as ring:
        with pytest.raises(shmring.SchemaMismatch, match=name):
            ring.arrow_writer(pa.schema([("x", pa.int32())]))
        assert not [
            participant for participant in ring.participants() if participant["role"] == "producer"
        ]


def test_what_is_no_arrow_data_is_refused_by_its_type(ring):
    with (
        ring.arrow_writer(pa.schema([("x", pa.int64())])) as writer,
        pytest.raises(TypeError, match="not list"),
    ):
        writer.write([1, 2, 3])


def test_layouts_of_strings_and_lists_are_cast_to_the_schema(both_ends):
    schema = pa.schema(
        [
            ("s", pa.string()),
            ("b", pa.binary()),
            ("l", pa.list_(pa.struct([("s", pa.string())]))),
        ]
    )
    plain = pa.record_batch([WORDS, [b"x"] * 5, [[{"s": w}] for w in WORDS]], schema=schema)
    inner = pa.struct([("s", pa.large_string())])
    given = pa.schema(
        [("s", pa.string_view()), ("b", pa.binary_view()), ("l", pa.large_list(inner))]
    )
    with both_ends(schema) as (_, writer, reader):
        writer.write(plain.cast(given))
        assert reader.read(timeout=0) == plain


def test_a_full_ring_in_the_middle_of_a_table_says_what_stays_published(ring):
    table = pa.table({"x": range(200_000)})
    with ring.arrow_writer(table.schema) as writer:
        ring.subscribe("slow", start="earliest")
        with pytest.raises(shmring.Full, match=r"up to message [0-9]+, stays published"):
            writer.write(table, timeout=0)


def test_a_batch_that_fails_behind_others_says_what_stays_published(ring):
    small = pa.record_batch({"x": [b"small"]})
    large = pa.record_batch({"x": [b"x" * 400_000]})

    def batches():
        yield small
        raise KeyError("of the program")

    with ring.arrow_writer(small.schema) as writer:
        with pytest.raises(shmring.errors.MessageTooLarge) as alone:
            writer.write(pa.Table.from_batches([large, small]))
        assert "stays published" not in str(alone.value)
        with pytest.raises(shmring.errors.MessageTooLarge, match="up to message 0, stays publish"):
            writer.write(pa.Table.from_batches([small, large]))
        with pytest.raises(pa.ArrowInvalid, match="of the program") as made:
            writer.write(pa.RecordBatchReader.from_batches(small.schema, batches()))
        said = "what was written before, up to message [0-9]+, stays published"
        assert re.fullmatch(said, made.value.__notes__[0])


MANY = 50_000
CODED = pa.array(["a", "b"] * (MANY // 2)).dictionary_encode()
SHORT = pa.array(["x" * (i % 3) for i in range(MANY)])
BESIDE_A_DICTIONARY = {
    "text": [CODED, SHORT],
    "list": [CODED, pa.array([[1]] * MANY)],
    "both in a struct": [pa.StructArray.from_arrays([CODED, SHORT], ["word", "text"])],
    "views": [CODED, SHORT.cast(pa.string_view())],
}


@pytest.mark.parametrize("columns", BESIDE_A_DICTIONARY.values(), ids=BESIDE_A_DICTIONARY.keys())
@pytest.mark.parametrize("rows", [slice(0, 100), slice(MANY // 2, MANY // 2), slice(0, None)])
def test_slice_beside_a_dictionary_takes_the_room_of_its_own_rows(name, columns, rows, thread):
    batch = pa.RecordBatch.from_arrays(columns, [f"c{i}" for i in range(len(columns))])
    expected = batch.slice(rows.start, len(range(*rows.indices(MANY))))
    with shmring.create(name, slots=1024, schema=batch.schema, temporary=True) as ring:
        encoder = BatchEncoder(batch.schema)
        assert list(encoder.pieces(expected, ring.slots, ring=name))
        got = sent(ring, [expected], thread)
    # pa.table(expected) crashes pyarrow 18 to 22, which exports the views of a cast to C.
    assert pa.Table.from_batches(got) == pa.Table.from_batches([expected])


@pytest.mark.parametrize("start", [0, 5000])
def test_empty_slice_goes_into_any_ring(name, start):
    """IPC writes some buffers of a slice whole: it cannot cut views inside of a struct."""
    long = pa.array(["x" * 100] * 10_000)
    columns = [
        pa.StructArray.from_arrays([long.cast(pa.string_view())], ["view"]),
        long.dictionary_encode(),
        pa.array([f"{i:0100d}" for i in range(10_000)]).dictionary_encode(),
    ]
    batch = pa.RecordBatch.from_arrays(columns, ["a", "b", "c"]).slice(start, 0)
    with shmring.create(name, slots=1024, schema=batch.schema, temporary=True) as ring:
        ring.subscribe("r")
        with ring.arrow_writer() as writer, ring.arrow_reader("r") as reader:
            writer.write(batch, timeout=0)
            assert reader.read(timeout=0) == batch


def test_until_is_end_or_empty(ring):
    with pytest.raises(ValueError, match="never"):
        ring.arrow_reader("b", until="never")


def test_inner_map_without_offsets_goes_beside_dictionaries(ring, name):
    """Arrow Java before 19 writes a map of no rows without offsets: pyarrow's nbytes reads them."""
    kind = pa.map_(pa.string(), pa.int32())
    entries = pa.array([], pa.struct([kind.key_field, kind.item_field]))
    none = pa.py_buffer(b"\x7f" * 4).slice(0, 0)
    maps = pa.Array.from_buffers(kind, 0, [None, none], children=[entries])
    lists = pa.Array.from_buffers(
        pa.list_(kind), 2, [None, pa.py_buffer(bytes(12))], children=[maps]
    )
    batch = pa.record_batch([lists, pa.array(["a", "b"]).dictionary_encode()], ["maps", "words"])
    ring.subscribe("r")
    with ring.producer() as producer:
        encoder = BatchEncoder(batch.schema)
        (piece,) = encoder.pieces(batch, ring.slots, ring=name)
        encoder.push(producer, *piece)
