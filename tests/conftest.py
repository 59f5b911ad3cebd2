"""Fixtures of all tests: rings that are removed, Spark and sidecars, no leftovers."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import gc
import inspect
import itertools
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import shmring
from shmring.sidecars import Sidecar, supervisor

sys.path.insert(0, str(Path(__file__).parents[1] / "spark_examples"))
sys.path.insert(0, str(Path(__file__).parent))
import spark_start
from patience import PATIENCE, wait_until
from programs import ended
from sessions import PATIENCE as PATIENCE_WITH_SPARK
from sessions import STANDING, Clusters, Sessions, Sidecars, target_of

if TYPE_CHECKING:
    from cluster import Cluster
    from pyspark.sql import SparkSession
    from xdist.remote import Producer
    from xdist.scheduler import Scheduling

pytest_plugins = ["children"]

TESTS = Path(__file__).parent
SHM = Path("/dev/shm")
GRACE = 10.0  # seconds for what outlives the run: a JVM removes its folders
_numbers = itertools.count()
_WHOLE_RUN = pytest.StashKey[Path]()


class Terminated(KeyboardInterrupt):
    """Somebody ends the run: fixtures end what they started, and pytest says where it was."""


def _equip_children() -> None:
    """Let child processes import shmring and the tests' modules; make each Spark one for tests."""
    # Modules that this process finds first, its children find first, too: another pyspark, say.
    path = (os.environ.get("PYTHONPATH", ""), str(Path(shmring.__file__).parents[1]), str(TESTS))
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(":".join(path).strip(":").split(":")))
    os.environ.pop("SPARK_CONF_DIR", None)
    # No test computes with matrices: numpy would start a thread for each core, which spins a while.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if find_spec("pyspark"):  # a machine with a GPU may have none
        os.environ.update(spark_start.environment())


def pytest_configure(config: pytest.Config) -> None:
    """Give the run a folder, and its children a mark; pytest-timeout ends a test that hangs.

    Each worker of a run that pytest-xdist divides has a folder within that of the whole run, and
    its children have the mark of the whole run.
    """
    _equip_children()
    # Files made by tempfile are removed after the run; pytest's own folders stay for inspection.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    whole = Path(os.environ["SHMRING_TEST_RUN"]) if hasattr(config, "workerinput") else None
    above = whole or os.environ["PYTEST_DEBUG_TEMPROOT"]
    run = Path(tempfile.mkdtemp(prefix="shmring-run-", dir=above))
    run.chmod(0o711)  # servers that run as another user find theirs
    tempfile.tempdir = str(run)
    config.stash[_WHOLE_RUN] = whole or run
    os.environ["SHMRING_TEST_RUN"] = str(whole or run)
    runs_pid = os.getpid()

    def terminated(number: int, _: object) -> None:
        if os.getpid() != runs_pid:  # forked, and not told what to do with it
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        raise Terminated(signal.Signals(number).name)

    signal.signal(signal.SIGTERM, terminated)
    # A script's background job ignores it, and so would all that tests start and interrupt.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_unconfigure(config: pytest.Config) -> None:
    """End what outlives the run, and remove its folder."""
    run = config.stash.get(_WHOLE_RUN, None)
    if run is None or hasattr(config, "workerinput"):
        return
    deadline = time.monotonic() + GRACE
    while living := _started_by(run):
        number = signal.SIGKILL if time.monotonic() > deadline else signal.SIGTERM
        for pid in living:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        time.sleep(0.05)
    shutil.rmtree(run, ignore_errors=True)


def _started_by(run: Path) -> set[int]:
    """Return the running processes with the run's mark, or with a parent in this run."""
    mark = f"SHMRING_TEST_RUN={run}".encode()
    found: set[int] = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            if state not in "ZX" and (
                int(parent) == os.getpid() or mark in (folder / "environ").read_bytes().split(b"\0")
            ):
                found.add(int(folder.name))
    return found - {os.getpid()}


def _minor(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")[:2]))


@functools.cache
def _installed(package: str) -> tuple[int, ...]:
    return _minor(metadata.version(package)) if find_spec(package) else (0,)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the tests that have a Spark session, and leave its own warnings alone."""
    if "sessions" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.spark)
        # PySpark says so of every pandas that is newer than itself, and works.
        ignored = "ignore:PySpark does not yet fully support pandas"
        item.add_marker(pytest.mark.filterwarnings(ignored))
        if _installed("pyspark") < (4, 2):
            # PySpark leaves it to the garbage collector to close the socket of a collect().
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket"))


def _is_for_others(item: pytest.Item) -> bool:
    """Whether a test is for other versions of Spark or pandas than the installed ones."""
    return any(
        not _minor(mark.kwargs.get("since", "0"))
        <= _installed(package)
        < _minor(mark.kwargs.get("before", "99"))
        for name, package in (("spark_version", "pyspark"), ("pandas_version", "pandas"))
        for mark in item.iter_markers(name)
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that are for other versions."""
    others = [item for item in items if _is_for_others(item)]
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]
    _sort(items)


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Call a test that is a coroutine by its fixture `run`, of event_loops."""
    test = pyfuncitem.function
    if not inspect.iscoroutinefunction(test):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}
    pyfuncitem.funcargs["run"](test(**given))
    return True


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Let one worker begin: the others read what pytest and Python have compiled for it.

    Nothing of what they collect is garbage: to look for some takes a tenth of the time.
    """
    with contextlib.ExitStack() as ends:
        file = ends.enter_context(open(session.config.stash[_WHOLE_RUN] / "collection", "ab"))
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(file, fcntl.LOCK_SH)
        gc.disable()
        ends.callback(gc.enable)
        return (yield)


