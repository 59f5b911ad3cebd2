"""Sidecars, workers and clients that are killed: nothing hangs, nothing is left."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from pathlib import Path

import pytest
from functions import numbers

import shmring
from shmring.sidecars import SidecarClient
from shmring.sidecars.rings import serving
from shmring.sidecars.wire import reply_ring_name, request_ring_name

pytestmark = [pytest.mark.kill, pytest.mark.usefixtures("marker")]

SUPERVISOR = """
    import sys
    from shmring.sidecars import Sidecar
    sidecar = Sidecar(f"functions:{sys.argv[1]}", name=sys.argv[2], workers=2)
    try:
        sidecar.start()
        print(*sidecar.pids)
        sidecar.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        sidecar.stop()
"""

CLIENT = """
    import sys, numpy, pyarrow
    from shmring.sidecars import SidecarClient
    batches = (pyarrow.record_batch({"x": numpy.arange(i, i + 20)}) for i in range(10**9))
    with SidecarClient(sys.argv[1], reply_slots=1024) as client:
        try:
            for i, answer in enumerate(client.map(batches)):
                if i == 20:
                    print("running")
        except KeyboardInterrupt:
            print("interrupted")
"""


@pytest.fixture
def supervisor(child, name):
    """Starts a process with a sidecar of two workers: the child, and the workers' pids."""

    def start(function):
        process = child(SUPERVISOR, function, name)
        return process, [int(pid) for pid in process.line().split()]

    return start


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # also while it is read
        return False


def reply_rings(name: str) -> list[str]:
    return [ring for ring in shmring.rings() if ring.startswith(reply_ring_name(name, ""))]


# --- workers ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "pieces", "workers"), [("die_once", 1, 1), ("die_between_pieces_once", 3, 3)]
)
def test_requests_of_a_killed_worker_go_to_another_one(
    serve, map_all, until, function, pieces, workers
):
    sidecar = serve(function, workers=workers)
    batches = [numbers(i) for i in range(50)]
    answers = map_all(*batches, connect_timeout=60)
    assert answers == [b for b in batches for _ in range(pieces)]
    until(lambda: sidecar.restarts == 1, "the restart")
    assert len(set(sidecar.pids)) == workers


def test_killing_workers_all_the_time_loses_doubles_and_disorders_nothing(serve, name):
    sidecar = serve("slow", workers=3)
    batches = [numbers(i) for i in range(120)]
    got = []
    with SidecarClient(name, in_flight=6, connect_timeout=60) as client:
        for i, answer in enumerate(client.map(batches)):
            got.append(answer)
            if i % 20 == 10:
                # The worker killed three turns ago keeps its pid here until its successor starts.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(sidecar.pids[i // 20 % 3], signal.SIGKILL)
    assert got == batches
    assert sidecar.restarts >= 1


def test_batch_that_kills_every_worker_fails_its_client_only(serve, name):
    serve("die_on_seven", workers=2)
    with (
        SidecarClient(name, connect_timeout=60) as poisoned,
        SidecarClient(name, connect_timeout=60) as other,
    ):
        answers = other.map(numbers(i * 10 + 10) for i in range(20))
        next(answers)
        with pytest.raises(shmring.SidecarUnavailable, match="have died over the same batch"):
            list(poisoned.map([numbers(0)]))
        poisoned.close()
        assert len(list(answers)) == 19


@pytest.mark.parametrize(
    ("number", "ending"),
    [(signal.SIGTERM, "status 0"), (signal.SIGKILL, "SIGKILL (out of memory?)")],
)
def test_worker_that_ends_is_replaced_and_said_to_have_ended(
    serve, map_all, until, capfd, number, ending
):
    sidecar = serve("identity")
    (pid,) = sidecar.pids
    os.kill(pid, number)
    until(lambda: sidecar.restarts == 1, "the restart")
    assert f"worker {pid} has ended with {ending}" in capfd.readouterr().err
    assert map_all(numbers(0), connect_timeout=0) == [numbers(0)]  # the next one is loading


