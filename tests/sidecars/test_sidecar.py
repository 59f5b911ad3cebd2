"""A sidecar's answers to its clients, while no process dies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from functions import numbers

import shmring
from shmring.sidecars import Sidecar, SidecarClient
from shmring.sidecars.functions import find_function
from shmring.sidecars.wire import (
    HEAD_BYTES,
    Head,
    reply_ring_name,
    request_ring_name,
)

# --- requests and answers -----------------------------------------------------------------------


@pytest.mark.parametrize("in_flight", [pytest.param(1, marks=pytest.mark.long), 20])
def test_answers_come_in_the_order_of_the_batches_whatever_worker_was_first(
    serve, client, in_flight
):
    sidecar = serve("with_pid", workers=3)
    batches = [numbers(i * 10) for i in range(200)]
    pids = set()
    with client(in_flight=in_flight) as it:
        while len(pids) < min(in_flight, 2):  # one may be faster than all others for a while
            for batch, answer in zip(batches, it.map(batches), strict=True):
                assert answer.select(["x"]) == batch
                pids.update(answer.column("pid").to_pylist())
    assert pids <= set(sidecar.pids)


def test_class_is_loaded_once_a_worker_and_called_with_each_batch(serve, client):
    serve("Model")
    with client() as it:
        (answer,) = it.map([pa.record_batch({"x": [1, 2]})])
        assert answer.column("x").to_pylist() == [3, 6]


@pytest.mark.parametrize(
    ("function", "answers"), [("no_batches", 0), ("twice", 2), ("as_table", 2), ("identity", 1)]
)
def test_function_may_return_an_iterator_of_any_length_or_a_table(serve, client, function, answers):
    serve(function)
    batches = [numbers(i) for i in range(5)]
    with client() as it:
        assert list(it.map(batches)) == [b for b in batches for _ in range(answers)]
        assert list(it.map([])) == []


def test_clients_and_batches_of_several_schemas_do_not_mix(served, client, thread):
    name = served("identity", workers=2)
    words = pa.array(["a", "b", "a"]).dictionary_encode()
    kinds = [
        [numbers(i) for i in range(50)],
        [pa.record_batch({"s": ["a", None, str(i)]}) for i in range(50)],
        [pa.record_batch({"d": words, "n": [[i], [], None]}) for i in range(50)],
        [numbers(i) if i % 2 else pa.record_batch({"y": [i * 0.5]}) for i in range(50)],
    ]

    def run(batches):
        with client(name) as it:
            return list(it.map(batches))

    threads = [thread(run, batches) for batches in kinds]
    assert [each.outcome() for each in threads] == kinds


def test_batch_larger_than_the_request_ring_is_sent_in_slices(serve, client):
    serve("identity", slots=1024)
    batch = numbers(0, 200_000)
    with client() as it:
        answers = list(it.map([batch, batch]))
        assert len(answers) > 10
    assert pa.Table.from_batches(answers) == pa.Table.from_batches([batch, batch])


def test_dropped_answers_leave_room_for_those_to_come(served, client):
    name = served("identity", workers=2)
    with client(name, reply_slots=1024) as it:
        for i, answer in enumerate(it.map(numbers(i, 5000) for i in range(100))):
            assert answer.column(0)[0].as_py() == i


# --- exceptions ---------------------------------------------------------------------------------


def test_exception_of_the_function_comes_with_its_traceback_and_the_worker_lives_on(serve, client):
    sidecar = serve("fail_on_seven")
    with client() as it:
        with pytest.raises(shmring.SidecarError, match="seven is not allowed") as caught:
            list(it.map([numbers(0, 3), numbers(5, 3)]))
        assert "in fail_on_seven" in str(caught.value)
        assert "ZeroDivisionError" in str(caught.value)
        assert list(it.map([numbers(0, 3)])) == [numbers(0, 3)]
    assert sidecar.restarts == 0


@pytest.mark.parametrize(
    ("function", "text"),
    [
        ("fail_half_way", "half way"),
        ("leave", "the function leaves"),
        ("say_a_file_name", r"\\udcff\.txt"),
        ("no_arrow", "what functions:no_arrow returned cannot be sent: expected Arrow data"),
        ("nothing", "functions:nothing returned None, not Arrow data"),
        ("nothing_at_last", "functions:nothing_at_last returned None"),
    ],
)
def test_whatever_goes_wrong_in_the_function_is_the_answer(serve, client, function, text):
    sidecar = serve(function)
    with client() as it, pytest.raises(shmring.SidecarError, match=text):
        list(it.map([numbers(0)]))
    assert sidecar.restarts == 0


def test_what_was_answered_before_the_batch_that_raised_comes_first(
    serve, client, monkeypatch, tmp_path
):
    monkeypatch.setenv("SHMRING_TEST_MARKER", str(tmp_path / "marker"))
    serve("fail_before_the_first", workers=2)
    batches = [numbers(first) for first in (0, 10, 20)]
    with client() as it:
        answers = it.map(batches)
        assert next(answers) == batches[0]
        with pytest.raises(shmring.SidecarError, match="ten is not allowed"):
            next(answers)


def test_client_goes_on_after_a_map_that_was_left_in_the_middle(serve, client):
    serve("slow", workers=2)
    with client(in_flight=5) as it:
        for _ in range(3):
            answers = it.map(numbers(i) for i in range(10))
            assert next(answers) == numbers(0)
            answers.close()
        assert list(it.map([numbers(77)])) == [numbers(77)]


def test_error_of_the_callers_own_iterator_is_his(served, client):
    name = served("identity", workers=2)

    def batches():
        yield numbers(0)
        raise LookupError("no more batches")

    with client(name) as it:
        with pytest.raises(LookupError, match="no more batches"):
            list(it.map(batches()))
        assert list(it.map([numbers(1)])) == [numbers(1)]


def test_second_map_in_the_middle_of_the_first_is_refused(serve, client):
    serve("identity")
    with client() as it:
        answers = it.map([numbers(0)] * 10)
        next(answers)
        with pytest.raises(RuntimeError, match="use a second client"):
            next(it.map([numbers(0)]))
        answers.close()


# --- callers that keep what they get ------------------------------------------------------------


def test_caller_may_keep_all_batches(served, client):
    name = served("identity", workers=2)
    words = pa.array(["a", None, "b"] * 200).dictionary_encode()
    kinds = [numbers(0, 5_000), pa.record_batch({"d": words}), numbers(0, 0), numbers(0, 1)]
    batches = [kinds[i % 7 % 4].replace_schema_metadata({"i": str(i // 9)}) for i in range(200)]
    with client(name, reply_slots=1024, timeout=60) as it:
        answers = list(it.map(batches))
    assert answers == batches
    assert [a.schema.metadata for a in answers] == [b.schema.metadata for b in batches]


def test_answers_may_be_larger_than_the_reply_ring(serve, client):
    serve("many", workers=2)
    batches = [numbers(i * 30, 30) for i in range(4)]
    with client(reply_slots=1024, timeout=60) as it:
        kept = []
        for i, answer in enumerate(it.map(batches)):
            assert answer.column(0).to_pylist() == [i] * 12_500
            kept.append(answer)
        assert len(kept) == 120


@pytest.mark.slow
def test_worker_makes_the_pieces_of_an_answer_only_as_there_is_room(serve, client):
    (pid,) = serve("many").pids

    def peak() -> int:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

    with client(reply_slots=1024) as it:
        list(it.map([numbers(0, 20)]))
        before = peak()
        answers = it.map([numbers(0, 2000)])  # 200,000 KB in pieces
        next(answers)
        assert peak() - before < 100_000
        answers.close()


def test_client_that_stops_reading_does_not_stop_the_others(serve, client):
    serve("many")
    with client(reply_slots=1024) as lazy, client() as eager:
        unread = lazy.map(numbers(i, 20) for i in range(100))
        next(unread)
        assert len(list(eager.map([numbers(0, 20)]))) == 20
        unread.close()


# --- invalid calls and answers ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("FailsToLoad", "ended with status 1"),
        ("no_such_function", "ended with status 1"),
        ("NeverLoads", "was not ready in time"),
    ],
)
def test_sidecar_that_cannot_load_its_function_says_so_and_leaves_nothing(
    name, target, text, capfd
):
    timeout = 2.0 if target == "NeverLoads" else 60.0
    with pytest.raises(shmring.SidecarUnavailable, match=text):
        Sidecar(f"functions:{target}", name=name, workers=2).start(timeout=timeout)
    assert request_ring_name(name) not in shmring.rings()
    if target == "FailsToLoad":
        assert "the model is not where it was" in capfd.readouterr().err


def test_numbers_may_be_numpys():
    given = {"workers": np.int64(1), "max_batch_rows": np.int32(5), "max_wait_ms": np.float32(5)}
    Sidecar("a:b", **given)


def test_numbers_below_one_are_refused():
    with pytest.raises(ValueError, match=r"workers must be from 1 to .*, not 0"):
        Sidecar("a:b", workers=0)
    with pytest.raises(ValueError, match=r"in_flight must be from 1 to .*, not 0"):
        SidecarClient("a", in_flight=0)


def test_function_that_a_module_lacks_is_answered_with_those_that_it_defines():
    with pytest.raises(ValueError, match="json has no nosuch; it defines dump, dumps, "):
        find_function("json:nosuch")
    with pytest.raises(ValueError, match=r"module keyword has no kwlst$"):
        find_function("keyword:kwlst")


def test_name_for_which_a_request_has_no_room_is_refused(name):
    longest = name.ljust(93, "n")
    for refused in (
        lambda: Sidecar("a:b", name=f"{longest}n"),
        lambda: SidecarClient(f"{longest}n"),
    ):
        with pytest.raises(ValueError, match="at most 93 bytes, because requests carry it"):
            refused()
    with (
        Sidecar("functions:double", name=longest),
        SidecarClient(longest) as client,
    ):
        assert [batch.num_rows for batch in client.map(iter([numbers(0, 3)]))] == [3]


def test_function_of_the_script_itself_is_refused():
    def function(batch):
        return batch

    function.__module__ = "__main__"
    with pytest.raises(ValueError, match="must be in a module"):
        Sidecar(function)
    with pytest.raises(ValueError, match="named as module:function, not 'functions'"):
        Sidecar("functions")


def test_foreign_messages_in_the_request_ring_are_passed_over(serve, client, capfd):
    serve("identity")
    with client() as it, shmring.attach(request_ring_name(it.name)) as ring, ring.producer() as out:
        out.push(b"hello")
        out.push(b"x" * 1000)
        out.push(Head.of(1, "no-such-ring").pack())
        out.push(Head.of(1, "../../etc/passwd").pack() + b"x")
        assert list(it.map([numbers(1)])) == [numbers(1)]


# CHANGE: edit this for a new field of a request
def test_head_of_a_request_survives_the_wire():
    replies = reply_ring_name("a", "b")
    sent = Head.of(2**40, replies, rows=2**32 - 1)
    sent = sent._replace(application=b"app-1", stage=3, partition=4, attempt=2**33)
    head = Head.unpack(sent.pack(), ring="r")
    assert (head.number, head.reply_ring, head.rows) == (2**40, replies, 2**32 - 1)
    assert head.describe().endswith("(partition 4 of stage 3, attempt 8589934592, app-1)")
    answer = Head.unpack(head.answer(7, 3, 2**63, 5), ring="r")
    assert answer == head._replace(piece=7, flags=3, worked=2**63, batches=5)
    with pytest.raises(shmring.Damaged, match="is no request or answer"):
        Head.unpack(b"short", ring="r")
    with pytest.raises(shmring.Damaged, match="do client and sidecar run the same"):
        Head.unpack(b"\xff" * HEAD_BYTES, ring="r")
    with pytest.raises(shmring.Damaged, match="names no ring to answer to"):
        Head.unpack(Head.of(1, "é").pack(), ring="r")
