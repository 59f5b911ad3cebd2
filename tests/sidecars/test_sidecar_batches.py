"""Requests of several clients that a worker joins into one batch.

A wait of an hour is never over: where it is set, the rows alone decide when the function is called.
"""

from __future__ import annotations

import os
import signal
import time
from functools import partial

import pyarrow as pa
import pytest
from functions import numbers

import shmring
from shmring.sidecars import Sidecar, SidecarClient
from shmring.sidecars.batches import joined
from shmring.sidecars.wire import FLAG_ERROR, FLAG_LAST, HEAD_BYTES, Head, request_ring_name
from shmring.sidecars.worker import split

HOUR = 3_600_000.0  # ms


@pytest.fixture
def ask(map_all, thread):
    """Clients that ask at one time; the answers, or the errors, of each."""

    def ask_all(*requests, **options):
        run = partial(map_all, connect_timeout=60, **options)
        threads = [thread(run, *batches) for batches in requests]
        return [_outcome(each) for each in threads]

    return ask_all


def _outcome(thread):
    try:
        return thread.outcome()
    except shmring.ShmringError as error:
        return error


# --- joint batches ------------------------------------------------------------------------------


def heads_of(client):
    """The heads of all answers that it will have taken."""
    heads = []
    take = client._take

    def noted(lease):
        heads.append(Head.unpack(lease, ring="answers"))
        take(lease)

    client._take = noted
    return heads


def test_requests_of_several_clients_reach_the_function_as_one_batch(serve, ask):
    clients = 8
    serve("with_rows", max_batch_rows=10 * clients, max_wait_ms=HOUR)
    asked = [[numbers(i * 10)] for i in range(clients)]
    for batches, answers in zip(asked, ask(*asked), strict=True):
        assert [it.select(["x"]) for it in answers] == batches
        assert answers[0]["rows"].to_pylist() == [10 * clients] * 10


def test_time_at_a_joint_batch_is_shared_by_the_rows_of_the_requests(serve, name, thread):
    serve("slow", max_batch_rows=40, max_wait_ms=HOUR)  # the function sleeps for 0.05 s

    def worked(rows):
        with SidecarClient(name) as client:
            heads = heads_of(client)
            list(client.map([numbers(0, rows)]))
            return sum(head.worked for head in heads) / 1e9

    few, many = thread(lambda: worked(10)), thread(lambda: worked(30))
    assert few.outcome() >= 0.05 / 4
    assert many.outcome() >= 0.05 * 3 / 4


def test_requests_of_one_client_are_joined_too_and_answered_in_order(serve, ask):
    serve("with_rows", max_batch_rows=30, max_wait_ms=HOUR)
    batches = [numbers(i * 10) for i in range(30)]
    (answers,) = ask(batches, in_flight=3)
    assert [it.select(["x"]) for it in answers] == batches
    assert {rows for it in answers for rows in it["rows"].to_pylist()} == {30}


def test_request_that_would_make_the_batch_too_large_begins_the_next_one(serve, ask):
    serve("with_rows", max_batch_rows=25, max_wait_ms=HOUR)
    (answers,) = ask([numbers(0, 10), numbers(10, 10), numbers(20, 25)], in_flight=3)
    assert [it["rows"][0].as_py() for it in answers] == [20, 20, 25]


def test_request_of_more_rows_is_worked_on_alone(serve, ask):
    serve("with_rows", max_batch_rows=25, max_wait_ms=HOUR)
    (answers,) = ask([numbers(0, 1000)])
    assert answers[0]["rows"][0].as_py() == 1000


def test_batch_that_does_not_become_full_is_worked_on_when_its_time_is_over(serve, ask):
    serve("with_rows", max_batch_rows=1000, max_wait_ms=1)
    batches = [numbers(i) for i in range(20)]
    (answers,) = ask(batches)
    assert [it.select(["x"]) for it in answers] == batches


def test_many_clients_and_workers_get_their_own_rows(serve, ask):
    serve("identity", workers=3, max_batch_rows=100, max_wait_ms=1)
    asked = [[numbers(i * 1000 + k, 1 + k % 7) for k in range(100)] for i in range(8)]
    assert ask(*asked) == asked


def test_requests_of_different_schemas_are_not_joined(serve, ask):
    serve("identity", max_batch_rows=100, max_wait_ms=1)
    words = pa.array(["a", "b", "a"]).dictionary_encode()
    asked = [
        [numbers(i) for i in range(30)],
        [pa.record_batch({"s": ["a", None, str(i)]}) for i in range(30)],
        [pa.record_batch({"d": words, "n": [[i], [], None]}) for i in range(30)],
        [numbers(i) if i % 2 else pa.record_batch({"y": [i * 0.5]}) for i in range(30)],
        [pa.RecordBatch.from_arrays([], schema=pa.schema([]))] * 3,
    ]
    assert ask(*asked) == asked


