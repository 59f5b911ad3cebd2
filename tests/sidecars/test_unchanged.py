"""An answer's columns that are the request's: columns of the same type over the same values."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from shmring._shmring import same_columns
from shmring.sidecars.batches import Unchanged

ROWS = 100
OFFSETS = pa.array(range(0, 2 * ROWS + 1, 2), pa.int32())
VALUES = pa.array(range(2 * ROWS + 1))
REQUEST = pa.record_batch(
    {
        "id": pa.array(range(ROWS)),
        "time": pa.array(range(ROWS), pa.timestamp("us")),
        "text": pa.array([None, *map(str, range(1, ROWS))]),
        "list": pa.ListArray.from_arrays(OFFSETS, VALUES),
        "none": pa.nulls(ROWS),
    }
)


def batch_of(**columns):
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def listed(answer):
    """Return the answer's list of unchanged columns, and its other columns."""
    own = Unchanged().without(REQUEST, answer)
    if own is None:
        return None
    assert own.num_rows == ROWS
    return json.loads(own.schema.metadata[b"shmring.unchanged"]), own.schema.names


def test_all_columns_may_be_passed_on():
    places = [[name, i] for i, name in enumerate(REQUEST.schema.names)]
    assert listed(REQUEST) == (places, [])
    assert listed(REQUEST.replace_schema_metadata({"k": "v"})) == (places, [])


def test_columns_in_another_order_twice_renamed_and_made_anew():
    text, made = REQUEST["text"], pa.array(range(ROWS))
    answer = batch_of(a=text, id=made, b=text, time=REQUEST["time"])
    assert listed(answer) == ([["a", 2], None, ["b", 2], ["time", 1]], ["id"])


@pytest.mark.parametrize(
    "column",
    [
        pa.array(range(ROWS)),
        REQUEST["id"].view(pa.timestamp("us")),
        REQUEST["time"].cast(pa.timestamp("us", "UTC")),
        REQUEST["text"].cast(pa.large_string()),
        pa.Array.from_buffers(
            pa.int64(), ROWS, [REQUEST["text"].buffers()[0], REQUEST["id"].buffers()[1]]
        ),
        pa.ListArray.from_arrays(OFFSETS, VALUES.slice(1)),
        REQUEST["text"].dictionary_encode(),
        REQUEST["none"].cast(pa.int64()),
    ],
    ids=["equal", "type", "zone", "large", "nulls", "children", "dictionary", "cast"],
)
def test_columns_that_only_look_alike_are_sent(column):
    assert listed(batch_of(column=column)) is None


def test_answer_with_views_is_sent_whole():
    """pyarrow 18 to 22 end the process where they export views that were cast."""
    views = REQUEST["text"].cast(pa.string_view())
    for column in (views, pa.StructArray.from_arrays([views], ["a"])):
        assert listed(batch_of(id=REQUEST["id"], views=column)) is None


@pytest.mark.parametrize("rows", [slice(0, ROWS - 1), slice(1, ROWS)])
def test_some_of_the_rows_are_another_column(rows):
    part = REQUEST.slice(rows.start, rows.stop - rows.start)
    assert Unchanged().without(REQUEST, part.drop_columns(["none"])) is None


def test_columns_are_looked_for_near_the_last_one():
    wide = pa.RecordBatch.from_arrays(
        [pa.array([i]) for i in range(500)], names=list(map(str, range(500)))
    )
    reverse = wide.select(list(range(499, -1, -1)))
    assert same_columns(wide, wide) == list(range(500))
    assert same_columns(wide.select(list(range(0, 500, 2))), wide) == list(range(0, 500, 2))
    found = same_columns(reverse, wide)
    assert all(place in (-1, 499 - i) for i, place in enumerate(found))


def test_batches_without_columns_or_rows():
    empty = REQUEST.select([])
    assert same_columns(empty, REQUEST) == []
    assert same_columns(REQUEST, empty) == [-1] * REQUEST.num_columns
    assert Unchanged().without(REQUEST, empty) is None
    with pytest.raises(AttributeError):
        same_columns(REQUEST, object())
    with pytest.raises(TypeError, match="two batches"):
        same_columns(REQUEST)


def test_what_was_seen_holds_for_requests_that_are_alike():
    seen = Unchanged()
    made = batch_of(id=pa.array(range(ROWS)), text=REQUEST["text"])
    passed = REQUEST.select(["id", "text"])
    other = REQUEST.rename_columns(["a", *REQUEST.schema.names[1:]])
    answers = [made, passed, passed, made, REQUEST, made.slice(1), made, other]
    for answer in answers * 2:
        own, alone = seen.without(REQUEST, answer), Unchanged().without(REQUEST, answer)
        assert (own is None) == (alone is None)
        if own is not None and alone is not None:
            assert own.equals(alone)
            assert own.schema.equals(alone.schema, check_metadata=True)


def test_function_cannot_write_into_columns_that_it_passes_on(serve, client):
    serve("writable")
    with client() as it:
        answers = it.map([REQUEST.select(["id"])] * 3)  # the first is decoded by pyarrow
        assert [answer["view"].to_pylist() for answer in answers] == [[], [], []]