def pytest_collection_finish() -> None:
    """Let gc.collect() look at what tests leave, not at all that pytest has imported."""
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)  # libraries count their objects at the end of Python


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling | None:
    """Divide the files so that not all workers start a Spark."""
    if config.getvalue("dist") != "loadfile":
        return None
    from divided import SparksApart

    return SparksApart(config, log)


def _sort(items: list[pytest.Item]) -> None:
    """The files that take longest first, so that a divided run's workers end at about one time.

    Before them those with tests that are to be alone: each of these waits for what the other
    workers are at, and they for it, which costs least while all that runs is short.
    """
    ranks: dict[Path, int] = {}
    for item in items:
        of_spark, kills, slow, alone = (
            item.get_closest_marker(mark) is not None for mark in ("spark", "kill", "slow", "alone")
        )
        rank = 4 * alone + 2 * of_spark + (kills or slow)
        ranks[item.path] = max(rank, ranks.get(item.path, 0))
    items.sort(key=lambda item: (-ranks[item.path], item.get_closest_marker("alone") is None))


def _rings() -> set[str]:
    """Return the files named like a ring, without those of other test runs or libraries.

    The rings of a module's sidecars stay until its end; `served` looks for them then.
    """
    return {
        name
        for name in os.listdir(SHM)
        if name.startswith("shmring.")
        and ".node." not in name
        and STANDING not in name
        and all(int(pid) == os.getpid() for pid in re.findall(r"test-(\d+)-", name))
        and not any(map(_is_elsewhere, re.findall(r"\.worker\.(\d+)-", name)))
    }


def _is_ours(pid: str) -> bool:
    """Whether the process is this one or descends from it."""
    ancestor = pid
    while ancestor not in ("0", str(os.getpid())):
        stat = Path(f"/proc/{ancestor}/stat").read_text()
        ancestor = stat.rpartition(")")[2].split()[1]
    return ancestor != "0"


def _is_elsewhere(pid: str) -> bool:
    """Whether the process lives, and is not ours."""
    try:
        return not _is_ours(pid)
    except OSError:
        return False


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


@contextlib.contextmanager
def _locked(path: Path, how: int) -> Iterator[None]:
    with open(path, "ab") as file:
        fcntl.flock(file, how)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # a forked child may have the file, too