def test_empty_batches_among_others_are_answered_with_empty_ones(serve, ask):
    serve("with_rows", max_batch_rows=20, max_wait_ms=HOUR)
    (answers,) = ask([numbers(0, 0), numbers(0, 0), numbers(1, 20)], in_flight=3)
    assert [it.num_rows for it in answers] == [0, 0, 20]
    assert [it["rows"].to_pylist() for it in answers] == [[], [], [20] * 20]


def test_answer_in_pieces_is_cut_at_the_requests(serve, ask):
    serve("row_by_row", max_batch_rows=30, max_wait_ms=HOUR)
    batches = [numbers(i * 10) for i in range(3)]
    (answers,) = ask(batches, in_flight=3)
    assert pa.Table.from_batches(answers) == pa.Table.from_batches(batches)


def test_answers_to_a_joint_batch_may_be_larger_than_the_reply_ring(serve, ask):
    serve("identity", max_batch_rows=100_000, max_wait_ms=HOUR)
    asked = [[numbers(0, 50_000)], [numbers(7, 50_000)]]
    for batches, answers in zip(asked, ask(*asked, reply_slots=1024), strict=True):
        assert pa.Table.from_batches(answers) == pa.Table.from_batches(batches)


def test_decorator_says_how_requests_are_joined(name, thread):
    def run(batch):
        with SidecarClient(name) as client:
            return next(client.map([batch]))["rows"][0].as_py()

    with Sidecar("functions:joining", name=name):
        threads = [thread(run, numbers(i)) for i in range(2)]
        assert [each.outcome() for each in threads] == [20, 20]


def test_requests_that_wait_are_answered_by_a_worker_that_is_told_to_end(
    serve, map_all, name, thread, until
):
    (pid,) = serve("identity", max_batch_rows=1000, max_wait_ms=HOUR).pids
    asking = thread(map_all, numbers(1))
    with shmring.attach(request_ring_name(name), read_only=True) as ring:
        until(lambda: any(s["hold"] is not None for s in ring.participants() if s["pid"] == pid))
    os.kill(pid, signal.SIGTERM)
    assert asking.outcome() == [numbers(1)]


# --- while it lasts -----------------------------------------------------------------------------


@pytest.fixture
def signs(name, thread):
    """How many signs of life each of two clients has, which ask for two rows each."""

    def run(first):
        with SidecarClient(name) as client:
            heads = heads_of(client)
            answers = list(client.map([numbers(first, 2)]))
            assert pa.concat_batches(answers) == numbers(first, 2)
            return len(heads) - len(answers)

    def count():
        threads = [thread(run, first) for first in (0, 2)]
        return [each.outcome() for each in threads]

    return count


def test_each_request_of_a_joint_batch_has_signs_of_life(serve, signs):
    serve("slow_rows", max_batch_rows=4, max_wait_ms=HOUR)
    assert min(signs()) > 0


def test_requests_that_are_worked_on_one_by_one_have_signs_before_their_turn(serve, signs):
    serve("slow_rows_of_few", max_batch_rows=4, max_wait_ms=HOUR)
    assert max(signs()) > 0


def test_requests_have_signs_where_the_work_for_all_and_for_others_raises(
    two_ask, marker, answer_of
):
    _, inboxes = two_ask("none_but_the_last")
    marker.touch()
    first, last = (answer_of(inbox, number) for number, inbox in enumerate(inboxes))
    assert "not the last" in first.error
    assert first.pieces == 1
    assert last.column("x") == [2, 3]
    assert last.pieces == 3  # after the call for both, after that for the first, and the answer


@pytest.fixture
def two_ask(serve, name, send, until, marker):
    """Two clients ask for two rows each, of a function that waits for the marker."""
    rings = [shmring.create(f"{name}-{i}", slots=1024, temporary=True) for i in range(2)]
    inboxes = [ring.consumer("client") for ring in rings]

    def run(function):
        serve(function, max_batch_rows=4, max_wait_ms=HOUR)
        send([ring.name for ring in rings], numbers(0, 2), numbers(2, 2))
        until(marker.with_suffix(".begun").exists)
        return rings, inboxes

    yield run
    for each in (*inboxes, *rings):
        each.close()


def go_on_without(rings, marker):
    for ring in rings:
        os.unlink(ring.path)
    time.sleep(0.25)  # the worker looks no earlier
    marker.touch()


def test_joint_batch_that_nobody_wants_any_more_is_given_up(two_ask, marker, until):
    rings, _ = two_ask("rows_around_marker")
    go_on_without(rings, marker)
    until(marker.with_suffix(".unwanted").exists)
    assert marker.with_suffix(".given").read_text() == "[0, 1, 2, 3]\n"


def test_joint_batch_is_worked_on_for_those_who_still_want_it(two_ask, marker, answer_of):
    rings, inboxes = two_ask("rows_around_marker")
    go_on_without(rings[:1], marker)
    assert answer_of(inboxes[1], 1).column("x") == [2, 3]
    assert not marker.with_suffix(".unwanted").exists()


def test_requests_of_clients_that_are_gone_are_not_worked_on_one_by_one(two_ask, marker, answer_of):
    rings, inboxes = two_ask("few_rows_around_marker")
    go_on_without(rings[:1], marker)
    assert answer_of(inboxes[1], 1).column("x") == [2, 3]
    assert marker.with_suffix(".given").read_text() == "[0, 1, 2, 3]\n[2, 3]\n"


