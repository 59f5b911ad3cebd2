"""Requests that are a whole: groups, and cogroups with their two sides."""

from __future__ import annotations

import pyarrow as pa
import pytest
from functions import group_of, numbers

from shmring import SidecarClient
from shmring.sidecars.calls import arguments, is_group


def test_group_is_seen_as_it_was_and_other_metadata_stays():
    batch = numbers(0).replace_schema_metadata({"unit": "mm"})
    request = group_of(batch)
    assert is_group(request)
    assert not is_group(batch)
    (seen,) = arguments(request)
    assert seen.equals(batch, check_metadata=True)


@pytest.mark.parametrize("rows", [(3, 5), (0, 5), (3, 0), (0, 0)])
def test_sides_of_a_cogroup_are_seen_as_they_were(rows):
    schema = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("s", pa.string())])
    left = pa.record_batch([pa.array([1, 2, 3]), pa.array(["a", None, "c"])], schema=schema)
    left = left.slice(0, rows[0])
    right = numbers(7, 9).slice(2, rows[1])
    request = group_of(left, right)
    assert request.num_rows == 1
    assert [side.to_pydict() for side in arguments(request)] == [
        left.to_pydict(),
        right.to_pydict(),
    ]
    assert arguments(request)[0].schema == schema


def test_group_waits_for_no_other_requests(serve, name):
    serve("with_rows", max_batch_rows=20, max_wait_ms=3_600_000.0)
    with SidecarClient(name) as client:
        (answer,) = client.map([group_of(numbers(0, 5))])
        assert answer["rows"].to_pylist() == [5] * 5
        joined = client.map([numbers(0), numbers(10)])
        assert [batch["rows"].to_pylist() for batch in joined] == [[20] * 10] * 2


def test_requests_that_wait_for_others_are_answered_before_a_group(serve, map_all):
    serve("with_rows", max_batch_rows=20, max_wait_ms=3_600_000.0)
    answers = map_all(numbers(0), group_of(numbers(10)))
    assert [batch["rows"].to_pylist() for batch in answers] == [[10] * 10] * 2


def test_metadata_goes_and_comes_with_each_batch(serve, map_all):
    serve("twice")
    batches = [
        numbers(0).replace_schema_metadata(metadata)
        for metadata in ({"unit": "mm"}, None, {"unit": "km"})
    ]
    seen = [batch.schema.metadata for batch in map_all(*batches)]
    mm, km = {b"unit": b"mm"}, {b"unit": b"km"}
    assert seen == [mm, mm, None, None, km, km]