@pytest.fixture(autouse=True)
def _shares_the_host(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests marked `alone` touch or look at all rings of the host: no worker runs one beside."""
    run = request.config.stash[_WHOLE_RUN]
    how = fcntl.LOCK_EX if request.node.get_closest_marker("alone") else fcntl.LOCK_SH
    with contextlib.ExitStack() as stack:
        with _locked(run / "next", fcntl.LOCK_EX):  # wait behind a test that will be alone
            stack.enter_context(_locked(run / "host", how))
        yield


@pytest.fixture(autouse=True)
def _nothing_stays_in_shared_memory(_shares_the_host: None) -> Iterator[None]:
    before = _rings()
    yield
    left = _rings() - before
    if left:
        gc.collect()
        left &= _rings()
    # Somebody else's ring is between two of its users, or goes by itself.
    deadline = time.monotonic() + PATIENCE
    while left and time.monotonic() < deadline:
        time.sleep(0.05)
        left = {name for name in left & _rings() if not _used_elsewhere(name)}
        for name in left:  # its client was killed behind its sidecar: what `shmring gc` is for
            if name.startswith("shmring.reply."):
                shmring.gc(path=SHM / name)
    assert not left, "the test left rings in /dev/shm"


@pytest.fixture
def name() -> str:
    """A ring's name that nobody else uses."""
    return f"test-{os.getpid()}-{next(_numbers)}"


@pytest.fixture
def ring(name: str, request: pytest.FixtureRequest) -> Iterator[shmring.Ring]:
    """A ring of 1,024 slots, or with the options of the mark `ring`."""
    mark = request.node.get_closest_marker("ring")
    options = {"slots": 1024, "temporary": True, **(mark.kwargs if mark else {})}
    branch = options.pop("branch", None)
    with shmring.create(name, **options) as ring:
        if branch is not None:
            ring.subscribe(branch, start="earliest")
        yield ring


@pytest.fixture
def out(ring: shmring.Ring) -> Iterator[shmring.Producer]:
    with ring.producer() as out:
        yield out


@pytest.fixture
def inp(ring: shmring.Ring) -> Iterator[shmring.Consumer]:
    with ring.consumer("a") as inp:
        yield inp


@pytest.fixture
def with_small_shm(tmp_path: Path) -> Callable[..., list[str]]:
    """Makes of a command one that has a /dev/shm of its own, of so many bytes ("64k").

    In it are those files of /dev/shm, by their names, that the command is to see.
    """

    def with_small_shm(size: str, *command: str, shared: Iterable[str] = ()) -> list[str]:
        # A user namespace, so that nobody need be root; the tmpfs goes with the last process.
        own = tmp_path / "shm"
        own.mkdir(exist_ok=True)
        steps = [f"mount -t tmpfs -o size={size} tmpfs {own}"]
        for file in shared:
            steps += [f"touch {own}/{file}", f"mount --bind /dev/shm/{file} {own}/{file}"]
        steps += [f"mount --move {own} /dev/shm", 'exec "$@"']
        inside = ["unshare", "-Urm", "sh", "-c", " && ".join(steps), "sh"]
        probe = ended(*inside, "true")
        if probe.returncode:
            pytest.skip(f"no /dev/shm of one's own: {probe.stderr.strip()}")
        return [*inside, *command]

    return with_small_shm


@pytest.fixture
def in_small_shm(with_small_shm: Callable[..., list[str]]) -> Callable[..., str]:
    """Runs Python code, in parts, with a /dev/shm of so many bytes; what it printed."""

    def run(size: str, *parts: str, timeout: float = 600) -> str:
        program = "".join(map(textwrap.dedent, parts))
        command = with_small_shm(size, sys.executable, "-c", program)
        return ended(*command, timeout=timeout, check=True).stdout

    return run


@pytest.fixture(scope="session")
def sessions() -> Iterator[Sessions]:
    sessions = Sessions()
    yield sessions
    sessions.close()


@pytest.fixture(scope="session")
def clusters() -> Iterator[Clusters]:
    clusters = Clusters()
    yield clusters
    clusters.stop()


@pytest.fixture(scope="module")
def cluster(clusters: Clusters) -> Cluster:
    """A standalone cluster of two workers on this host."""
    return clusters.start()


@pytest.fixture(scope="module")
def start_spark(sessions: Sessions) -> Callable[..., SparkSession]:
    """Starts a session with the jar, or gives the one that runs and is like it."""
    return functools.partial(sessions.start, **{"spark.sql.session.timeZone": "UTC"})


@pytest.fixture(scope="module")
def spark(start_spark: Callable[..., SparkSession]) -> SparkSession:
    """A session in one process."""
    return start_spark("local[2]")


@pytest.fixture
def bystanders(name: str) -> Iterator[None]:
    """A ring with traffic before and after; whatever happens to the test's own, it goes on."""
    with (
        shmring.create(f"{name}-bystander", slots=1024, temporary=True) as ring,
        ring.producer() as out,
        ring.consumer("a") as inp,
    ):
        out.push(b"before")
        yield
        out.push(b"after")
        assert [inp.pop(timeout=0), inp.pop(timeout=0)] == [b"before", b"after"]


@pytest.fixture
def serve(name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Sidecar]]:
    """Starts a sidecar that runs a function of functions.py; it is stopped with the test.

    Workers that end again and again are started again at once, not after seconds.
    """
    monkeypatch.setattr(supervisor, "_BACKOFF", (0.0, 0.05))
    with contextlib.ExitStack() as ends:

        def start(function: str, **options: object) -> Sidecar:
            sidecar = Sidecar(target_of(function), name=name, **options)
            ends.callback(sidecar.stop)
            return sidecar.start(timeout=PATIENCE)

        yield start


@pytest.fixture
def marker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The file that some of functions.py look for, or wait for."""
    marker = tmp_path / "marker"
    monkeypatch.setenv("SHMRING_TEST_MARKER", str(marker))
    return marker


@pytest.fixture(scope="module")
def served(standing: Callable[[], Iterator[Callable[..., str]]]) -> Iterator[Callable[..., str]]:
    """The name of a sidecar that runs a function of functions.py, for tests that only ask.

    Those of a module that want equal ones have the same; tests that kill, stop or count have their
    own, of `serve`.
    """
    yield from standing()


@pytest.fixture(scope="session")
def standing() -> Callable[[], Iterator[Callable[..., str]]]:
    """Makes the fixture `served`, for one scope or another."""

    def serving() -> Iterator[Callable[..., str]]:
        sidecars = Sidecars()
        yield sidecars.start
        sidecars.stop()
        wait_until(
            lambda: not any(sidecars.prefix in file for file in os.listdir(SHM)),
            "the end of the rings between the sidecars and Spark's tasks",
            patience=PATIENCE_WITH_SPARK,
        )

    return serving


@pytest.fixture
def participant() -> Callable[[shmring.Ring, str], dict[str, object]]:
    """Return a function that finds a participant's record in a ring by its name."""

    def find(ring: shmring.Ring, name: str) -> dict[str, object]:
        return next(
            participant for participant in ring.participants() if participant["name"] == name
        )

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


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 2 MB."""
    mount = tmp_path / "small"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(mount)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.fail(
            f"this test mounts a tmpfs of 2 MB to fill it, and may not: {mounted.stderr.strip()}; "
            f"run it as root, or under `unshare --map-root-user --mount`"
        )
    try:
        yield mount
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=True)
