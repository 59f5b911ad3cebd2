"""The UDFs of a request: what the function is given for each, and the one answer to all."""

from __future__ import annotations

import base64
import re

import pyarrow as pa
import pytest
from functions import for_udfs, numbers

from shmring.errors import Damaged, SchemaMismatch
from shmring.sidecars.calls import MOST, Calls

LONG, TEXT = pa.int64(), pa.string()
X = [["x", 0]]
NO_SCHEMA = base64.b64encode(b"no schema").decode()


def pair(rows=3):
    return pa.record_batch({"_0": list(range(rows)), "_1": [f"{i}" for i in range(rows)]})


def calls_of(batch):
    calls, _ = Calls.of(batch)
    assert calls is not None
    return calls


def test_function_is_given_the_columns_of_each_call_under_their_names():
    request = for_udfs(pair(), [[["a", 0], ["b", 1]], [["text", 1]], X, X], *[LONG] * 4)
    calls, batch = Calls.of(request)
    given = calls.arguments(batch)
    assert [each.schema.names for each in given] == [["a", "b"], ["text"], ["x"], ["x"]]
    assert given[1].column(0).to_pylist() == ["0", "1", "2"]
    assert all(each.schema.metadata is None for each in (batch, *given))


def test_what_else_a_request_says_of_its_columns_stays():
    strict = pa.field("_0", LONG, nullable=False, metadata={"unit": "mm"})
    batch = pa.record_batch([pa.array([1])], schema=pa.schema([strict]))
    request = for_udfs(batch, [X], LONG)
    request = request.replace_schema_metadata({**request.schema.metadata, b"of": b"tests"})
    calls, batch = Calls.of(request)
    (given,) = calls.arguments(batch)
    assert given.schema.metadata == {b"of": b"tests"}
    assert given.schema.field(0).equals(strict.with_name("x"), check_metadata=True)


def test_request_that_is_for_no_udf_stays_as_it_is():
    batch = pa.record_batch({"x": [1]}).replace_schema_metadata({"unit": "mm"})
    assert Calls.of(batch) == (None, batch)


def test_column_of_an_answer_is_cast():
    answer = pa.record_batch({"a": [1, None]})
    call, other = calls_of(for_udfs(pair(), [X, X], pa.float64(), LONG)).each
    assert call.result(answer, "f") == pa.array([1.0, None])
    assert other.result(answer, "f") == answer.column(0)


@pytest.mark.parametrize("names", [[], ["a", "b"]])
def test_answer_without_a_column_or_with_several_is_told(names):
    (call,) = calls_of(for_udfs(pair(), [X], LONG)).each
    text = f"f of m answered with {len(names)} columns ({', '.join(names)})"
    with pytest.raises(SchemaMismatch, match=re.escape(text)):
        call.result(pa.record_batch({name: [1] for name in names}), "f of m")


@pytest.mark.parametrize("values", [[1.5], ["a"], [2.0**40], [[1]]])
def test_cast_that_would_lose_values_is_an_error_with_both_types(values):
    answer = pa.record_batch({"a": values})
    kind = answer.schema.field(0).type
    (call,) = calls_of(for_udfs(pair(), [X], pa.int32())).each
    with pytest.raises(TypeError, match="cannot become the int32") as caught:
        call.result(answer, "module:function")
    assert f"module:function returned a column of {kind}" in str(caught.value)


def test_results_in_different_parts_are_put_beside_each_other():
    calls = calls_of(for_udfs(pair(), [X, X, X], LONG, LONG, TEXT))
    one, two, three = pa.array([1]), pa.array([2, 3]), pa.array(["a", "b", "c"])
    parts = calls.beside([[one, two], [two, one], [three]])
    rows = [tuple(row.values()) for part in parts for row in part.to_pylist()]
    assert rows == [(1, 2, "a"), (2, 3, "b"), (3, 1, "c")]
    assert calls.beside([[], [], []]) == []
    (whole,) = calls.beside([[two], [two], [three.slice(1)]])
    assert whole.schema == calls.answer


RUBBISH = {
    "no list": ({"a": 0}, [LONG]),
    "a number": (7, [LONG]),
    "no call": ([], []),
    "too many": ([X] * (MOST + 1), [LONG] * (MOST + 1)),
    "more calls than results": ([X, X], [LONG]),
    "more results than calls": ([X], [LONG, LONG]),
    "no arguments": ([[]], [LONG]),
    "a text for a call": (["x"], [LONG]),
    "no pair": ([[["x"]]], [LONG]),
    "a column too far": ([[["x", 2]]], [LONG]),
    "a column before the first": ([[["x", -1]]], [LONG]),
    "a truth for a place": ([[["x", True]]], [LONG]),
    "a fraction for a place": ([[["x", 0.0]]], [LONG]),
    "a number for a name": ([[[0, 0]]], [LONG]),
    "an object for an argument": ([[{"x": 0}]], [LONG]),
}


@pytest.mark.parametrize(("calls", "kinds"), RUBBISH.values(), ids=RUBBISH)
def test_calls_that_nobody_can_make_are_refused(calls, kinds):
    with pytest.raises(Damaged, match="the UDFs of a request cannot be told"):
        Calls.of(for_udfs(pair(), calls, *kinds))


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"shmring.calls": "[[["}, "cannot be told"),
        ({"shmring.calls": b"\xff\xfe\xfd"}, "cannot be told"),
        ({"shmring.calls": "[" * 100_000}, "cannot be told"),
        ({"shmring.calls": b" " * (4 << 20)}, "bytes, of 4194304 at most"),
        ({"shmring.answer": b"A" * (4 << 20)}, "bytes, of 4194304 at most"),
        ({"shmring.answer": "???"}, "cannot be told"),
        ({"shmring.answer": NO_SCHEMA}, "cannot be told"),
        ({"shmring.answer": ""}, "cannot be told"),
        ({"shmring.answer": None}, "both keys"),
        ({"shmring.calls": None}, "both keys"),
        ({"shmring.group": "1"}, "none of a group's"),
    ],
)
def test_metadata_that_nobody_can_read_is_refused(changed, why):
    metadata = for_udfs(pair(), [X], LONG).schema.metadata
    metadata = {**metadata, **{key.encode(): value for key, value in changed.items()}}
    kept = {key: value for key, value in metadata.items() if value is not None}
    with pytest.raises(Damaged, match=why) as caught:
        Calls.of(pair().replace_schema_metadata(kept))
    assert len(str(caught.value)) < 500


