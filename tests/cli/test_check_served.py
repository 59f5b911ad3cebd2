"""`shmring check`: sick journals and sidecars with real processes, and the mending."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import checking
import pyarrow as pa
import pytest
from checking import check, commands, mend, says, stop
from fixture_types import RunCommand, RunThread, Serve, Until
from functions import numbers

import shmring
from shmring.metrics import HostMetrics
from shmring.sidecars import SidecarClient
from shmring.sidecars.rings import lives, serving

pytestmark = pytest.mark.kill
ring = checking.ring


# --- journals -------------------------------------------------------------------------------------


@pytest.fixture
def journal(command: RunCommand) -> RunCommand:
    """Runs one, and returns when it is ready."""

    def start(name: str, folder: Path) -> subprocess.Popen[bytes]:
        process = command("journal", "run", name, folder, "--json")
        assert process.stdout is not None
        assert b"ready" in process.stdout.readline()
        return process

    return start


def test_journal_that_is_stopped(
    out: shmring.Producer, name: str, journal: RunCommand, small_disk: Path
) -> None:
    running = journal(name, small_disk / "journal")
    out.push(b"x", durable=True)
    stop(running.pid)
    out.push(b"y")
    mend(says(name, 1, f"kill -CONT {running.pid}", "is stopped"))
    out.push(b"z", durable=True)
    assert check(name)[0] == 0


def test_journal_that_was_killed(
    out: shmring.Producer, name: str, journal: RunCommand, small_disk: Path
) -> None:
    running = journal(name, small_disk / "journal")
    out.push(b"x", durable=True)
    running.kill()
    running.wait()
    out.push(b"y")
    says(name, 1, f"shmring journal run {name} DIRECTORY", "its journal does not run")
    journal(name, small_disk / "journal")
    out.push(b"z", durable=True)
    assert check(name)[0] == 0


# --- sidecars -------------------------------------------------------------------------------------


def test_each_is_counted_once_however_it_is_named(
    ring: shmring.Ring, name: str, serve: Serve
) -> None:
    assert check(name, name, ring.path) == (0, "all is well: 1 ring and 0 sidecars\n")
    served = serve("double")
    assert served.name == name
    named = (name, f"sidecar.{name}")
    assert json.loads(check(*named, "--json")[1])["sidecars"] == [name]
    assert check(f"sidecar.{name}", "--age", 0)[0] == 0  # idle workers hold nothing


def test_sidecar_whose_workers_are_stopped(name: str, serve: Serve, until: Until) -> None:
    pids = serve("double", workers=2).pids
    for stopped, pid in enumerate(pids, 1):
        stop(pid)
        status, said = check(name)
        assert status == stopped  # one stopped worker of two is a warning
        assert f'sidecar "{name}": worker {pid}, stopped' in said
    assert sorted(commands(said)) == sorted(f"kill -CONT {pid}" for pid in pids)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    until(lambda: check(name)[0] == 0)


def test_sidecar_whose_worker_hangs(
    name: str, serve: Serve, thread: RunThread, until: Until, marker: Path
) -> None:
    (pid,) = serve("wait_for_marker", workers=1).pids

    def ask() -> list[pa.RecordBatch]:
        with SidecarClient(name) as client:
            return list(client.map([pa.record_batch({"x": [1]})]))

    asked = thread(ask)
    until(marker.with_suffix(".begun").exists)
    assert check(name)[0] == 0
    until(lambda: check(name, "--age", 1)[0] == 1)
    said = says(f"{name} --age 1", 1, f"kill -9 {pid}")
    at = f"has been at request 0 of process {os.getpid()} for up to"
    assert f"worker {pid} (functions:wait_for_marker) {at}" in said
    mend(said)
    marker.touch()
    (answer,) = asked.outcome()
    assert answer.num_rows == 1
    assert check(name, "--age", 1)[0] == 0


def test_model_that_says_when_it_is_ready(
    name: str, serve: Serve, thread: RunThread, until: Until, marker: Path
) -> None:
    def ask() -> list[pa.RecordBatch]:
        with SidecarClient(name, connect_timeout=60) as client:
            return list(client.map([numbers(0)]))

    loads = "has been loading functions:SaysWhenReady for"
    started = thread(lambda: serve("SaysWhenReady"))
    until(marker.with_suffix(".warm").exists)
    until(lambda: loads in check(name)[1])
    asked = thread(ask)
    marker.touch()
    started.outcome()
    assert asked.outcome() == [numbers(0)]
    until(lambda: check(name)[0] == 0)
    marker.unlink()  # it loads anew, say
    until(lambda: loads in check(name)[1])
    asked = thread(ask)
    with shmring.attach(f"sidecar.{name}", read_only=True) as requests:
        until(lambda: requests.stats()["branches"][0]["waiting"] == 1, "the request")
        assert [worker["hold"] for worker in serving(name)] == [None]
    marker.touch()
    assert asked.outcome() == [numbers(0)]
    until(lambda: check(name)[0] == 0)


def test_worker_that_keeps_the_ring_from_idle_ones_is_named(
    name: str, serve: Serve, thread: RunThread, until: Until, marker: Path
) -> None:
    serve("hold_the_gil_once", workers=2, slots=4096)

    def ask() -> int:
        with SidecarClient(name, connect_timeout=60) as client:
            return len(list(client.map(numbers(i, 5000) for i in range(100))))

    asked = [thread(ask), thread(ask)]
    until(lambda: "stays in the ring" in check(name)[1])
    with HostMetrics(interval=None) as metrics:
        held = metrics.samples["sidecar_floor_pid"]
    pid = int(held[name, "functions:hold_the_gil_once"])
    said = says(name, 2, f"kill -9 {pid}")
    # Two workers race for the first call, so any of the first requests may be the one.
    at = rf"worker {pid} \(functions:hold_the_gil_once\) is at request \d of process {os.getpid()},"
    assert re.search(at, said), said
    mend(said)
    assert [each.outcome() for each in asked] == [100, 100]


MODEL = """
import os, time
class Model:
    def __init__(self):
        while not os.path.exists("loaded"):
            if os.path.exists("broken"):
                raise OSError("no model")
            time.sleep(0.01)
    def __call__(self, batch):
        return batch
