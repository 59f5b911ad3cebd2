"""Sidecars that come and go, load, are slow, or have no room left: whom a client waits for."""

from __future__ import annotations

import os
import signal
import threading

import pytest
from functions import numbers

import shmring
from shmring.sidecars import Sidecar, SidecarClient, rings
from shmring.sidecars import client as client_module
from shmring.sidecars import supervisor as supervisor_module
from shmring.sidecars.supervisor import Supervisor
from shmring.sidecars.wire import request_ring_name

# --- being there --------------------------------------------------------------------------------


def test_no_sidecar_is_said_within_the_patience(client):
    with pytest.raises(
        shmring.SidecarUnavailable, match="start it with `shmring sidecar"
    ) as caught:
        client(connect_timeout=0)
    assert "waited 0 s, connect_timeout=..." in str(caught.value)


def test_client_waits_for_a_sidecar_that_comes_later(serve, map_all, thread):
    waiting = thread(lambda: map_all(numbers(1), connect_timeout=120))
    serve("identity")
    assert waiting.outcome() == [numbers(1)]


def test_worker_that_loads_is_waited_for_longer_than_one_that_is_not_there(
    serve, map_all, thread, until, monkeypatch, marker
):
    starting = thread(serve, "LoadedWithMarker")
    until(marker.with_suffix(".begun").exists)
    looks = []
    look = client_module.SidecarClient._look
    monkeypatch.setattr(client_module, "_LOOK_EVERY", 0.0)
    monkeypatch.setattr(
        client_module.SidecarClient, "_look", lambda it: looks.append(it) or look(it)
    )
    asking = thread(lambda: map_all(numbers(1), connect_timeout=0))
    until(lambda: len(looks) > 5 or asking.error, "some looks")
    marker.touch()
    assert asking.outcome() == [numbers(1)]
    starting.outcome()


def test_client_that_gives_up_says_that_the_workers_are_loading(
    serve, client, thread, until, marker
):
    starting = thread(serve, "LoadedWithMarker")
    until(marker.with_suffix(".begun").exists)
    with (
        client(connect_timeout=0, timeout=0.1) as it,
        pytest.raises(shmring.SidecarUnavailable, match=r"timeout=\.\.\.") as caught,
    ):
        list(it.map([numbers(1)]))
    marker.touch()
    (pid,) = starting.outcome().pids
    assert f"worker {pid} has been loading functions:LoadedWithMarker for " in str(caught.value)


def test_workers_that_have_loaded_take_a_seat_each(serve, name):
    pids = serve("Model", workers=2).pids
    with shmring.attach(request_ring_name(name), read_only=True) as ring:
        participants = [
            (participant["pid"], participant["role"])
            for participant in ring.participants()
            if participant["pid"] in pids
        ]
    assert sorted(participants) == sorted((pid, "consumer") for pid in pids)


def test_client_that_gives_up_says_what_the_workers_are_at(serve, client, thread, until, marker):
    (pid,) = serve("wait_for_marker").pids
    with client() as busy, client(timeout=0.1) as it:
        asking = thread(lambda: list(busy.map([numbers(0)])))
        until(marker.with_suffix(".begun").exists)
        with pytest.raises(shmring.SidecarUnavailable, match="lives but has not answ") as caught:
            list(it.map([numbers(0)]))
        marker.touch()
        assert asking.outcome() == [numbers(0)]
    assert (
        f"worker {pid} serves functions:wait_for_marker, and has been at request 0 of process "
        f"{os.getpid()} for up to "
    ) in str(caught.value)


def test_pause_of_the_caller_does_not_count_as_silence_of_the_sidecar(serve, client, monkeypatch):
    serve("slow")
    with client(timeout=600, in_flight=1) as it:
        answers = it.map([numbers(0), numbers(1)])
        next(answers)
        it._last_heard -= 3600
        assert next(answers) == numbers(1)