@pytest.mark.long
def test_what_a_slow_client_has_not_read_is_left_to_the_next_worker(serve, name, until):
    sidecar = serve("many")
    with SidecarClient(name, reply_slots=1024, connect_timeout=60) as client:
        answers = client.map([numbers(0, 1), numbers(1, 299)])
        first = next(answers).column(0)[0].as_py()
        (reply_ring,) = reply_rings(name)
        with shmring.attach(reply_ring, read_only=True) as replies:
            until(
                lambda: any(participant["full_waits"] for participant in replies.participants()),
                "a full reply ring",
            )
        (old,) = sidecar.pids
        os.kill(old, signal.SIGTERM)
        until(lambda: sidecar.restarts == 1 and not is_running(old), "the next worker")
        rest = [batch.column(0)[0].as_py() for batch in answers]
    assert [first, *rest] == list(range(300))


def test_stop_does_not_wait_for_a_replacement_that_is_still_loading(serve, name, until):
    sidecar = serve("identity")
    sidecar._supervisor.target = "functions:NeverLoads"
    os.kill(sidecar.pids[0], signal.SIGKILL)
    until(lambda: sidecar.restarts == 1, "the restart")
    pids = sidecar.pids
    sidecar.stop()
    assert not any(is_running(pid) for pid in pids)


# --- the whole sidecar --------------------------------------------------------------------------


def check_that_clients_are_told_of(end, name):
    with SidecarClient(name, connect_timeout=0.5) as client:
        answers = client.map(numbers(i) for i in range(1000))
        next(answers)
        end()
        said = "has no living worker, .* says why it ended"
        with pytest.raises(shmring.SidecarUnavailable, match=said):
            list(answers)


def test_end_of_the_sidecar_is_said_within_the_patience(serve, name):
    check_that_clients_are_told_of(serve("slow").stop, name)


def test_killed_supervisor_takes_its_workers_along_and_clients_are_told(supervisor, name, until):
    process, pids = supervisor("slow")
    check_that_clients_are_told_of(process.kill, name)
    until(lambda: not any(map(is_running, pids)), "the workers' end")
    # The last client has swept what nobody else would, or the sweeper of a worker that hung.
    until(lambda: request_ring_name(name) not in shmring.rings(), "the end of the ring")


def test_request_ring_of_a_killed_supervisor_is_garbage_also_to_those_who_buried_it(
    supervisor, name, until
):
    process, pids = supervisor("identity")
    ring_name = request_ring_name(name)
    with shmring.attach(ring_name) as ring:
        process.kill()
        until(lambda: not any(map(is_running, pids)), "the workers' end")
        ring.recover()
    os.utime(f"/dev/shm/shmring.{ring_name}", (0, 0))
    assert shmring.gc(ring_name) == [ring_name]


