"""The clients that Spark's Python workers keep from task to task; here without Spark."""

from __future__ import annotations

import os

import pyarrow as pa
import pytest
from functions import numbers

from shmring.errors import SidecarError
from shmring.spark import through
from shmring.spark.functions import kept_clients


@pytest.fixture(autouse=True)
def _as_in_a_worker_that_spark_uses_again(monkeypatch, until):
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    yield
    monkeypatch.setattr(kept_clients, "_IDLE", 0.0)
    until(lambda: not kept_clients._kept._idle, "the end of what is kept")


@pytest.fixture
def ask(name):
    """What comes back of a task with these batches."""

    def ask(*batches, **options):
        return list(through(name, **options)(batches))

    return ask


def test_next_task_has_the_client_of_the_last_which_goes_with_its_sidecar(
    serve, ask, reply_rings, until
):
    sidecar = serve("identity")
    assert ask(numbers(0)) == [numbers(0)]
    (first,) = reply_rings()
    for k in range(5):
        assert ask(numbers(k), numbers(k + 1)) == [numbers(k), numbers(k + 1)]
        assert reply_rings() == [first]
    sidecar.stop()
    assert not reply_rings()  # whatever becomes of this process


def test_client_that_nobody_wants_is_closed(serve, ask, reply_rings, until, monkeypatch):
    monkeypatch.setattr(kept_clients, "_IDLE", 0.0)
    serve("identity")
    for _ in range(2):
        assert ask(numbers(0)) == [numbers(0)]
        until(lambda: not reply_rings(), "the end of the client")


def test_process_that_has_one_task_keeps_nothing(serve, ask, reply_rings, monkeypatch):
    monkeypatch.delenv("SPARK_REUSE_WORKER")
    serve("identity")
    assert ask(numbers(0)) == [numbers(0)]
    assert not reply_rings()


def test_sidecar_that_was_started_anew_is_asked_by_the_next_task(serve, ask, reply_rings):
    first = serve("identity")
    assert ask(numbers(1)) == [numbers(1)]
    first.stop()
    serve("double")
    (answer,) = ask(numbers(1))
    assert answer["x"].to_pylist() == [2 * x for x in range(1, 11)]
    assert len(reply_rings()) == 1


def test_tasks_at_one_time_have_a_client_each(serve, name, ask, reply_rings, thread):
    serve("identity", workers=2)
    one, other = (through(name)(iter([numbers(k), numbers(k + 1)])) for k in (0, 5))
    assert (next(one), next(other)) == (numbers(0), numbers(5))
    assert len(reply_rings()) == 2
    assert (list(one), list(other)) == ([numbers(1)], [numbers(6)])
    rings = reply_rings()
    assert len(rings) == 2
    jobs = [thread(lambda k=k: [ask(numbers(k)) for _ in range(50)]) for k in range(2)]
    assert [job.outcome() for job in jobs] == [[[numbers(k)]] * 50 for k in range(2)]
    assert reply_rings() == rings


def test_other_options_are_another_client(serve, ask, reply_rings):
    serve("identity")
    assert ask(numbers(0)) == ask(numbers(0), reply_slots=1024) == [numbers(0)]
    assert len(reply_rings()) == 2


def test_task_that_fails_keeps_no_client(serve, ask, reply_rings):
    serve("fail_on_seven")
    with pytest.raises(SidecarError, match="seven is not allowed"):
        ask(numbers(0))
    assert not reply_rings()


def test_task_that_ends_with_requests_under_way_keeps_no_client(serve, name, reply_rings, marker):
    serve("wait_for_marker")

    def batches():
        yield numbers(0)
        yield numbers(1)
        marker.touch()  # no request has been answered before two were sent
        yield numbers(2)

    answers = through(name)(batches())
    assert next(answers) == numbers(0)
    answers.close()
    assert not reply_rings()


def test_batches_of_tasks_before_stay_as_they_are(serve, ask):
    serve("identity")
    kept = [ask(*map(numbers, range(k, k + 3)), reply_slots=1024) for k in range(200)]
    assert kept == [[numbers(k), numbers(k + 1), numbers(k + 2)] for k in range(200)]
    large = pa.record_batch({"x": pa.array(range(10_000))})
    for _ in range(20):
        assert ask(large, large, reply_slots=1024) == [large, large]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forked_child_has_clients_of_its_own(serve, ask, reply_rings, until):
    serve("identity")
    ask(numbers(0))
    rings = reply_rings()
    child = os.fork()
    if child == 0:
        done = False
        try:
            done = ask(numbers(1)) == [numbers(1)] and set(rings) < set(reply_rings())
        finally:
            os._exit(0 if done else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    until(lambda: reply_rings() == rings, "the sweep of what the child has left")
    assert ask(numbers(2)) == [numbers(2)]
    assert reply_rings() == rings
