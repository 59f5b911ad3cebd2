"""The type that a client wants its answer to have, as a request's schema says it."""

from __future__ import annotations

import base64

import pyarrow as pa
import pytest

from shmring.sidecars.joint import Batching, Gathering
from shmring.sidecars.result import Result


def request_for(kind, **metadata):
    """A request's batch that wants an answer of this type."""
    wanted = pa.schema([("result", kind)]).serialize().to_pybytes()
    metadata |= {"shmring.answer": base64.b64encode(wanted)}
    return pa.record_batch({"x": [1, 2, None]}).replace_schema_metadata(metadata)


def test_function_does_not_see_what_the_client_wants():
    wanted, batch = Result.asked_for(request_for(pa.float64()))
    assert wanted == Result(pa.float64())
    assert batch.schema.metadata is None
    _, batch = Result.asked_for(request_for(pa.float64(), unit="mm"))
    assert batch.schema.metadata == {b"unit": b"mm"}


def test_request_that_wants_no_type_stays_as_it_is():
    batch = pa.record_batch({"x": [1]}).replace_schema_metadata({"unit": "mm"})
    assert Result.asked_for(batch) == (None, batch)


def test_first_column_of_an_answer_is_cast():
    answer = pa.record_batch({"a": [1, None], "b": ["x", "y"]})
    result = Result(pa.float64()).of(answer, "module:function")
    assert result == pa.record_batch({"a": pa.array([1.0, None])})
    assert Result(pa.int64()).of(answer, "module:function") == answer.select(["a"])


def test_answer_without_columns_is_left_to_the_client():
    answer = pa.record_batch({"a": [1]}).select([])
    assert Result(pa.int64()).of(answer, "module:function") is answer


@pytest.mark.parametrize("values", [[1.5], ["a"], [2.0**40], [[1]]])
def test_cast_that_would_lose_values_is_an_error_with_both_types(values):
    answer = pa.record_batch({"a": values})
    kind = answer.schema.field(0).type
    with pytest.raises(TypeError, match="cannot become the int32") as caught:
        Result(pa.int32()).of(answer, "module:function")
    assert f"module:function returned a column of {kind}" in str(caught.value)


def test_requests_that_want_different_types_are_not_worked_on_together():
    gathering = Gathering(Batching(100, 1.0))

    class Request:
        batch = request_for(pa.float64())

    gathering.add(Request())
    assert gathering.takes(request_for(pa.float64()))
    assert not gathering.takes(request_for(pa.int32()))
    assert not gathering.takes(Result.asked_for(request_for(pa.float64()))[1])