def test_workers_that_hang_leave_no_ring_where_all_others_are_killed(
    supervisor, child, name, until, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    process, _ = supervisor("wait_for_marker")
    client = child(CLIENT, name)
    until((tmp_path / "marker.begun").exists)
    Path("random.py").write_text("raise ImportError")  # the sweeper has to import Python's
    client.kill()
    process.kill()
    until(lambda: not any(name in ring for ring in shmring.rings()), "the end of the rings")


def test_workers_of_a_killed_supervisor_remove_the_ring_that_nobody_uses(supervisor, name, until):
    process, _ = supervisor("identity")
    process.kill()
    until(lambda: request_ring_name(name) not in shmring.rings(), "the end of the ring")


@pytest.mark.long
def test_clients_wait_no_longer_for_workers_that_have_not_loaded_three_times(
    serve, map_all, name, until
):
    sidecar = serve("identity")
    sidecar._supervisor.target = "functions:FailsToLoad"
    os.kill(sidecar.pids[0], signal.SIGKILL)
    with SidecarClient(name, connect_timeout=0.1, timeout=600) as client:
        said = "has no living worker, nor a supervisor whose workers load, and none came"
        with pytest.raises(shmring.SidecarUnavailable, match=said):
            list(client.map([numbers(0)]))
        assert sidecar.restarts >= 3
        sidecar._supervisor.target = "functions:identity"
        until(lambda: serving(name), "a worker that loads")
    assert map_all(numbers(0)) == [numbers(0)]


def test_worker_that_still_loads_ends_with_the_supervisor(child, name, until):
    code = """
        import sys, threading
        from shmring.sidecars import Sidecar
        sidecar = Sidecar("functions:NeverLoads", name=sys.argv[1])
        threading.Thread(target=sidecar.start, daemon=True).start()
        while not sidecar.pids:
            pass
        print(*sidecar.pids)
        sys.stdin.readline()
    """
    process = child(code, name)
    pid = int(process.line())
    process.kill()
    until(lambda: not is_running(pid), "the worker's end")
    until(lambda: request_ring_name(name) not in shmring.rings(), "the end of the ring")


def test_ctrl_c_ends_sidecar_and_workers_and_leaves_nothing(supervisor, name, until):
    process, pids = supervisor("identity")
    process.interrupt()
    process.end()
    until(lambda: not any(map(is_running, pids)), "the workers' end")
    assert request_ring_name(name) not in shmring.rings()


def test_command_that_is_interrupted_twice_ends_as_after_once(command, name, until):
    options = ("--name", name, "--workers", 1, "--json")
    process = command("sidecar", "functions:identity", *options)
    (pid,) = json.loads(process.stdout.readline())["pids"]
    process.send_signal(signal.SIGINT)
    until(lambda: not is_running(pid), "the worker's end")
    process.send_signal(signal.SIGINT)
    assert process.wait(120) == 0
    assert request_ring_name(name) not in shmring.rings()


def test_sidecar_that_is_never_stopped_ends_with_its_process(child, name, until):
    code = """
        import sys
        from shmring.sidecars import Sidecar
        print(*Sidecar("functions:identity", name=sys.argv[1]).start().pids)
    """
    process = child(code, name)
    pid = int(process.line())
    process.end()
    until(lambda: not is_running(pid), "the worker's end")
    until(lambda: request_ring_name(name) not in shmring.rings(), "the end of the ring")


def test_forked_child_does_not_stop_the_parents_sidecar(serve, map_all):
    sidecar = serve("identity")
    pid = os.fork()
    if pid == 0:
        try:
            sidecar.stop()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    assert map_all(numbers(0)) == [numbers(0)]
    assert sidecar.restarts == 0


# --- clients ------------------------------------------------------------------------------------


def test_what_a_killed_client_leaves_is_swept(serve, map_all, name, child, until):
    """The worker is in the middle of writing to the dead client's ring."""
    sidecar = serve("many")
    process = child(CLIENT, name)
    assert process.line() == "running"
    process.kill()
    until(lambda: not reply_rings(name), "the sweep")
    assert map_all(numbers(0))
    assert sidecar.restarts == 0


@pytest.mark.long
def test_killed_clients_leave_no_holes_in_the_request_ring(serve, map_all, name, child, until):
    serve("identity")
    for _ in range(2):
        processes = [child(CLIENT, name) for _ in range(3)]
        for process in processes:
            assert process.line() == "running"
            process.kill()
    until(lambda: not reply_rings(name), "the sweep")
    batches = [numbers(i, 1000) for i in range(100)]
    assert map_all(*batches) == batches


def test_reply_ring_that_nobody_is_attached_to_is_swept(serve, name):
    with shmring.create(reply_ring_name(name, "deserted"), slots=1024, temporary=True) as made:
        made.keep()
    serve("identity")
    assert reply_rings(name) == []


def test_ctrl_c_ends_a_waiting_client_and_leaves_nothing(serve, name, child, tmp_path, until):
    serve("identity")
    process = child(CLIENT, name)
    assert process.line() == "running"
    process.interrupt()
    assert process.end().endswith("interrupted\n")
    assert not reply_rings(name)
