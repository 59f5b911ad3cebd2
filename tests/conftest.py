"""What all tests share: rings that go away, processes that are ended, nothing left behind."""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import gc
import itertools
import math
import os
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

import pytest

import shmring

sys.path.insert(0, str(Path(__file__).parent))
from sessions import Sessions

SHM = Path("/dev/shm")
# Seconds that a test waits for an event before it fails: most take milliseconds, a few start a
# Python or a JVM, and all of it may share the machine with ten times as much.
PATIENCE = 120.0
HANG = 1200.0  # seconds: no step of a test takes a tenth of it
_numbers = itertools.count()
_RUN = pytest.StashKey[Path]()
_GUARDIAN = pytest.StashKey["subprocess.Popen[bytes]"]()
_STEP = pytest.StashKey["str | None"]()


class Terminated(KeyboardInterrupt):
    """Somebody ends the run: fixtures end what they started, and pytest says where it was."""


def pytest_configure(config: pytest.Config) -> None:
    """Start the guardian, and let it find what this run starts."""
    run = Path(tempfile.mkdtemp(prefix="shmring-run-"))
    config.stash[_RUN] = run
    (run / "progress").touch()
    os.environ["SHMRING_TEST_RUN"] = str(run)
    runs_pid = os.getpid()

    def note() -> None:
        start = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
        with contextlib.suppress(FileNotFoundError):  # the run is over
            (run / str(os.getpid())).write_text(start)

    def terminated(number: int, _: object) -> None:
        if os.getpid() != runs_pid:  # forked, and not told what to do with it
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        raise Terminated(signal.Signals(number).name)

    def hangs(*_: object) -> None:
        if config.stash.get(_STEP, None) is not None and os.getpid() == runs_pid:
            with tempfile.TemporaryFile("w+") as stacks:
                faulthandler.dump_traceback(stacks)
                stacks.seek(0)
                pytest.fail(f"this hangs; the threads' stacks:\n{stacks.read()}")

    os.register_at_fork(after_in_child=note)
    signal.signal(signal.SIGTERM, terminated)
    signal.signal(signal.SIGUSR2, hangs)
    limit = math.inf if config.getoption("usepdb") else HANG
    guardian = Path(__file__).parent / "guardian.py"
    config.stash[_GUARDIAN] = subprocess.Popen(
        [sys.executable, str(guardian), str(run), str(runs_pid), str(limit)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # whoever ends the run by its group does not end this
    )


@contextlib.contextmanager
def _step(item: pytest.Item) -> Iterator[None]:
    os.utime(item.config.stash[_RUN] / "progress")
    item.config.stash[_STEP] = item.nodeid
    try:
        yield
    finally:
        item.config.stash[_STEP] = None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    with _step(item):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    with _step(item):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    with _step(item):
        return (yield)


def _minor(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")[:2]))


@pytest.hookimpl(trylast=True)  # the folders' own hooks mark the items
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that are for other versions of Spark than the installed one."""
    spark = _minor(metadata.version("pyspark"))
    others = [
        item
        for item in items
        for mark in item.iter_markers("spark_version")
        if not _minor(mark.kwargs.get("since", "0"))
        <= spark
        < _minor(mark.kwargs.get("before", "99"))
    ]
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]
    if spark < (4, 2):
        for item in items:
            if item.get_closest_marker("spark"):
                # PySpark leaves it to the garbage collector to close the socket of a collect().
                item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket"))


def _rings() -> set[str]:
    """What is named like a ring, save for another test run's, and for other libraries' files."""
    return {
        name
        for name in os.listdir(SHM)
        if name.startswith("shmring.")
        and ".node." not in name
        and all(int(pid) == os.getpid() for pid in re.findall(r"test-(\d+)-", name))
    }


def _is_ours(pid: str) -> bool:
    """Whether the process is this one or descends from it."""
    ancestor = pid
    while ancestor not in ("0", str(os.getpid())):
        stat = Path(f"/proc/{ancestor}/stat").read_text()
        ancestor = stat.rpartition(")")[2].split()[1]
    return ancestor != "0"


def _used_elsewhere(name: str) -> bool:
    """Whether a process that is not ours maps the ring: several runs may share a machine."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            inode = f" {(SHM / name).stat().st_ino} "
            if inode in (folder / "maps").read_text() and not _is_ours(folder.name):
                return True
        except OSError:
            continue
    return False


@pytest.fixture(autouse=True)
def _nothing_stays_in_shared_memory() -> Iterator[None]:
    before = _rings()
    yield
    left = _rings() - before
    if left:
        gc.collect()
        left &= _rings()
    # Somebody else's ring is between two of its users, or goes by itself.
    deadline = time.monotonic() + 30.0
    while left and time.monotonic() < deadline:
        time.sleep(0.05)
        left = {name for name in left & _rings() if not _used_elsewhere(name)}
    assert not left, "the test left rings in /dev/shm"


@pytest.fixture
def patience() -> float:
    """Seconds that `until` waits; modules whose tests start clusters have more."""
    return PATIENCE


@pytest.fixture
def name() -> str:
    """A ring's name that nobody else uses."""
    return f"test-{os.getpid()}-{next(_numbers)}"


@pytest.fixture
def ring(name: str) -> Iterator[shmring.Ring]:
    """A ring of 1,024 slots."""
    with shmring.create(name, slots=1024, temporary=True) as ring:
        yield ring


def wait_until(
    condition: Callable[[], object], what: str = "the condition", *, patience: float = PATIENCE
) -> None:
    """Return as soon as `condition()` is true."""
    deadline = time.monotonic() + patience
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come true in {patience} s"
        pause.wait(0.001)


@pytest.fixture
def until(patience: float) -> Callable[..., None]:
    return functools.partial(wait_until, patience=patience)


@pytest.fixture(scope="session")
def sessions() -> Iterator[Sessions]:
    """Spark sessions, which the folders' fixtures ask for."""
    sessions = Sessions()
    yield sessions
    sessions.close()


class Child:
    """A Python process that talks by lines."""

    def __init__(self, code: str, *arguments: str) -> None:
        source = str(Path(shmring.__file__).parent.parent)
        path = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-c", textwrap.dedent(code), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
        )
        self._text = b""

    @property
    def pid(self) -> int:
        return self.process.pid

    def line(self) -> str:
        """The next line it prints."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + PATIENCE
        while b"\n" not in self._text:
            left = deadline - time.monotonic()
            ready, _, _ = select.select([self.process.stdout], [], [], max(left, 0))
            assert ready, "the child said nothing in time"
            more = os.read(self.process.stdout.fileno(), 65536)
            assert more, f"the child ended: {self._errors()}"
            self._text += more
        line, _, self._text = self._text.partition(b"\n")
        return line.decode()

    def say(self, line: str = "") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()

    def kill(self) -> None:
        """SIGKILL, and wait for it."""
        self.process.kill()
        self.process.wait(PATIENCE)

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def end(self) -> str:
        """Wait for its end, which must be a good one; what it printed meanwhile."""
        output, errors = self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == 0, errors.decode()
        assert not errors, errors.decode()
        return (self._text + output).decode()

    def _errors(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read().decode()

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None and not stream.closed:
                stream.close()


@pytest.fixture
def child() -> Iterator[Callable[..., Child]]:
    """Starts Python processes from source code; they are ended with the test."""
    children: list[Child] = []

    def start(code: str, *arguments: object) -> Child:
        children.append(Child(code, *map(str, arguments)))
        return children[-1]

    yield start
    for each in children:
        each.close()


class Thread(threading.Thread):
    """A thread whose result or exception join() hands over."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        super().__init__(daemon=True)
        self._call = (function, arguments)
        self.result: object = None
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        function, arguments = self._call
        try:
            self.result = function(*arguments)
        except BaseException as error:
            self.error = error

    def outcome(self) -> object:
        self.join(PATIENCE)
        assert not self.is_alive(), "the thread did not end in time"
        if self.error is not None:
            raise self.error
        return self.result


@pytest.fixture
def thread() -> Callable[..., Thread]:
    """Runs a function in a thread; outcome() returns or raises what it did."""
    return Thread


@pytest.fixture
def seat() -> Callable[[shmring.Ring, str], dict[str, object]]:
    """What ring.seats() says of the participant with this name."""

    def find(ring: shmring.Ring, name: str) -> dict[str, object]:
        return next(seat for seat in ring.seats() if seat["name"] == name)

    return find


@pytest.fixture
def forge() -> Callable[[shmring.Ring, bytes, int], int]:
    """Publish bytes as a kind that they are not, as no push() does."""

    def publish(ring: shmring.Ring, data: bytes, kind: int) -> int:
        with ring.producer() as out, out.claim(memoryview(data).nbytes) as claim:
            claim.buffer[:] = bytes(data)
            claim.commit()
        with open(ring.path, "r+b") as file:
            file.seek(88)
            (control,) = struct.unpack("<Q", file.read(8))
            file.seek(control + 32 * (claim.message_id % ring.slots) + 29)
            file.write(bytes([kind]))
        return claim.message_id

    return publish
