"""No request stays in the ring once it is answered, and no slow one stops the clients of others."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from functions import numbers

import shmring
from shmring.sidecars import SidecarClient
from shmring.sidecars import client as client_module
from shmring.sidecars.rings import MOVED, parked_rings, sweep
from shmring.sidecars.wire import parked_ring_name, request_ring_name

SLOTS = 4096  # slots of the request ring: 30 requests of ROWS
ROWS = 5000
LAPS = [numbers(i * 10 + 10_000, ROWS) for i in range(100)]
SLOW = numbers(7, ROWS)


@pytest.fixture
def begun(marker: Path) -> Callable[[], bool]:
    return marker.with_suffix(".begun").exists


@pytest.fixture
def slow(name: str, thread: Any, until: Any, begun: Callable[[], bool]) -> Any:
    """Lets a worker begin with a batch that waits for the marker; its client's thread."""

    def start() -> Any:
        def ask() -> list[pa.RecordBatch]:
            with SidecarClient(name, connect_timeout=60) as client:
                return list(client.map([SLOW]))

        asked = thread(ask)
        until(begun, "the slow request")
        return asked

    return start


def moved(name: str) -> list[int]:
    """Processes that are at requests which have left the sidecar's ring."""
    with shmring.attach(request_ring_name(name), read_only=True) as ring:
        return [
            each["pid"]
            for each in ring.participants()
            if each["alive"] and each["name"].startswith(MOVED)
        ]


def test_errors_let_their_requests_go(serve, client):
    serve("RaisesEveryThird", slots=SLOTS)
    failed = 0
    with client(timeout=60) as it:
        for i in range(500):
            batch = numbers(i, ROWS)
            try:
                assert list(it.map([batch])) == [batch]
            except shmring.SidecarError:
                failed += 1
    assert failed == 167


def test_errors_of_joined_requests_let_them_go(serve, client):
    serve("RaisesEveryThird", slots=SLOTS, max_batch_rows=2 * ROWS, max_wait_ms=1)
    with client(timeout=60) as it, client(timeout=60) as other:
        for i in range(0, 150, 3):
            for each in (it, other):
                with pytest.raises(shmring.SidecarError, match="every third"):
                    list(each.map([numbers(i, ROWS)]))


def test_function_that_keeps_its_batches_is_told_of_and_stops_nobody(
    serve, client, name, until, capfd
):
    serve("Keeps", slots=SLOTS)
    with client(timeout=60) as it:
        batches = [numbers(i, ROWS) for i in range(80)]
        *_, last = it.map(batches)
    assert last.column(0).to_pylist() == [
        sum(range(i, i + ROWS)) for i in range(1, 80, 2)
    ]  # the batches kept by the function have not changed
    said: list[str] = []

    def is_said() -> bool:
        said.append(capfd.readouterr().err)
        return "still holds" in "".join(said)

    until(is_said, "the line")
    assert f"the function still holds the batch of request 1 of process {os.getpid()}" in said[-1]


def test_others_are_served_beside_a_request_that_hangs(serve, map_all, slow, marker, name, until):
    serve("wait_on_seven", workers=2, slots=SLOTS)
    asked = slow()
    assert map_all(*LAPS) == LAPS
    until(lambda: len(moved(name)) == 1, "its entry")
    assert len([*parked_rings(name)]) == 1
    marker.touch()
    assert asked.outcome() == [SLOW]
    assert map_all(*LAPS) == LAPS
    until(lambda: not moved(name) and not [*parked_rings(name)], "the end of what had moved")


def test_others_are_served_beside_a_client_that_does_not_read_its_answers(serve, client, map_all):
    serve("identity", slots=4 * SLOTS)
    large = [numbers(i, 100_000) for i in range(3)]  # each larger than the ring for its answer
    with client(reply_slots=1024) as paused:
        answers = paused.map(large)
        got = [next(answers)]
        batches = LAPS + LAPS
        assert map_all(*batches, timeout=60) == batches
        for answer in answers:
            got.append(answer)
    whole = pa.Table.from_batches(large)
    assert pa.Table.from_batches(got).equals(whole)


@pytest.mark.kill
def test_request_that_has_moved_is_delivered_again_when_its_worker_dies(
    serve, map_all, slow, marker, name, until
):
    sidecar = serve("wait_on_seven", workers=2, slots=SLOTS)
    asked = slow()
    assert map_all(*LAPS) == LAPS
    calls = marker.with_suffix(".calls")
    until(lambda: moved(name), "its entry")
    for deaths in (1, 2):  # the second one had it from a dead one
        (pid,) = moved(name)
        os.kill(pid, signal.SIGKILL)
        until(lambda deaths=deaths: calls.read_text() == "7" * (deaths + 1), "the next worker")
        until(lambda pid=pid: moved(name) and moved(name) != [pid], "its entry")
        assert map_all(*LAPS[:40], connect_timeout=60) == LAPS[:40]
    marker.touch()
    assert asked.outcome() == [SLOW]
    until(lambda: sidecar.restarts == 2, "the second restart")
    until(lambda: not [*parked_rings(name)], "the end of what had moved")