def test_two_sidecars_of_one_name_share_the_requests_and_the_last_removes_the_ring(serve, client):
    first, second = serve("identity"), serve("identity")
    with client() as it:
        first.stop()
        assert list(it.map([numbers(i) for i in range(10)])) == [numbers(i) for i in range(10)]
        second.stop()
    assert request_ring_name(it.name) not in shmring.rings()


def test_sidecar_that_is_still_loading_keeps_the_ring_where_another_one_stops(
    serve, map_all, thread, until, marker
):
    marker.touch()
    first = serve("LoadedWithMarker")
    marker.unlink()
    marker.with_suffix(".begun").unlink()
    second = thread(serve, "LoadedWithMarker")
    until(marker.with_suffix(".begun").exists)
    first.stop()
    marker.touch()
    second.outcome()
    assert map_all(numbers(1)) == [numbers(1)]


SUPERVISOR = """
    import sys
    from shmring.ring import names
    from shmring.sidecars import supervisor as module

    def until_told(call):
        def wait(*arguments):
            result = call(*arguments)
            print("waits")
            sys.stdin.readline()
            return result
        return wait

    supervisor = module.Supervisor("functions:identity", sys.argv[1], workers=1, slots=1024)
"""


def test_supervisor_that_starts_while_another_one_ends_makes_a_ring_of_its_own(child, name):
    starting = """
    module.open_ring = until_told(module.open_ring)
    supervisor.open()
    print(supervisor.is_findable)
    sys.stdin.readline()
    supervisor.close()
    """
    ending = supervisor(name)
    ending.open()
    process = child(SUPERVISOR + starting, name)
    assert process.line() == "waits"  # in the ring, which does not show yet that it is wanted
    ending.close()
    process.say()
    while (line := process.line()) == "waits":
        process.say()
    assert line == "True"
    process.say()
    process.end()
    assert request_ring_name(name) not in shmring.rings()


def test_supervisor_that_ends_leaves_the_ring_to_one_that_has_just_come(child, name):
    ending = """
    supervisor.open()
    names.companions_of = until_told(names.companions_of)
    print("is open")
    sys.stdin.readline()
    supervisor.close()
    """
    process = child(SUPERVISOR + ending, name)
    assert process.line() == "is open"
    process.say()
    assert process.line() == "waits"  # about to remove the ring
    starting = supervisor(name)
    starting.open()
    process.say()
    process.end()
    assert starting.is_findable
    starting.close()
    assert request_ring_name(name) not in shmring.rings()


@pytest.mark.parametrize("room", range(2, 5))
def test_supervisor_with_few_descriptors_makes_one_ring(child, name, room):
    """With room for two it can attach, and cannot ask afterwards which ring has the name."""
    code = """
    import os, resource
    module.open_ring = until_told(module.open_ring)
    used, limits = len(os.listdir("/proc/self/fd")) - 1, resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + int(sys.argv[2]), limits[1]))
    supervisor.open()
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    print(supervisor.is_findable)
    sys.stdin.readline()
    supervisor.close()
    """
    other = supervisor(name)
    other.open()
    process = child(SUPERVISOR + code, name, room)
    assert process.line() == "waits"
    process.say()
    assert process.line() == "True"
    process.say()
    process.end()
    other.close()
    assert request_ring_name(name) not in shmring.rings()


def supervisor(name):
    return Supervisor("functions:identity", name, workers=1, slots=1024)


@pytest.mark.parametrize("kind", [rings.SUPERVISOR, rings.FAILING])
def test_supervisor_without_workers_is_found(name, kind):
    with (
        shmring.create(request_ring_name(name), slots=1024, temporary=True) as ring,
        ring.producer(f"{kind} 1 code 3.11.2 options"),
    ):
        [found] = rings.findings(name, ring.participants())
    assert found.kind == "sidecar-no-worker"
    assert f"supervisor {os.getpid()} has no worker" in found.words


def test_sidecar_can_be_started_again_after_stop(serve, map_all):
    sidecar = serve("identity")
    sidecar.stop()
    sidecar.stop()
    sidecar.start()
    with pytest.raises(RuntimeError, match="started already"):
        sidecar.start()
    assert map_all(numbers(1)) == [numbers(1)]


