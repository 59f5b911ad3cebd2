"""Promises of a test run about its own end: a hang fails, and no process outlives the run."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from programs import ended

pytestmark = [pytest.mark.kill, pytest.mark.long]

OURS = Path(__file__).with_name("conftest.py")
CONFTEST = f"""
import importlib.util
spec = importlib.util.spec_from_file_location("ours", {str(OURS)!r})
ours = importlib.util.module_from_spec(spec)
spec.loader.exec_module(ours)
globals().update({{k: v for k, v in vars(ours).items() if not k.startswith("__")}})
"""
# A stopped process in a session of its own, and a forked process that refuses to end.
STUBBORN = """
import os, signal, subprocess
from pathlib import Path

def test_it():
    stopped = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    stopped.send_signal(signal.SIGSTOP)
    begun, begins = os.pipe()
    forked = os.fork()
    if not forked:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.write(begins, b".")
        while True:
            signal.pause()
    os.read(begun, 1)
    Path("said").write_text(f"{os.environ['SHMRING_TEST_RUN']} {stopped.pid} {forked}")
    signal.pause()
"""


def runs(pid: str) -> bool:
    """Whether a process is there, and more than what nobody has waited for yet."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] not in "ZX"


def test_run_that_hangs_fails_and_nothing_outlives_it(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(STUBBORN)
    options = ["timeout=5", "timeout_method=signal", "markers=spark"]
    command = [sys.executable, "-m", "pytest", "-n", "1", *(f"--override-ini={o}" for o in options)]
    ours = ("PYTEST", "SHMRING_TEST")
    env = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    done = ended(*command, cwd=tmp_path, env=env)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Timeout" in done.stdout
    run, *pids = (tmp_path / "said").read_text().split()
    assert not Path(run).exists()
    assert [pid for pid in pids if runs(pid)] == []
