"""What a test run promises about its own end: it says what happened, and nothing outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.kill

HERE = Path(__file__).parent
CONFTEST = f"""
import importlib.util
spec = importlib.util.spec_from_file_location("ours", {str(HERE / "conftest.py")!r})
ours = importlib.util.module_from_spec(spec)
spec.loader.exec_module(ours)
globals().update({{k: v for k, v in vars(ours).items() if not k.startswith("__")}})
"""
# Starts what ends by itself and what does not, what was forked and what was executed; says who.
BUSY = f"""
import os, signal, subprocess, sys
from pathlib import Path
import shmring
sys.path.append({str(HERE / "table_ring")!r})
from guardian import descendants

def test_it(name, child):
    shmring.create(name).subscribe("a")
    stubborn = child(
        '''
        import signal, sys, shmring
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with shmring.attach(sys.argv[1]).consumer("a") as inp:
            print()
            inp.pop()
        ''',
        name,
    )
    stubborn.line()
    begun, begins = os.pipe()
    if os.fork() == 0:
        with shmring.create(f"orders-{{os.getpid()}}"):
            os.write(begins, b".")
            signal.pause()
    os.read(begun, 1)
    stopped = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    stopped.send_signal(signal.SIGSTOP)
    MORE
    said = Path(os.environ["SAYS"])
    run = Path(os.environ["SHMRING_TEST_RUN"])
    said.with_suffix(".new").write_text(" ".join(map(str, [run, os.getpid(), *descendants(run)])))
    said.with_suffix(".new").rename(said)
    while True:
        signal.pause()
"""
SERVERS = """
    from cluster import Cluster
    from postgres import postgres
    cluster = Cluster(workers=2, cores=1)
    server = postgres()
    data = server.__enter__().directory
    assert data.parent == Path(os.environ["SHMRING_TEST_RUN"])
"""


# The runs are to leave things.
LEAVES = """
import pytest
@pytest.fixture(autouse=True)
def _nothing_stays_in_shared_memory(): pass
"""


class Run:
    """A pytest with the conftest.py of this folder."""

    def __init__(self, folder: Path, tests: str, conftest: str, *options: str) -> None:
        (folder / "conftest.py").write_text(CONFTEST + conftest)
        (folder / "test_it.py").write_text(tests)
        self.said = folder / "said"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=folder,
            env={**os.environ, "SAYS": str(self.said)},
        )

    def outcome(self, patience: float) -> tuple[int, str]:
        """Its exit status and what it printed."""
        output, _ = self.process.communicate(timeout=patience)
        return self.process.returncode, output

    def end(self) -> None:
        """Kill it, if a test has failed before its end."""
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def start(tests: str, conftest: str = "", *options: str) -> Run:
        runs.append(Run(tmp_path, tests, conftest, *options))
        return runs[-1]

    yield start
    for each in runs:
        each.end()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize("divided", [[], ["-n", "1"]], ids=["whole", "divided"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_what_a_run_has_started_dies_with_it(
    run: Callable[..., Run],
    until: Callable[..., None],
    patience: float,
    number: signal.Signals,
    divided: list[str],
) -> None:
    with_servers = number == signal.SIGKILL and not divided
    tests = BUSY.replace("    MORE\n", SERVERS if with_servers else "")
    if number == signal.SIGTERM:
        tests = tests.replace("SIG_IGN", "SIG_DFL")
    it = run(tests, LEAVES + "ours.GRACE = 3\n", *divided)
    until(lambda: it.said.exists() or it.process.poll() is not None, "the start of everything")
    assert it.process.poll() is None, it.process.communicate()[0]
    folder, *numbers = it.said.read_text().split()
    pids = list(map(int, numbers))
    commands = b"".join(Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids)
    if with_servers:
        assert commands.count(b"deploy.worker.Worker") == 2
        assert b"postgres" in commands
    it.process.send_signal(number)
    status, output = it.outcome(patience)
    if number == signal.SIGTERM:
        assert status == pytest.ExitCode.INTERRUPTED, output
        assert "Terminated" in output
        assert divided or "test_it.py" in output
    until(lambda: not any(map(alive, pids)), "the end of what it had started")
    names = [f"test-{pids[0]}-", *(f"orders-{pid}" for pid in pids)]
    until(
        lambda: not any(name in file for name in names for file in os.listdir("/dev/shm")),
        "the end of its rings",
    )
    until(lambda: not os.path.exists(folder), "the end of its folder, and of its servers' in it")


BLOCKED = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])"
HANGS = """
import threading
def waits_for_nobody(): threading.Event().wait()
def test_before(): pass
def test_hangs():
    BLOCK
    waits_for_nobody()
def test_behind(): pass
"""


@pytest.fixture(scope="module", autouse=True)
def hanging(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Run]]:
    """The run in which a test hangs so: all wait for their guardians beside the other tests."""
    runs = {
        (block, divided): Run(
            tmp_path_factory.mktemp("hangs"),
            HANGS.replace("BLOCK", block),
            "ours.HANG = 20",
            *(["-n", "1"] if divided else []),
        )
        for block in ("pass", BLOCKED)
        for divided in (False, True)
    }
    yield lambda block, divided: runs[block, divided]
    for run in runs.values():
        run.end()


@pytest.mark.parametrize("divided", [False, True], ids=["whole", "divided"])
def test_a_hang_fails_its_test_and_no_other(
    hanging: Callable[..., Run], patience: float, divided: bool
) -> None:
    status, output = hanging("pass", divided).outcome(patience)
    assert status == pytest.ExitCode.TESTS_FAILED
    assert "1 failed, 2 passed" in output
    assert "this hangs; the threads' stacks:" in output
    assert "in waits_for_nobody" in output


@pytest.mark.parametrize("divided", [False, True], ids=["whole", "divided"])
def test_a_hang_that_python_cannot_end_is_not_silent(
    hanging: Callable[..., Run], patience: float, divided: bool
) -> None:
    status, output = hanging(BLOCKED, divided).outcome(patience)
    assert "Fatal Python error: Aborted" in output
    assert "in test_hangs" in output
    if divided:  # another worker goes on
        assert "1 failed, 2 passed" in output
    else:
        assert status == -signal.SIGABRT


ENDS_SLOWLY = """
import os, signal
class Late:
    def __del__(self, kill=os.kill, pid=os.getpid(), number=signal.SIGUSR2, write=os.write):
        kill(pid, number)
        write(1, b"still here")
late = Late()
def test_it(): pass
"""


def test_a_run_that_ends_slowly_is_not_killed_for_a_hang(
    run: Callable[..., Run], patience: float
) -> None:
    status, output = run(ENDS_SLOWLY).outcome(patience)
    assert status == pytest.ExitCode.OK, output
    assert output.endswith("still here")
