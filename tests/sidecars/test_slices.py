"""Requests that hold several batches: the function is given so many rows at a time."""

from __future__ import annotations

import os
import time

import pyarrow as pa
import pytest
from functions import for_udfs, numbers

import shmring
from shmring.sidecars.answers import together
from shmring.sidecars.batches import batches_wanted, combined, joined, slices

HOUR = 3_600_000.0  # ms


def udf_request(batch):
    """One that wants a column of integers for its first one."""
    return for_udfs(batch, [[["x", 0]]], pa.int64())


def test_function_gets_so_many_rows_at_a_time_and_answers_in_order(serve, ask):
    serve("with_rows")
    (answer,) = ask(numbers(0, 35), rows=10)
    assert answer.column("x") == list(range(35))
    assert answer.column("rows") == [10] * 30 + [5] * 5
    assert 1 <= answer.batches_wanted <= 64


def test_worker_outlives_an_inner_array_without_offsets(serve, ask):
    sidecar = serve("no_maps")
    pids = sidecar.pids
    (answer,) = ask(numbers(0, 10), rows=5)
    assert not answer.again
    assert answer.column("maps") == [[]] * 10
    assert sidecar.pids == pids


@pytest.mark.parametrize("asked_for", ["batches", "results"])
def test_worker_outlives_inner_arrays_without_offsets_that_it_puts_together(serve, ask, asked_for):
    sidecar = serve("no_offsets")
    pids = sidecar.pids
    request = numbers(0, 10)
    if asked_for == "results":
        kind = pa.list_(pa.map_(pa.string(), pa.int32()))
        request = for_udfs(request, [[["x", 0]], [["x", 0]]], kind, kind)
    (answer,) = ask(request, rows=5)
    assert (answer.again, answer.error) == (0, "")
    assert answer.column("maps" if asked_for == "batches" else "_1") == [[]] * 10
    assert sidecar.pids == pids


@pytest.mark.parametrize("rows", [0, 35, 100])
def test_request_of_one_batch_is_given_as_it_is(serve, ask, rows):
    serve("with_rows")
    (answer,) = ask(numbers(0, 35), rows=rows)
    assert answer.column("rows") == [35] * 35


@pytest.mark.parametrize(
    ("function", "rows"),
    [
        ("twice", [*range(10), *range(10), *range(10, 20), *range(10, 20)]),
        ("no_rows", []),
        ("no_batches", []),
    ],
)
def test_number_of_rows_may_change(serve, ask, function, rows):
    serve(function)
    (answer,) = ask(numbers(0, 20), rows=10)
    assert (answer.column("x"), answer.error) == (rows, "")


def test_answers_of_different_schemas_stay_apart(serve, ask):
    serve("words_from_seven_on")
    (answer,) = ask(numbers(-10, 40), rows=10)
    assert answer.column("x") == [*range(-10, 10), *(str(x) for x in range(10, 30))]


def test_exception_names_its_batch_and_comes_behind_the_rows_before_it(serve, ask):
    serve("fail_on_seven")
    first, last = ask(numbers(-20, 50), numbers(10, 50), rows=10)
    assert first.column("x") == list(range(-20, 0))
    assert "ZeroDivisionError: seven is not allowed" in first.error
    assert "in batch 3 of the 5 of request 0 of process" in first.error
    assert (last.column("x"), last.error) == (list(range(10, 60)), "")


def test_what_a_failing_call_answered_before_comes_too(serve, ask):
    serve("fail_half_way")
    (answer,) = ask(numbers(0, 30), rows=10)
    assert answer.batches == [numbers(0, 10)]
    assert "in batch 1 of the 3" in answer.error


def test_result_of_a_udf_has_as_many_rows_for_each_batch(serve, ask):
    serve("without_seven")
    first, last = ask(udf_request(numbers(-20, 50)), udf_request(numbers(10, 50)), rows=10)
    assert "a UDF must: expected 10, got 9" in first.error
    assert "in batch 3 of the 5" in first.error
    assert last.column("_0") == list(range(10, 60))


def test_results_that_are_too_many_are_not_given_out(serve, ask):
    serve("one_more_from_seven_on")
    (answer,) = ask(udf_request(numbers(-20, 50)), rows=10)
    assert "a UDF must: expected 10, got 11" in answer.error
    assert answer.column("_0") == list(range(-20, 0))


def test_client_hears_of_slices_that_have_no_answer(serve, ask):
    serve("long_without_an_answer")
    (answer,) = ask(numbers(0, 40), rows=10)
    assert (answer.batches, answer.error) == ([], "")
    assert answer.pieces == 5  # one for each, and the end


def test_slow_function_wants_one_batch_a_request(serve, ask):
    serve("slow")
    (answer,) = ask(numbers(0, 20), rows=10)
    assert answer.batches_wanted == 1


def test_sidecar_that_joins_requests_wants_none_of_several_and_gives_slices(serve, ask):
    serve("with_rows", max_batch_rows=1000, max_wait_ms=HOUR)
    (answer,) = ask(numbers(0, 35), rows=10)
    assert answer.column("rows") == [10] * 30 + [5] * 5
    assert answer.batches_wanted == 0


