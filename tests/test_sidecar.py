"""Sidecars and their clients, as long as nobody dies."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import shmring
from shmring.sidecars import Sidecar, SidecarClient, Task
from shmring.sidecars import client as client_module
from shmring.sidecars.wire import (
    FLAG_LAST,
    HEAD_BYTES,
    WORKERS_BRANCH,
    Head,
    reply_ring_name,
    request_ring_name,
)

HERE = str(Path(__file__).parent)


@pytest.fixture(autouse=True)
def _functions_can_be_imported(monkeypatch):
    monkeypatch.setattr(sys, "path", [HERE, *sys.path])


@pytest.fixture
def serve(name):
    """Starts a sidecar that runs a function of functions.py; it is stopped with the test."""
    started = []

    def start(function, **options):
        started.append(Sidecar(f"functions:{function}", name=name, **options).start())
        return started[-1]

    yield start
    for sidecar in started:
        sidecar.stop()


@pytest.fixture
def client(name):
    """Makes clients of the test's sidecar; they are closed with the test."""
    made = []

    def make(**options):
        made.append(SidecarClient(name, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def numbers(first: int, rows: int = 10) -> pa.RecordBatch:
    return pa.record_batch({"x": pa.array(np.arange(first, first + rows))})


# --- requests and answers -----------------------------------------------------------------------


@pytest.mark.parametrize("in_flight", [1, 3, 20])
def test_answers_come_in_the_order_of_the_batches_whatever_worker_was_first(
    serve, client, in_flight
):
    sidecar = serve("with_pid", workers=3)
    batches = [numbers(i * 10) for i in range(200)]
    pids = set()
    with client(in_flight=in_flight) as it:
        for batch, answer in zip(batches, it.map(batches), strict=True):
            assert answer.select(["x"]) == batch
            pids.update(answer.column("pid").to_pylist())
        assert it.metrics.requests == it.metrics.answers == 200
        assert it.metrics.rows == 2000
    assert pids <= set(sidecar.pids)
    assert in_flight == 1 or len(pids) > 1


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


def test_function_that_has_no_rows_returns_an_empty_batch(serve, client):
    serve("no_rows")
    with client() as it:
        assert list(it.map([numbers(0), numbers(1)])) == [numbers(0, 0)] * 2


def test_empty_batch_and_batch_without_columns_are_answered(serve, client):
    serve("identity")
    batches = [numbers(0, 0), pa.RecordBatch.from_arrays([], schema=pa.schema([]))]
    with client() as it:
        assert list(it.map(batches)) == batches


def test_clients_and_batches_of_several_schemas_do_not_mix(serve, client, thread):
    serve("identity", workers=2)
    words = pa.array(["a", "b", "a"]).dictionary_encode()
    kinds = [
        [numbers(i) for i in range(50)],
        [pa.record_batch({"s": ["a", None, str(i)]}) for i in range(50)],
        [pa.record_batch({"d": words, "n": [[i], [], None]}) for i in range(50)],
        [numbers(i) if i % 2 else pa.record_batch({"y": [i * 0.5]}) for i in range(50)],
    ]

    def run(batches):
        with client() as it:
            return list(it.map(batches))

    threads = [thread(run, batches) for batches in kinds]
    assert [each.outcome() for each in threads] == kinds


def test_batch_larger_than_the_request_ring_is_sent_in_slices(serve, client):
    serve("identity", slots=1024)
    batch = numbers(0, 200_000)
    with client() as it:
        answers = list(it.map([batch, batch]))
        assert it.metrics.requests == len(answers) > 10
    assert pa.Table.from_batches(answers) == pa.Table.from_batches([batch, batch])


def test_dropped_answers_leave_room_for_those_to_come(serve, client):
    serve("identity")
    with client(reply_slots=1024) as it:
        for i, answer in enumerate(it.map(numbers(i, 5000) for i in range(100))):
            assert answer.column(0)[0].as_py() == i
        assert it.metrics.answers == 100


def test_answers_lie_in_the_reply_ring(serve, client):
    serve("identity")
    with client() as it:
        answers = it.map(numbers(i, 100_000) for i in range(5))
        next(answers)  # a copy: Spark keeps the first one
        address = next(answers).column(0).buffers()[1].address
        with open("/proc/self/maps") as maps:
            replies = [line.split()[0] for line in maps if f"/shmring.reply.{it.name}." in line]
        ranges = [[int(end, 16) for end in line.split("-")] for line in replies]
        assert any(low <= address < high for low, high in ranges)
        answers.close()


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


def test_row_that_does_not_fit_the_reply_ring_is_said_so(serve, client):
    serve("identity")
    row = pa.record_batch({"s": ["x" * 200_000]})
    with client(reply_slots=1024) as it, pytest.raises(shmring.SidecarError, match="MessageTooLar"):
        list(it.map([row]))


def test_client_goes_on_after_a_map_that_was_left_in_the_middle(serve, client):
    serve("slow", workers=2)
    with client(in_flight=5) as it:
        for _ in range(3):
            answers = it.map(numbers(i) for i in range(10))
            assert next(answers) == numbers(0)
            answers.close()
        assert list(it.map([numbers(77)])) == [numbers(77)]


def test_error_of_the_callers_own_iterator_is_his(serve, client):
    serve("identity")

    def batches():
        yield numbers(0)
        raise LookupError("no more batches")

    with client() as it:
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


@pytest.mark.parametrize("rows", [1, 500, 5_000, 18_000])
def test_caller_may_keep_all_batches(serve, client, rows):
    serve("identity", workers=2)
    batches = [numbers(i, rows) for i in range(300 if rows < 5000 else 60)]
    with client(reply_slots=1024, timeout=60) as it:
        assert list(it.map(batches)) == batches


def test_caller_may_keep_every_second_batch(serve, client):
    serve("identity", workers=2)
    with client(reply_slots=1024) as it:
        kept = [b for i, b in enumerate(it.map(numbers(i) for i in range(400))) if i % 2]
        assert kept == [numbers(i) for i in range(1, 400, 2)]


@pytest.mark.parametrize("keep", [True, False])
def test_answers_may_be_larger_than_the_reply_ring(serve, client, keep):
    serve("many", workers=2)
    batches = [numbers(i * 30, 30) for i in range(4)]
    with client(reply_slots=1024, timeout=60) as it:
        kept = []
        for i, answer in enumerate(it.map(batches)):
            assert answer.column(0).to_pylist() == [i] * 12_500
            kept.append(answer if keep else None)
        assert len(kept) == 120


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


# --- being there --------------------------------------------------------------------------------


def test_no_sidecar_is_said_within_the_patience(client):
    with pytest.raises(shmring.SidecarUnavailable, match="start it with `shmring sidecar"):
        client(patience=0)


def test_client_waits_for_a_sidecar_that_comes_later(serve, client, thread, name):
    def run():
        with client(patience=20) as it:
            return list(it.map([numbers(1)]))

    waiting = thread(run)
    serve("identity")
    assert waiting.outcome() == [numbers(1)]


def test_patience_is_named_where_it_ends(client):
    with pytest.raises(shmring.SidecarUnavailable, match=r"waited 0 s, patience=\.\.\."):
        client(patience=0)


def test_worker_that_loads_is_waited_for_longer_than_one_that_is_not_there(
    serve, client, thread, until, monkeypatch, tmp_path
):
    marker = tmp_path / "go on"
    monkeypatch.setenv("SHMRING_TEST_MARKER", str(marker))
    starting = thread(serve, "LoadedWithMarker")
    until(marker.with_suffix(".begun").exists)
    looks = []
    look = client_module.SidecarClient._look
    monkeypatch.setattr(client_module, "_LOOK_EVERY", 0.0)
    monkeypatch.setattr(
        client_module.SidecarClient, "_look", lambda it: looks.append(it) or look(it)
    )

    def ask():
        with client(patience=0) as it:
            return list(it.map([numbers(1)]))

    asking = thread(ask)
    until(lambda: len(looks) > 5 or asking.error, "some looks")
    marker.touch()
    assert asking.outcome() == [numbers(1)]
    starting.outcome()


def test_client_that_gives_up_says_that_the_workers_are_loading(
    serve, client, thread, until, monkeypatch, tmp_path
):
    marker = tmp_path / "go on"
    monkeypatch.setenv("SHMRING_TEST_MARKER", str(marker))
    starting = thread(serve, "LoadedWithMarker")
    until(marker.with_suffix(".begun").exists)
    with (
        client(patience=0, timeout=0.1) as it,
        pytest.raises(shmring.SidecarUnavailable, match=r"timeout=\.\.\.") as caught,
    ):
        list(it.map([numbers(1)]))
    marker.touch()
    (pid,) = starting.outcome().pids
    assert f"worker {pid} has been loading functions:LoadedWithMarker for " in str(caught.value)


def test_client_that_gives_up_says_what_the_workers_are_at(
    serve, client, thread, until, monkeypatch, tmp_path
):
    marker = tmp_path / "go on"
    monkeypatch.setenv("SHMRING_TEST_MARKER", str(marker))
    (pid,) = serve("wait_for_marker").pids
    task = Task("app-7", stage=1, partition=2, attempt=3)
    with client(task=task) as busy, client(timeout=0.1) as it:
        asking = thread(lambda: list(busy.map([numbers(0)])))
        until(marker.with_suffix(".begun").exists)
        with pytest.raises(shmring.SidecarUnavailable) as caught:
            list(it.map([numbers(0)]))
        marker.touch()
        assert asking.outcome() == [numbers(0)]
    assert (
        f"worker {pid} (functions:wait_for_marker) has been at request 0 of process {os.getpid()} "
        "(partition 2 of stage 1, attempt 3, app-7) for at least "
    ) in str(caught.value)


def test_sidecar_that_answers_too_slowly_is_given_up(serve, client, monkeypatch, tmp_path):
    monkeypatch.setenv("SHMRING_TEST_MARKER", str(tmp_path / "go on"))
    serve("wait_for_marker")
    with (
        client(timeout=0.1) as it,
        pytest.raises(shmring.SidecarUnavailable, match="lives but has not answered"),
    ):
        list(it.map([numbers(0)]))
    (tmp_path / "go on").touch()


def test_pause_of_the_caller_does_not_count_as_silence_of_the_sidecar(serve, client, monkeypatch):
    serve("slow")
    with client(timeout=5, in_flight=1) as it:
        answers = it.map([numbers(0), numbers(1)])
        next(answers)
        it._last_sign -= 3600
        assert next(answers) == numbers(1)


def test_two_sidecars_of_one_name_share_the_requests_and_the_last_removes_the_ring(serve, client):
    first, second = serve("identity"), serve("identity")
    with client() as it:
        first.stop()
        assert list(it.map([numbers(i) for i in range(10)])) == [numbers(i) for i in range(10)]
        second.stop()
    assert request_ring_name(it.name) not in shmring.rings()


def test_sidecar_that_is_still_loading_keeps_the_ring_where_another_one_stops(
    serve, client, thread, until, monkeypatch, tmp_path
):
    marker = tmp_path / "go on"
    monkeypatch.setenv("SHMRING_TEST_MARKER", str(marker))
    first = serve("identity")
    second = thread(serve, "LoadedWithMarker")
    until(marker.with_suffix(".begun").exists)
    first.stop()
    marker.touch()
    second.outcome()
    with client() as it:
        assert list(it.map([numbers(1)])) == [numbers(1)]


def test_sidecar_can_be_started_again_after_stop(serve, client):
    sidecar = serve("identity")
    sidecar.stop()
    sidecar.stop()
    sidecar.start()
    with pytest.raises(RuntimeError, match="started already"):
        sidecar.start()
    with client() as it:
        assert list(it.map([numbers(1)])) == [numbers(1)]


def test_requests_under_way_are_asked_again_where_the_sidecar_was_started_anew(
    serve, client, monkeypatch, tmp_path, thread, until
):
    """The second sidecar has a new ring of the same name; the first one's is gone."""
    marker = tmp_path / "go on"
    monkeypatch.setenv("SHMRING_TEST_MARKER", str(marker))
    first = serve("wait_for_marker")
    with client(patience=60) as it:
        mapping = thread(lambda: list(it.map([numbers(i) for i in range(5)])))
        until(marker.with_suffix(".begun").exists)
        for pid in first.pids:
            os.kill(pid, 9)
        first.stop()
        serve("identity")
        assert mapping.outcome() == [numbers(i) for i in range(5)]


# --- seats --------------------------------------------------------------------------------------


@pytest.fixture
def crowded(serve, client):
    """A sidecar, as many clients as it has seats for, and the error of the next one."""
    sidecar = serve("identity")
    clients = []

    def fill():
        while True:
            clients.append(client(reply_slots=1024, timeout=0))

    with pytest.raises(shmring.SidecarUnavailable) as caught:
        fill()
    return sidecar, clients, str(caught.value)


@pytest.fixture
def refused(monkeypatch):
    """Every time that a client was refused a seat."""
    times = []
    enter = client_module.enter

    def counted(name):
        try:
            return enter(name)
        except shmring.LimitReached as error:
            times.append(error)
            raise

    monkeypatch.setattr(client_module, "enter", counted)
    return times


def test_client_without_a_seat_says_who_has_them(crowded):
    sidecar, clients, text = crowded
    assert len(clients) > 100
    assert f'sidecar "{sidecar.name}" has had no seat for another client for 0 s' in text
    assert f"{len(clients)} clients and 1 workers have them" in text
    assert f"are the processes {os.getpid()} for " in text


def test_client_waits_for_a_seat(crowded, client, thread, until, refused):
    _, clients, _ = crowded

    def ask():
        with client(reply_slots=1024) as it:
            return list(it.map([numbers(1)]))

    asking = thread(ask)
    until(lambda: refused, "the wait")
    clients[50].close()
    assert asking.outcome() == [numbers(1)]


def test_clients_that_wait_leave_a_killed_workers_seats_to_the_next_one(
    crowded, client, thread, until, refused
):
    sidecar, clients, _ = crowded

    def ask():
        with client(reply_slots=1024) as it:
            return list(it.map([numbers(1)]))

    asking = [thread(ask) for _ in range(5)]
    until(lambda: len(refused) > 5, "the wait")
    os.kill(sidecar.pids[0], signal.SIGKILL)
    until(lambda: sidecar.restarts == 1, "the restart")
    with shmring.attach(request_ring_name(sidecar.name), read_only=True) as ring:
        until(
            lambda: [s for s in ring.seats() if s["pid"] in sidecar.pids and s["role"] == "member"]
        )
    for each in clients:
        each.close()
    assert [each.outcome() for each in asking] == [[numbers(1)]] * 5


def test_decorated_function_brings_name_and_number_of_workers():
    from functions import marked

    assert marked(numbers(1)) == numbers(1)
    with marked.sidecar() as sidecar:
        assert sidecar.name == "marked-by-the-decorator"
        assert len(sidecar.pids) == 2
        with SidecarClient("marked-by-the-decorator") as it:
            assert list(it.map([numbers(1)])) == [numbers(1)]


# --- what cannot be -----------------------------------------------------------------------------


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


def test_numbers_below_one_are_refused():
    with pytest.raises(ValueError, match="workers must be at least 1, not 0"):
        Sidecar("a:b", workers=0)
    with pytest.raises(ValueError, match="in_flight must be at least 1, not 0"):
        SidecarClient("a", in_flight=0)


def test_function_of_the_script_itself_is_refused():
    def function(batch):
        return batch

    function.__module__ = "__main__"
    with pytest.raises(ValueError, match="must stand in a module"):
        Sidecar(function)


def test_foreign_messages_in_the_request_ring_are_passed_over(serve, client, capfd):
    serve("identity")
    with client() as it, shmring.attach(request_ring_name(it.name)) as ring, ring.producer() as out:
        out.push(b"hello")
        out.push(b"x" * 1000)
        out.push(Head(1, "no-such-ring").pack())
        out.push(Head(1, "../../etc/passwd").pack() + b"x")
        assert list(it.map([numbers(1)])) == [numbers(1)]


def test_rubbish_in_a_request_is_answered_with_an_error(serve, name):
    serve("identity")
    with (
        shmring.create(f"{name}-answers", slots=1024, temporary=True) as answers,
        answers.consumer("client") as inbox,
    ):
        with shmring.attach(request_ring_name(name)) as ring, ring.producer() as out:
            out.push(Head(5, f"{name}-answers").pack() + b"no Arrow")
        answer = inbox.pop(timeout=120)
    head = Head.unpack(memoryview(answer), ring="answers")
    assert (head.number, head.flags) == (5, FLAG_LAST | 1)
    assert b"Damaged" in answer[HEAD_BYTES:]


def test_head_of_a_request_survives_the_wire():
    head = Head(2**40, reply_ring_name("a", "b"), Task("app-1", 3, 4, 2**33), piece=7, flags=3)
    assert Head.unpack(memoryview(head.pack()), ring="r") == head
    with pytest.raises(shmring.Damaged, match="is no request or answer"):
        Head.unpack(memoryview(b"short"), ring="r")
    with pytest.raises(shmring.Damaged, match="do client and sidecar run the same"):
        Head.unpack(memoryview(b"\xff" * HEAD_BYTES), ring="r")


def test_task_travels_with_the_request_and_back(name, thread):
    task = Task("app-7", stage=1, partition=2, attempt=3)

    def ask():
        with SidecarClient(name, task=task) as it:
            return list(it.map([numbers(1)]))

    with (
        shmring.create(request_ring_name(name), slots=1024, temporary=True) as ring,
        ring.consumer(WORKERS_BRANCH, start="earliest") as inbox,
    ):
        asking = thread(ask)
        head = Head.unpack(memoryview(inbox.pop(timeout=120)), ring="r")
        assert (head.task, head.number) == (task, 0)
        with shmring.attach(head.reply_ring) as answers, answers.producer() as out:
            out.push(head.answer(0, FLAG_LAST).pack())
        assert asking.outcome() == []


def test_sidecar_whose_ring_nobody_makes_says_how_to_make_it(name):
    sidecar = Sidecar("functions:identity", name=name, existing_ring=True)
    with pytest.raises(shmring.SidecarUnavailable, match=f"shmring create sidecar.{name}"):
        sidecar.start(timeout=0)
    with pytest.raises(ValueError, match="slots"):
        Sidecar("functions:identity", name=name, slots=1024, existing_ring=True)
