"""The attendant that the Spark plugin starts beside an executor, by itself: no Spark, no JVM."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import shmring
from shmring.sidecars.wire import request_ring_name


class Attendant:
    """The process, with the pipe that stands for the executor."""

    def __init__(self, **config):
        config = {"rings": {}, "sidecars": {}, **config}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "shmring.spark.attendant"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.process.stdin.write(json.dumps(config) + "\n")
        self.process.stdin.flush()

    def metrics(self):
        return json.loads(self.process.stdout.readline())

    def await_metrics(self, **wanted):
        while not wanted.items() <= (found := self.metrics()).items():
            pass
        return found

    def executor_dies(self):
        self.process.stdin.close()
        assert self.process.wait(120) == 0

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def attend():
    started = []

    def start(**config):
        started.append(Attendant(**config))
        return started[-1]

    yield start
    for each in started:
        each.kill()


@pytest.fixture
def served(name, attend):
    """An attendant of a sidecar with one worker, which is ready."""
    command = [sys.executable, "-m", "shmring", "sidecar", "functions:double", "--name", name]
    attendant = attend(sidecars={name: command})
    attendant.await_metrics(**{f"sidecar.{name}.workers": 1})
    return attendant


def double(name):
    batch = pa.record_batch({"x": [1, 2, 3]})
    with shmring.SidecarClient(name, patience=60) as client:
        return [x for answer in client.map([batch]) for x in answer.column("x").to_pylist()]


def workers(name):
    with shmring.attach(request_ring_name(name), read_only=True) as ring:
        return [seat["pid"] for seat in ring.seats() if seat["alive"] and seat["role"] == "member"]


def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def is_alive(pid):
    """Whether the process is there, be it as a zombie."""
    return os.path.exists(f"/proc/{pid}")


def test_sidecar_serves_and_ends_with_the_executor(served, name):
    assert double(name) == [2, 4, 6]
    found = served.metrics()
    assert found[f"sidecar.{name}.running"] == 1
    assert found[f"sidecar.{name}.restarts"] == 0
    (worker,) = workers(name)
    served.executor_dies()
    assert not is_alive(worker)
    assert not [ring for ring in shmring.rings() if name in ring]


def test_sidecar_that_is_killed_is_started_again(served, name):
    (worker,) = workers(name)
    os.kill(parent(worker), signal.SIGKILL)
    served.await_metrics(**{f"sidecar.{name}.restarts": 1, f"sidecar.{name}.running": 1})
    assert double(name) == [2, 4, 6]
    served.executor_dies()


def test_workers_of_a_killed_supervisor_leave_no_zombies(served, name, until):
    (worker,) = workers(name)
    os.kill(parent(worker), signal.SIGKILL)
    until(lambda: not is_alive(worker), "the end of the orphan")
    assert double(name) == [2, 4, 6]
    served.executor_dies()


def test_orphan_that_has_left_its_group_is_reaped_too(attend, name, tmp_path, until):
    """A sidecar of any kind: a subshell starts a process with a session of its own, and leaves."""
    pid = tmp_path / "pid"
    command = f"(setsid sh -c 'echo $$ > {pid}' &); exec sleep 1000"
    attendant = attend(sidecars={name: ["sh", "-c", command]})
    until(lambda: pid.exists() and pid.read_text().endswith("\n"), "the orphan")
    until(lambda: not is_alive(int(pid.read_text())), "the end of the orphan")
    attendant.executor_dies()


def test_sidecar_ends_with_an_attendant_that_is_killed(served, name, until):
    (worker,) = workers(name)
    supervisor = parent(worker)
    served.kill()
    until(lambda: not is_alive(supervisor) and not is_alive(worker), "the sidecar's end")
    until(lambda: not [ring for ring in shmring.rings() if name in ring], "the end of its rings")


def test_sidecar_that_cannot_start_does_not_keep_others(attend, name, tmp_path):
    marker = tmp_path / "marker"
    attendant = attend(
        sidecars={
            "missing": ["/no/such/program"],
            "failing": "false",
            "working": f"sh -c 'echo \"$0\" > {marker}; exec sleep 1000' 'a word'",
        }
    )
    found = attendant.await_metrics(**{"sidecar.working.running": 1})
    assert found["sidecar.missing.running"] == 0
    attendant.await_metrics(**{"sidecar.failing.restarts": 2})
    assert marker.read_text() == "a word\n"
    attendant.executor_dies()


def test_rings_live_as_long_as_the_executor(attend, name, until):
    attendant = attend(rings={name: {"slots": 1024}})
    attendant.await_metrics(**{f"ring.{name}.claimed": 0})
    with shmring.attach(name) as ring:
        with ring.producer() as out:
            out.push(b"message")
        attendant.await_metrics(**{f"ring.{name}.claimed": 1})
    attendant.executor_dies()
    assert name not in shmring.rings()


def test_ring_that_others_use_stays(attend, name):
    attendant = attend(rings={name: {"slots": 1024}})
    attendant.await_metrics(**{f"ring.{name}.claimed": 0})
    with shmring.attach(name):
        attendant.executor_dies()
        assert name in shmring.rings()
        attendant = attend(rings={name: {"slots": 2048}})
        attendant.metrics()
    attendant.executor_dies()
    assert name not in shmring.rings()


def test_what_killed_sidecars_have_left_is_swept(attend, child, name):
    dead = child(
        """
        import sys, shmring
        ring = shmring.create(sys.argv[1])
        print("made")
        input()
        """,
        request_ring_name(name),
    )
    dead.line()
    dead.kill()
    attendant = attend(sidecars={name: "sleep 1000"})
    attendant.metrics()
    assert request_ring_name(name) not in shmring.rings()
    attendant.executor_dies()


def test_children_of_a_shell_get_their_time_to_end(attend, name):
    command = f"{sys.executable} -m shmring sidecar functions:double --name {name}; true"
    attendant = attend(sidecars={name: ["sh", "-c", command]})
    attendant.await_metrics(**{f"sidecar.{name}.workers": 1})
    attendant.process.terminate()
    assert attendant.process.wait(120) == 0
    assert not [ring for ring in shmring.rings() if name in ring]
