"""`shmring check`: sick journals and sidecars with real processes, and the mending."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import checking
import pytest
from checking import check, commands, mend, stop
from fixture_types import RunThread, Serve, Until

import shmring
from shmring.sidecars import SidecarClient
from shmring.sidecars.health import check as look_at_sidecar

pytestmark = pytest.mark.kill
ring = checking.ring


# --- journals -------------------------------------------------------------------------------------


@pytest.fixture
def journal() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def start(name: str, *arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "shmring", "journal", "run", name, "--json"]
        command += map(str, arguments)
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout is not None
        assert "ready" in process.stdout.readline()
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_journal_that_is_stopped(
    ring: shmring.Ring, name: str, journal: Callable[..., Any], small_disk: Path
) -> None:
    running = journal(name, small_disk / "journal")
    with ring.producer() as out:
        out.push(b"x", durable=True)
        stop(running.pid)
        out.push(b"y")
        status, said = check(name)
        assert (status, commands(said)) == (1, [f"kill -CONT {running.pid}"])
        assert "is stopped" in said
        mend(said)
        out.push(b"z", durable=True)
        assert check(name)[0] == 0


def test_journal_that_was_killed(
    ring: shmring.Ring, name: str, journal: Callable[..., Any], small_disk: Path
) -> None:
    running = journal(name, small_disk / "journal")
    with ring.producer() as out:
        out.push(b"x", durable=True)
        running.kill()
        running.wait()
        out.push(b"y")
        status, said = check(name)
        assert (status, commands(said)) == (1, [f"shmring journal run {name} DIRECTORY"])
        assert "its journal does not run" in said
        journal(name, small_disk / "journal")
        out.push(b"z", durable=True)
        assert check(name)[0] == 0


# --- sidecars -------------------------------------------------------------------------------------


def test_each_is_counted_once_however_it_is_named(
    ring: shmring.Ring, name: str, serve: Serve
) -> None:
    assert check(name, name, ring.path) == (0, "all is well: 1 rings and 0 sidecars\n")
    served = serve("double")
    assert served.name == name
    named = (name, f"sidecar.{name}")
    assert json.loads(check(*named, "--json")[1])["sidecars"] == [name]
    assert check(f"sidecar.{name}", "--age", 0)[0] == 0  # idle workers hold nothing


def test_sidecar_whose_worker_is_stopped(name: str, serve: Serve, until: Until) -> None:
    (pid,) = serve("double", workers=1).pids
    stop(pid)
    status, said = check(name)
    assert (status, commands(said)) == (2, [f"kill -CONT {pid}"])
    assert f'stuck: sidecar "{name}": worker {pid}, stopped' in said
    mend(said)
    until(lambda: check(name)[0] == 0)


def test_sidecar_whose_worker_hangs(
    name: str, serve: Serve, thread: RunThread, until: Until, marker: Path
) -> None:
    import pyarrow as pa

    (pid,) = serve("wait_for_marker", workers=1).pids

    def ask() -> list[pa.RecordBatch]:
        with SidecarClient(name) as client:
            return list(client.map([pa.record_batch({"x": [1]})]))

    asked = thread(ask)
    until(marker.with_suffix(".begun").exists)
    assert check(name)[0] == 0
    until(lambda: check(name, "--age", 1)[0] == 1)
    status, said = check(name, "--age", 1)
    assert (status, commands(said)) == (1, [f"kill -9 {pid}"])
    assert f"worker {pid} (functions:wait_for_marker) has been at one request for up to" in said
    mend(said)
    marker.touch()
    (answer,) = asked.outcome()
    assert answer.num_rows == 1
    assert check(name, "--age", 1)[0] == 0


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


def test_sidecar_that_loads_and_then_dies_again_and_again(
    name: str, tmp_path: Path, supervised: subprocess.Popen[bytes], until: Until
) -> None:
    until(lambda: look_at_sidecar(name).status == 1)
    status, said = check(name)
    assert (status, commands(said)) == (1, [])
    assert "has been loading model:Model for" in said
    (tmp_path / "loaded").touch()
    until(lambda: look_at_sidecar(name).status == 0)
    assert check(name)[0] == 0
    (tmp_path / "loaded").unlink()
    (tmp_path / "broken").touch()
    os.kill(int(look_at_sidecar(name).words[0].split()[1]), signal.SIGKILL)
    until(lambda: "die again and again" in " ".join(look_at_sidecar(name).words))
    until(lambda: look_at_sidecar(name).status == 2)
    assert "its workers die again and again: " in check(name)[1]
    (tmp_path / "loaded").touch()
    (tmp_path / "broken").unlink()
    until(lambda: "serves" in look_at_sidecar(name).words[0])
    assert check(name)[0] == 1  # for a minute


def test_sidecar_whose_processes_were_killed(
    name: str, tmp_path: Path, supervised: subprocess.Popen[bytes], until: Until
) -> None:
    (tmp_path / "loaded").touch()
    until(lambda: look_at_sidecar(name).status == 0)
    stop(supervised.pid)  # it replaces no worker, and a worker removes no ring
    os.kill(int(look_at_sidecar(name).words[0].split()[1]), signal.SIGKILL)
    supervised.kill()
    until(lambda: "ended" in look_at_sidecar(name).words[0])
    status, said = check(name)
    assert (status, commands(said)) == (2, [f"shmring sidecar MODULE:FUNCTION --name {name}"])
    assert (
        f"its processes have ended; only its ring is there, which `shmring gc sidecar.{name}`"
        in said
    )
    command = [sys.executable, "-m", "shmring", "sidecar", "model:Model", "--name", name]
    with subprocess.Popen([*command, "--workers", "1"], cwd=tmp_path) as again:
        until(lambda: check(name)[0] == 0)
        again.terminate()
    assert f"sidecar.{name}" not in shmring.rings()