# --- errors and deaths --------------------------------------------------------------------------


def test_only_the_request_fails_over_which_the_function_raises(serve, ask):
    sidecar = serve("fail_on_seven", max_batch_rows=30, max_wait_ms=HOUR)
    good, bad, other = ask([numbers(10)], [numbers(0)], [numbers(20)])
    assert (good, other) == ([numbers(10)], [numbers(20)])
    assert isinstance(bad, shmring.SidecarError)
    assert "seven is not allowed" in str(bad)
    assert "During handling" not in str(bad)
    assert sidecar.restarts == 0


@pytest.mark.parametrize("function", ["nothing", "leave"])
def test_whatever_goes_wrong_for_all_is_each_ones_answer(serve, ask, function):
    serve(function, max_batch_rows=20, max_wait_ms=HOUR)
    for error in ask([numbers(0)], [numbers(10)]):
        assert isinstance(error, shmring.SidecarError)


def test_function_that_returns_another_number_of_rows_fails_each_request(serve, ask):
    serve("no_rows", max_batch_rows=20, max_wait_ms=HOUR)
    for error in ask([numbers(0)], [numbers(10)]):
        assert isinstance(error, shmring.SidecarError)
        assert "must with max_batch_rows: expected 20, got 0" in str(error)


def test_number_of_rows_counts_for_a_request_alone_too(serve, ask):
    serve("twice", max_batch_rows=5, max_wait_ms=HOUR)
    (error,) = ask([numbers(0)])
    assert "must with max_batch_rows: expected 10, got 20" in str(error)


@pytest.mark.parametrize("options", [{}, {"max_batch_rows": 10, "max_wait_ms": HOUR}])
def test_rubbish_among_requests_is_told_to_its_client_alone(serve, ask, name, options):
    serve("identity", **options)
    with (
        shmring.create(f"{name}-answers", slots=1024, temporary=True) as answers,
        answers.consumer("client") as inbox,
    ):
        with shmring.attach(request_ring_name(name)) as ring, ring.producer() as out:
            out.push(Head.of(5, f"{name}-answers").pack() + b"no Arrow")
            out.push(Head.of(5, f"{name}-no-such-ring").pack() + b"no Arrow")
        assert ask([numbers(0)]) == [[numbers(0)]]
        answer = inbox.pop(timeout=120)
    head = Head.unpack(answer, ring="answers")
    assert (head.number, head.flags) == (5, FLAG_LAST | FLAG_ERROR)
    assert b"Damaged" in answer[HEAD_BYTES:]


@pytest.mark.kill
def test_requests_of_a_worker_that_died_over_a_joint_batch_are_answered(serve, ask, marker):
    serve("die_once", max_batch_rows=30, max_wait_ms=HOUR)
    asked = [[numbers(0)], [numbers(10)], [numbers(20)]]
    assert ask(*asked) == asked


@pytest.mark.kill
def test_only_the_request_fails_that_kills_every_worker(serve, ask):
    serve("die_on_seven", workers=2, max_batch_rows=30, max_wait_ms=1)
    good, bad, other = ask([numbers(10)], [numbers(0)], [numbers(20)])
    assert (good, other) == ([numbers(10)], [numbers(20)])
    assert isinstance(bad, shmring.SidecarUnavailable)
    assert "have died over the same batch of 10 rows" in str(bad)


# --- the parts ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_batch_rows": 0}, r"max_batch_rows must be from 1 to .*, not 0"),
        ({"max_wait_ms": 5}, "max_wait_ms is how long requests wait for max_batch_rows"),
        ({"max_batch_rows": 5, "max_wait_ms": -1}, "max_wait_ms must be from 0 to .*, not -1"),
        ({"max_batch_rows": 5, "max_wait_ms": float("nan")}, "max_wait_ms must be from 0 to"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(options, text):
    with pytest.raises(ValueError, match=text):
        Sidecar("a:b", **options)
    with pytest.raises(ValueError, match=text):
        shmring.sidecar("a", **options)


@pytest.mark.parametrize("what", ["workers", "max_batch_rows"])
@pytest.mark.parametrize("value", [1.5, "2", float("nan")])
def test_a_number_that_is_none_is_refused_before_a_worker_starts(what, value):
    with pytest.raises(TypeError, match=f"{what} must be an int, not {value!r}"):
        Sidecar("a:b", **{what: value})


def test_joined_rows_are_cut_where_they_were_joined():
    words = [pa.record_batch({"d": pa.array(w).dictionary_encode()}) for w in (["a", "b"], ["c"])]
    assert joined(words)["d"].to_pylist() == ["a", "b", "c"]
    batches = [numbers(0, 3), numbers(3, 0), numbers(3, 4)]
    assert split([joined(batches)], [3, 0, 4]) == [[it] for it in batches]
    with pytest.raises(ValueError, match="0 rows make 0 batches"):
        joined([numbers(0, 0), numbers(1, 0)])