"""


@pytest.fixture
def supervised(name: str, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    (tmp_path / "model.py").write_text(MODEL)
    command = [sys.executable, "-m", "shmring", "sidecar", "model:Model", "--name", name]
    with subprocess.Popen(
        [*command, "--workers", "1"], cwd=tmp_path, stderr=subprocess.DEVNULL
    ) as process:
        yield process
        process.terminate()


def kill_worker(name: str) -> None:
    with shmring.attach(f"sidecar.{name}", read_only=True) as ring:
        (pid,) = (p["pid"] for p in ring.participants() if p["role"] == "consumer" and p["alive"])
    os.kill(pid, signal.SIGKILL)


def test_sidecar_that_loads_and_then_dies_again_and_again(
    name: str, tmp_path: Path, supervised: subprocess.Popen[bytes], until: Until
) -> None:
    until(lambda: "has been loading model:Model for" in check(name)[1])
    says(name, 1, "")
    (tmp_path / "loaded").touch()
    until(lambda: check(name)[0] == 0)
    (tmp_path / "loaded").unlink()
    (tmp_path / "broken").touch()
    kill_worker(name)
    until(lambda: "its workers die again and again: " in check(name)[1])
    with shmring.attach(f"sidecar.{name}", read_only=True) as ring:
        until(lambda: not lives(ring.participants()))
    while (said := check(name))[0] != 2:  # one loads just now
        pass
    assert "has no worker just now" in said[1]
    (tmp_path / "loaded").touch()
    (tmp_path / "broken").unlink()

    def is_said_of_the_living() -> bool:  # for a minute
        status, text = check(name)
        return status == 1 and "its workers die again and again: " in text

    until(is_said_of_the_living)


def test_sidecar_whose_processes_were_killed(
    name: str, tmp_path: Path, supervised: subprocess.Popen[bytes], until: Until
) -> None:
    (tmp_path / "loaded").touch()
    until(lambda: check(name)[0] == 0)
    stop(supervised.pid)  # it replaces no worker, and a worker removes no ring
    kill_worker(name)
    supervised.kill()
    until(lambda: "its processes have ended" in check(name)[1])
    says(
        name,
        2,
        f"shmring sidecar MODULE:FUNCTION --name {name}",
        f"only its ring is there, which `shmring gc sidecar.{name}`",
    )
    command = [sys.executable, "-m", "shmring", "sidecar", "model:Model", "--name", name]
    with subprocess.Popen([*command, "--workers", "1"], cwd=tmp_path) as again:
        until(lambda: check(name)[0] == 0)
        again.terminate()
    assert f"sidecar.{name}" not in shmring.rings()