def test_request_that_waits_for_others_is_not_joined_with_several_batches(serve, ask):
    serve("with_rows", max_batch_rows=1000, max_wait_ms=HOUR)
    first, last = ask(numbers(0, 7), numbers(0, 35), rows=10)
    assert first.column("rows") == [7] * 7
    assert last.column("rows") == [10] * 30 + [5] * 5


def test_request_of_a_client_that_is_gone_has_no_whole_answer(
    serve, ask, name, marker, thread, until
):
    serve("wait_for_marker")
    asking = thread(lambda: ask(numbers(0, 30), rows=10))
    until(marker.with_suffix(".begun").exists)
    with shmring.attach(f"{name}-answers", read_only=True) as replies:
        os.unlink(replies.path)
    time.sleep(0.25)  # the worker looks no earlier
    marker.touch()
    (answer,) = asking.outcome()
    assert "its client is gone" in answer.error
    assert answer.column("x") == list(range(10))


@pytest.mark.kill
def test_request_whose_worker_dies_in_the_middle_is_answered_whole(serve, ask, marker):
    serve("die_once_on_seven", workers=2)
    (answer,) = ask(numbers(-20, 50), rows=10)
    assert answer.again == 1
    assert answer.column("x") == list(range(-20, 30))


# --- the parts ----------------------------------------------------------------------------------


def test_slices_cover_the_batch():
    assert [part.num_rows for part in slices(numbers(0, 25), 10)] == [10, 10, 5]
    assert [part.num_rows for part in slices(numbers(0, 20), 10)] == [10, 10]
    assert slices(numbers(0, 0), 10) == [numbers(0, 0)]


def test_as_many_batches_are_wanted_as_take_two_milliseconds():
    assert batches_wanted(1, 0, 0) == batches_wanted(64, 1000, 1000) == 64
    assert batches_wanted(10, 1_000_000, 1000) == 20
    assert batches_wanted(1, 10**10, 0) == batches_wanted(64, 10**12, 0) == 1


def test_no_more_batches_are_wanted_than_have_a_megabyte_of_answers():
    assert batches_wanted(8, 1000, 2 << 20) == 4
    assert batches_wanted(1, 1000, 1 << 30) == 1


def test_answers_before_one_that_fails_come_first():
    def answers():
        yield numbers(0, 3)
        yield numbers(3, 4)
        raise KeyError("third")

    taken = together(answers())
    assert next(taken) == numbers(0, 7)
    with pytest.raises(KeyError, match="third"):
        next(taken)


def test_batches_that_cannot_be_joined_stay_as_they_are():
    assert list(together([numbers(0, 0), numbers(5, 0)])) == [numbers(0, 0), numbers(5, 0)]
    bare = [numbers(0, 3).select([]), numbers(0, 4).select([])]
    assert [batch.num_rows for batch in together(bare)] == [3, 4]
    words = [pa.record_batch({"d": pa.array(w).dictionary_encode()}) for w in (["a"], ["b", "a"])]
    assert [x for b in together(words) for x in b["d"].to_pylist()] == ["a", "b", "a"]


def without_offsets(kind):
    """An array of no rows, as a function may answer with."""
    if pa.types.is_map(kind):
        entries = pa.array([], pa.struct([kind.key_field, kind.item_field]))
        return pa.Array.from_buffers(kind, 0, [None, None], children=[entries])
    return pa.Array.from_buffers(kind, 0, [None, None, pa.py_buffer(b"")])


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda inner: inner,
        lambda inner: pa.StructArray.from_arrays([inner], ["m"]),
        lambda inner: pa.FixedSizeListArray.from_arrays(inner, 2),
        lambda inner: pa.LargeListArray.from_arrays([0], inner),
        lambda inner: pa.UnionArray.from_dense(
            pa.array([], pa.int8()), pa.array([], pa.int32()), [inner]
        ),
    ],
    ids=["bare", "struct", "fixed", "large", "union"],
)
@pytest.mark.parametrize(
    "kind",
    [
        pa.map_(pa.string(), pa.int32()),
        pa.string(),
        pa.large_string(),
        pa.binary(),
        pa.large_binary(),
    ],
    ids=str,
)
def test_inner_arrays_without_offsets_are_found_in_whatever_holds_them(wrapped, kind):
    inner = wrapped(without_offsets(kind))
    lists = pa.ListArray.from_arrays([0, 0], inner)
    table = pa.table({"x": pa.chunked_array([lists] * 2)})
    assert combined(table).column("x").to_pylist() == [[], []]


@pytest.mark.parametrize("kind", [pa.string(), pa.list_(pa.string())], ids=str)
def test_arrays_of_no_rows_without_offsets_are_left_out(kind):
    none = without_offsets(pa.string())
    if kind != none.type:
        none = pa.Array.from_buffers(kind, 0, [None, None], children=[none])
    good = pa.array([None, None], kind)
    empty = pa.record_batch([none], ["x"])
    assert joined([empty, pa.record_batch([good], ["x"]), empty]).column("x") == good
    assert list(together([empty, empty])) == [empty, empty]


def test_large_answers_wait_for_no_others():
    large = [numbers(i, 1 << 17) for i in range(3)]
    assert list(together(large)) == large