@pytest.mark.kill
def test_request_that_kills_every_worker_fails_its_client_also_when_it_has_moved(
    serve, map_all, slow, marker, name, until
):
    serve("wait_on_seven", workers=2, slots=SLOTS)
    asked = slow()
    assert map_all(*LAPS) == LAPS
    calls = marker.with_suffix(".calls")
    for deaths in (1, 2, 3):
        until(lambda: moved(name), "a worker that is at it")
        os.kill(moved(name)[0], signal.SIGKILL)
        until(lambda deaths=deaths: len(calls.read_text()) == deaths + 1, "the next worker")
    with pytest.raises(shmring.SidecarUnavailable, match="3 workers of sidecar"):
        asked.outcome()
    marker.touch()
    until(lambda: not [*parked_rings(name)], "the end of what had moved")


@pytest.mark.kill
@pytest.mark.parametrize(
    "step",
    [
        "before made",
        "after made",
        "after own",
        pytest.param("before own", marks=pytest.mark.long),
        pytest.param("after settle", marks=pytest.mark.long),
        pytest.param("after announce", marks=pytest.mark.long),
    ],
)
def test_worker_may_die_at_any_step_of_a_move(serve, map_all, slow, marker, name, until, step):
    marker.with_suffix(".step").write_text(step)
    serve("DiesWhileMoving", workers=2, slots=SLOTS)
    asked = slow()
    assert map_all(*LAPS, connect_timeout=60) == LAPS
    until(lambda: marker.with_suffix(".calls").read_text() == "77", "the next worker")
    marker.touch()
    assert asked.outcome() == [SLOW]
    assert marker.with_suffix(".calls").read_text() == "77"
    until(lambda: not [*parked_rings(name)], "the end of what had moved")


@pytest.mark.kill
def test_worker_that_took_a_request_over_may_die_when_it_has_answered(
    serve, map_all, slow, marker, name, until
):
    marker.with_suffix(".step").write_text("before close")
    sidecar = serve("DiesWhileMoving", workers=2, slots=SLOTS)
    asked = slow()
    assert map_all(*LAPS) == LAPS
    until(lambda: moved(name), "its entry")
    (pid,) = moved(name)
    os.kill(pid, signal.SIGKILL)
    until(lambda: moved(name) and moved(name) != [pid], "its next worker's entry")
    marker.touch()
    assert asked.outcome() == [SLOW]
    until(lambda: not [*parked_rings(name)], "the end of what had moved")
    assert map_all(*LAPS, connect_timeout=60) == LAPS
    until(lambda: sidecar.restarts == 2, "the second restart")


@pytest.mark.kill
def test_workers_killed_at_random_beside_slow_requests_lose_and_double_nothing(
    serve, client, marker, name, thread, monkeypatch
):
    # All three kills may meet the same request, whose client would give it up then.
    monkeypatch.setattr(client_module, "_DEATHS", 4)
    sidecar = serve("wait_on_seven", workers=3, slots=SLOTS)
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)

    def ask() -> list[pa.RecordBatch]:
        with SidecarClient(name, connect_timeout=60) as it:
            return list(it.map([SLOW, *LAPS[:20]]))

    asked = [thread(ask) for _ in range(2)]
    got = []
    with client(in_flight=6, connect_timeout=60) as it:
        for i, answer in enumerate(it.map(LAPS)):
            got.append(answer)
            if i % 30 == 20:
                # The worker killed last keeps its pid here until its successor starts.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(chance.choice(sidecar.pids), signal.SIGKILL)
    marker.touch()
    assert got == LAPS
    for each in asked:
        assert each.outcome() == [SLOW, *LAPS[:20]]


def test_sweep_leaves_moved_requests_of_a_ring_that_is_in_use(child, name):
    code = """
        import sys
        import shmring
        rings = [shmring.open_or_create(ring, slots=1024) for ring in sys.argv[1:]]
        print("attached")
        sys.stdin.readline()
    """
    requests = request_ring_name(name)
    with shmring.create(requests, slots=1024) as ring:
        parked = parked_ring_name(name, f"{ring.info.uuid[:12]}-0")
        worker = child(code, requests, parked)
        worker.line()
        worker.kill()
        sweep(name)
        assert list(parked_rings(name)) == [parked]
    last = child(code, requests)
    last.line()
    last.kill()
    sweep(name)
    assert list(parked_rings(name)) == []
    assert requests not in shmring.rings()