# --- asked of a worker --------------------------------------------------------------------------


def test_one_answer_has_the_results_of_all_calls(serve, ask):
    serve("types")
    request = for_udfs(pair(25), [[["a", 0], ["b", 1]], [["b", 1]], [["a", 0]]], TEXT, TEXT, TEXT)
    (answer,) = ask(request, rows=10)
    assert answer.column("_0") == ["a int64, b string"] * 25
    assert answer.column("_1") == ["b string"] * 25
    assert answer.column("_2") == ["a int64"] * 25


def test_results_that_come_row_by_row_and_of_a_joining_sidecar_are_the_same(serve, ask):
    serve("row_by_row")
    request = for_udfs(pair(25), [X, [["y", 1]], X], LONG, TEXT, pa.float64())
    (answer,) = ask(request, rows=10)
    assert answer.column("_0") == answer.column("_2") == list(range(25))
    assert answer.column("_1") == [f"{i}" for i in range(25)]


def test_requests_with_the_same_calls_are_worked_on_together(serve, map_all):
    serve("identity", max_batch_rows=20, max_wait_ms=3_600_000.0)
    request = for_udfs(numbers(0), [X, [["y", 0]]], LONG, LONG)
    other = for_udfs(numbers(10), [X, [["y", 0]]], LONG, LONG)
    first, last = map_all(request, other)
    assert first.column(0) == first.column(1) == numbers(0).column(0)
    assert last.column(0) == last.column(1) == numbers(10).column(0)


def test_requests_for_other_calls_are_worked_on_apart(serve, map_all):
    serve("identity", max_batch_rows=20, max_wait_ms=3_600_000.0)
    small = pa.int32()
    kinds = ((0, LONG), (10, small), (20, small))
    requests = [for_udfs(numbers(i), [X], kind) for i, kind in kinds]
    answers = map_all(*requests)
    assert [answer.schema.field(0).type for answer in answers] == [LONG, small, small]
    assert [answer.column(0)[0].as_py() for answer in answers] == [0, 10, 20]


def test_client_hears_of_calls_that_have_no_answer_yet(serve, ask):
    serve("slow_rows")
    request = for_udfs(numbers(0, 2), [X, X], LONG, LONG)
    answer, of_one_row = ask(request, request.slice(0, 1), rows=0)
    assert answer.column("_0") == answer.column("_1") == [0, 1]
    assert answer.pieces >= 4  # before each row but the first, and the answer
    assert of_one_row.column("_0") == of_one_row.column("_1") == [0]
    assert of_one_row.pieces >= 3  # after the first call, before the second one's row, the answer


def test_error_of_one_call_says_which_and_gives_no_results_of_the_others(serve, ask):
    serve("fail_on_seven")
    batch = pa.record_batch({"_0": list(range(10, 60)), "_1": list(range(-20, 30))})
    request = for_udfs(batch, [[["fine", 0]], [["bad", 1]], [["fine", 0]]], LONG, LONG, LONG)
    failed, alone = ask(request, request.slice(0, 5), rows=10)
    assert "ZeroDivisionError: seven is not allowed" in failed.error
    assert "fail_on_seven" in failed.error
    assert "in call 2 of the 3 of one request, with bad" in failed.error
    assert "in batch 3 of the 5" in failed.error
    assert failed.column("_0") == list(range(10, 30))
    assert failed.column("_1") == list(range(-20, 0))
    assert (alone.column("_2"), alone.error) == (list(range(10, 15)), "")


@pytest.mark.parametrize("calls", [[[["x", 9]]], [], [X, X], "x"])
def test_worker_tells_of_rubbish_and_lives(serve, ask, calls):
    sidecar = serve("identity")
    bad, good = ask(for_udfs(numbers(0), calls, LONG), for_udfs(numbers(0), [X], LONG), rows=5)
    assert "the UDFs of a request cannot be told" in bad.error
    assert bad.batches == []
    assert (good.column("_0"), good.error) == (list(range(10)), "")
    assert sidecar.restarts == 0


def test_sidecar_that_joins_requests_tells_of_rubbish_too(serve, name, ask):
    serve("identity", max_batch_rows=20, max_wait_ms=3_600_000.0)
    bad = for_udfs(numbers(0), [[["x", 9]]], LONG)
    first, last = ask(bad, bad, rows=0)
    assert "the UDFs of a request cannot be told" in first.error
    assert "the UDFs of a request cannot be told" in last.error


@pytest.mark.kill
def test_request_whose_worker_dies_between_calls_is_answered_whole(serve, ask, marker):
    serve("die_once_on_seven", workers=2)
    batch = pa.record_batch({"_0": list(range(10, 20)), "_1": list(range(10))})
    (answer,) = ask(for_udfs(batch, [X, [["y", 1]], X], LONG, LONG, LONG), rows=0)
    assert answer.again == 1
    assert answer.column("_0") == answer.column("_2") == list(range(10, 20))
    assert answer.column("_1") == list(range(10))
