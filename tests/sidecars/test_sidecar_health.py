"""What is said of a sidecar from outside: that it serves, loads, is stopped, or has no worker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from fixture_types import RunThread, Serve, Until
from sessions import PATIENCE

from shmring.sidecars import SidecarClient
from shmring.sidecars.health import Health, check

MODEL = """
    import os, time

    class Model:
        def __init__(self):
            while not os.path.exists({loaded!r}):
                if os.path.exists({broken!r}):
                    raise OSError("no model")
                time.sleep(0.01)

        def __call__(self, batch):
            return batch
"""


def until(name: str, status: int) -> Health:
    """The first look that finds this status."""
    deadline = time.monotonic() + PATIENCE
    while True:
        found = check(name)
        if found.status == status or time.monotonic() > deadline:
            return found
        time.sleep(0.01)


@pytest.fixture
def loaded(tmp_path: Path) -> Path:
    return tmp_path / "loaded"


@pytest.fixture
def model(tmp_path: Path, loaded: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    text = MODEL.format(loaded=str(loaded), broken=str(tmp_path / "broken"))
    (tmp_path / "slow_model.py").write_text("\n".join(line[4:] for line in text.splitlines()))
    monkeypatch.syspath_prepend(tmp_path)
    return "slow_model:Model"


@pytest.fixture
def supervised(name: str, model: str, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "shmring", "sidecar", model, "--name", name, "--workers", "1"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL) as process:
        yield process
        process.terminate()


def test_one_that_is_not_there_is_told_with_those_that_are(name: str, serve: Serve) -> None:
    serve("double")
    found = check(f"{name}-typo")
    assert found.status == 2
    assert f'there are "{name}"' in found.words[0] or f'"{name}"' in found.words[0]


def test_one_that_loads_is_no_failure_and_does_not_serve(
    name: str, loaded: Path, supervised: subprocess.Popen[bytes]
) -> None:
    (word,) = until(name, 1).words
    assert "has been loading slow_model:Model for" in word
    loaded.touch()
    assert "serves slow_model:Model" in until(name, 0).words[0]


def test_one_whose_workers_are_stopped_is_stuck(name: str, serve: Serve) -> None:
    pids = serve("double", workers=2).pids
    assert check(name).status == 0
    for stopped, pid in enumerate(pids, 1):
        os.kill(pid, signal.SIGSTOP)
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
        found = check(name)
        assert found.status == stopped  # one of two is a warning
        assert any(f"worker {pid}, stopped (`kill -CONT {pid}`)" in word for word in found.words)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    assert until(name, 0).status == 0


def test_one_whose_workers_die_again_and_again_is_stuck(
    name: str, tmp_path: Path, loaded: Path, supervised: subprocess.Popen[bytes]
) -> None:
    loaded.touch()
    (word,) = until(name, 0).words
    loaded.unlink()
    (tmp_path / "broken").touch()
    os.kill(int(word.split()[1]), signal.SIGKILL)
    assert "has no worker just now" in until(name, 2).words[0]


def test_command_answers_probes(name: str, serve: Serve) -> None:
    command = [sys.executable, "-m", "shmring", "sidecar", "--check", name]
    missing = subprocess.run(command, capture_output=True, text=True, check=False)
    assert missing.returncode == 2
    assert f'sidecar "{name}": no sidecar of this name' in missing.stdout
    serve("double", workers=1)
    there = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
    assert there.returncode == 0
    assert json.loads(there.stdout)["status"] == 0
    served = [*command[:-2], "functions:double", "--name", name, "--check"]
    assert subprocess.run(served, capture_output=True, check=False).returncode == 0
    for no_name in ([], [""], ["functions:double"], ["a/b"]):
        bare = subprocess.run([*command[:-1], *no_name], capture_output=True, text=True)
        assert bare.returncode == 2
        assert "--check is of a sidecar, by its name; there are " in bare.stderr
        assert f'"{name}"' in bare.stderr


def test_what_a_worker_works_on_is_told_and_may_be_too_long(
    name: str, serve: Serve, thread: RunThread, until: Until, marker: Path
) -> None:
    (pid,) = serve("wait_for_marker", workers=1).pids
    serves = f"worker {pid} serves functions:wait_for_marker, and "
    assert check(name, busy=0).words == [f"{serves}waits for requests"]
    batch = pa.record_batch({"x": [1]})
    with SidecarClient(name) as client:
        asked = thread(lambda: list(client.map([batch])))
        until(marker.with_suffix(".begun").exists)
        found = check(name)
        assert found.status == 0
        assert found.words[0].startswith(f"{serves}has been at request 0 of process {os.getpid()}")
        until(lambda: check(name, busy=1.5).status == 1)
        command = [sys.executable, "-m", "shmring", "sidecar", "--check", name, "--busy"]
        assert subprocess.run([*command, "1"], check=False).returncode == 1
        assert subprocess.run([*command, "9000"], check=False).returncode == 0
        marker.touch()
        assert asked.outcome() == [batch]
        until(lambda: check(name, busy=0).status == 0)
    unmeant = subprocess.run([*command[:4], "--busy", "1"], capture_output=True, check=False)
    assert unmeant.returncode == 2


def test_second_interrupt_ends_a_sidecar_whose_worker_hangs(name: str, tmp_path: Path) -> None:
    (tmp_path / "deaf.py").write_text("def work(batch):\n    return batch\n")
    command = [sys.executable, "-m", "shmring", "sidecar", "deaf:work", "--name", name]
    with subprocess.Popen(
        [*command, "--workers", "1"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM}),
    ) as process:
        assert process.stderr is not None
        assert "is ready" in process.stderr.readline()
        (worker,) = (int(word.split()[1]) for word in check(name).words)
        process.send_signal(signal.SIGINT)
        said = process.stderr.readline()
        assert f"its workers ({worker})" in said
        assert "another Ctrl-C kills them now" in said
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0
    assert not Path(f"/proc/{worker}").exists()
    assert check(name).status == 2


def test_worker_that_was_killed_is_said_to_be_that(
    name: str, serve: Serve, capfd: pytest.CaptureFixture[str]
) -> None:
    (pid,) = serve("double", workers=1).pids
    os.kill(pid, signal.SIGKILL)
    assert until(name, 2).status == 2 or until(name, 0).status == 0
    until(name, 0)
    assert f"worker {pid} has ended with SIGKILL (out of memory?)" in capfd.readouterr().err
