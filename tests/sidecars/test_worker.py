"""The worker's common case: where it has to leave the straight way, and goes back to it."""

from __future__ import annotations

import pyarrow as pa
from functions import numbers

import shmring
from shmring.sidecars.wire import request_ring_name

COUNT = 20


def test_answers_that_find_no_room_come_later_and_in_order(serve, ask):
    sidecar = serve("identity")
    batches = [numbers(i * 10_000, 5_000) for i in range(COUNT)]
    assert [answer.batches for answer in ask(*batches, full=True)] == [[batch] for batch in batches]
    assert sidecar.restarts == 0


def test_errors_that_find_no_room_come_later_too(serve, ask):
    serve("fail_on_seven")
    large = [numbers(i * 10_000 + 100, 5_000) for i in range(COUNT)]
    answers = ask(*large, numbers(7, 1), numbers(100, 1), full=True)
    assert [answer.error for answer in answers[:COUNT]] == [""] * COUNT
    assert "seven" in answers[-2].error
    assert answers[-1].batches == [numbers(100, 1)]


def test_worker_holds_no_request_that_it_has_answered(serve, client, name, until):
    serve("identity")
    with client() as it:
        assert list(it.map([numbers(i) for i in range(10)])) == [numbers(i) for i in range(10)]
        with shmring.attach(request_ring_name(name), read_only=True) as ring:
            until(lambda: ring.branches()[0]["released"] == ring.claimed, "the release of all")


def test_functions_that_return_several_batches_take_turns_with_those_of_one(serve, map_all):
    serve("one_or_several")
    answers = map_all(*(numbers(i, 2) for i in range(6)))
    assert pa.Table.from_batches(answers).column("x").to_pylist() == [
        x for i in range(6) for x in (i, i + 1)
    ]


def test_requests_of_any_schema_may_follow_each_other(serve, map_all):
    serve("identity")
    kinds = [
        numbers(0, 3),
        numbers(0, 0),
        pa.RecordBatch.from_arrays([], schema=pa.schema([])),
        numbers(0, 5_000),  # larger than what is published without a look at its size
        pa.record_batch({"x": pa.array(["a", None, "a"]).dictionary_encode()}),
        pa.record_batch({"y": pa.array(["a", None]), "x": pa.array([1.5, 2.5])}),
        numbers(0, 3).replace_schema_metadata({"k": "v"}),
    ]
    batches = [batch for kind in kinds for batch in (kind, kind)] + kinds
    answers = map_all(*batches)
    for answer, batch in zip(answers, batches, strict=True):
        assert answer.schema.equals(batch.schema, check_metadata=True)
        assert answer.equals(batch)