def test_open_client_goes_on_with_a_sidecar_that_was_started_again(serve, client):
    sidecar = serve("slow")
    it = client(connect_timeout=120)
    for first in (0, 10):  # the second time, the sidecar ends before the client asks
        answers = it.map(numbers(i) for i in range(first, first + 10))
        got = [next(answers)] if first == 0 else []
        sidecar.stop()
        sidecar.start()
        assert [*got, *answers] == [numbers(i) for i in range(first, first + 10)]


def test_request_that_ends_its_sidecar_again_and_again_is_given_up(serve, client):
    def end_again():
        """Do what the client does where a sidecar ended within a request and was started again."""
        it._oldest().received = 1
        it._follow()

    serve("slow")
    it = client(connect_timeout=120)
    answers = it.map(numbers(i) for i in range(10))
    next(answers)
    end_again()
    end_again()
    with pytest.raises(shmring.SidecarUnavailable, match=r"3 workers of .* over the same batch"):
        end_again()


def test_interrupt_while_the_thread_begins_that_looks_for_the_dead_leaves_nothing(
    name, monkeypatch
):
    def interrupted(thread):
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt), Sidecar("functions:identity", name=name):
        pass
    assert request_ring_name(name) not in shmring.rings()


def test_stop_that_was_interrupted_ends_all_when_it_is_called_again(serve, name, monkeypatch):
    def interrupted(worker, deadline):
        monkeypatch.undo()
        worker.end(deadline)
        raise KeyboardInterrupt

    sidecar = serve("identity", workers=2)
    monkeypatch.setattr(supervisor_module._Worker, "end", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sidecar.stop()
    sidecar.stop()
    assert request_ring_name(name) not in shmring.rings()


# --- participants -----------------------------------------------------------------------------


@pytest.fixture
def crowded(serve, client):
    """A sidecar, as many clients as it has participants for, and the error of the next one."""
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
    """Every time that a client was refused a participant."""
    times = []
    enter = rings.enter

    def counted(name):
        try:
            return enter(name)
        except shmring.LimitReached as error:
            times.append(error)
            raise

    monkeypatch.setattr(rings, "enter", counted)
    return times


def test_client_without_a_seat_says_who_has_them_and_waits(
    crowded, map_all, thread, until, refused
):
    sidecar, clients, text = crowded
    assert len(clients) > 100
    assert f'sidecar "{sidecar.name}" has had no room for another client for 0 s' in text
    assert f"`shmring stat sidecar.{sidecar.name}` shows who takes part" in text
    asking = thread(lambda: map_all(numbers(1), reply_slots=1024))
    until(lambda: refused, "the wait")
    clients[50].close()
    assert asking.outcome() == [numbers(1)]


@pytest.mark.long
def test_clients_that_wait_leave_a_killed_workers_seats_to_the_next_one(
    crowded, map_all, thread, until, refused
):
    sidecar, clients, _ = crowded
    asking = [thread(lambda: map_all(numbers(1), reply_slots=1024)) for _ in range(5)]
    until(lambda: len(refused) > 5, "the wait")
    os.kill(sidecar.pids[0], signal.SIGKILL)
    until(lambda: sidecar.restarts == 1, "the restart")
    with shmring.attach(request_ring_name(sidecar.name), read_only=True) as ring:
        until(
            lambda: [
                s
                for s in ring.participants()
                if s["pid"] in sidecar.pids and s["role"] == "consumer"
            ]
        )
    for each in clients:
        each.close()
    assert [each.outcome() for each in asking] == [[numbers(1)]] * 5


def test_decorated_function_brings_name_and_number_of_workers():
    from functions import MARKED, marked

    assert marked(numbers(1)) == numbers(1)
    with Sidecar(marked) as sidecar:
        assert sidecar.name == MARKED
        assert len(sidecar.pids) == 2
        with SidecarClient(MARKED) as it:
            assert list(it.map([numbers(1)])) == [numbers(1)]
