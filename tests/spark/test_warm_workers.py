"""Workers whose daemon has imported pandas before the fork, beside Spark's own workers."""

from __future__ import annotations

import os
import py_compile
import re
import shutil
import signal
import socket
import subprocess
import sys
import zipfile
from contextlib import ExitStack, suppress
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest
from direct import FUNCTIONS
from pyspark import SparkFiles
from pyspark.serializers import UTF8Deserializer, read_int, write_with_length
from pyspark.sql.functions import udf

WARM = "spark.shmring.warmWorkers"
OTHER = "__version__ = '0.1'\n"


@pytest.fixture
def new_workers(spark, name):
    """Lets functions of this test have a daemon of their own: there is one for each environment."""
    environment = spark.sparkContext.environment
    environment["SHMRING_TEST"] = name
    yield
    del environment["SHMRING_TEST"]


def collected(spark, function, *, tasks=1):
    def batches(batches):
        for _ in batches:
            pass
        yield pa.record_batch({"text": [function()]})

    frame = spark.range(tasks, numPartitions=tasks).mapInArrow(batches, "text string")
    return [row.text for row in frame.collect()]


def start():
    """Return what tells a worker from one that has started in another way."""
    threads = len(os.listdir(f"/proc/{os.getppid()}/task"))
    return f"pandas {'pandas' in sys.modules}, threads of the daemon {threads}"


@pytest.mark.parametrize(
    ("functions", "warm", "expected"),
    [
        ("on", "on", "pandas True, threads of the daemon 1"),
        ("on", "off", "pandas False, threads of the daemon 1"),
        ("off", "on", "pandas False, threads of the daemon 1"),
    ],
)
def test_daemon_imports_pandas_without_a_thread(
    spark, set_option, new_workers, functions, warm, expected
):
    set_option(FUNCTIONS, functions)
    set_option(WARM, warm)
    assert collected(spark, start) == [expected]


@pytest.fixture
def hanging(spark, set_option, new_workers, monkeypatch, tmp_path):
    """Lets the start of workers hang during the test.

    The Python of the workers' daemon makes the file that this fixture returns, and then waits.
    """
    begun, marker = tmp_path / "begun", tmp_path / "marker"
    (tmp_path / "sitecustomize.py").write_text(
        f"import pathlib, time\npathlib.Path({str(begun)!r}).touch()\n"
        f"while not pathlib.Path({str(marker)!r}).exists(): time.sleep(0.01)\n"
    )
    monkeypatch.setitem(spark.sparkContext.environment, "PYTHONPATH", str(tmp_path))
    set_option(FUNCTIONS, "on")
    yield begun
    marker.touch()


def test_killed_tasks_end_although_the_start_of_their_workers_hangs(
    spark, hanging, name, start_job, until
):
    frame = spark.range(10, numPartitions=2).mapInArrow(lambda batches: batches, "id long")
    cancel = start_job(frame)
    until(hanging.exists, "the start of the daemon")
    cancel()
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(600_000)
    tracker = spark.sparkContext.statusTracker()
    (job,) = map(tracker.getJobInfo, tracker.getJobIdsForGroup(name))
    (stage,) = job.stageIds
    until(lambda: tracker.getStageInfo(stage).numActiveTasks == 0, "the end of the tasks")


def test_task_without_rows_ends_although_the_start_of_another_tasks_worker_hangs(
    spark, hanging, start_job, until
):
    rows = spark.range(10, numPartitions=1)
    cancel = start_job(rows.mapInArrow(lambda batches: batches, "id long"))
    until(hanging.exists, "the start of the daemon")
    never_called = udf(lambda x: x, "long", useArrow=True)
    assert rows.where("id < 0").select(never_called("id")).collect() == []
    cancel()


def test_workers_have_random_states_of_their_own(spark, set_option, new_workers, tmp_path):
    folder = str(tmp_path)

    def random():
        import time

        import numpy as np

        Path(folder, str(os.getpid())).touch()
        while len(os.listdir(folder)) < 2:  # else the first worker may run both tasks
            time.sleep(0.01)
        return f"{np.random.random()} {np.random.get_state()[1][:8]}"

    set_option(FUNCTIONS, "on")
    assert len(set(collected(spark, random, tasks=2))) == 2


def test_workers_are_as_sparks_are(spark, set_option, new_workers):
    def surroundings():
        import decimal
        import faulthandler
        import locale
        import resource
        import threading
        import warnings

        import numpy as np
        import pandas as pd

        files = [os.readlink(f"/proc/self/fd/{each}") for each in (0, 1, 2)]
        signals = [str(signal.getsignal(each)) for each in sorted(signal.valid_signals())]
        return "\n".join(
            map(
                str,
                (
                    sorted(each for each in os.environ.items() if "SECRET" not in each[0]),
                    sys.argv[1:],
                    sys.path,
                    sys.flags,
                    sys.getrecursionlimit(),
                    files[0],
                    signals,
                    signal.pthread_sigmask(signal.SIG_BLOCK, []),
                    locale.setlocale(locale.LC_ALL),
                    sorted(
                        (name, resource.getrlimit(number))
                        for name, number in vars(resource).items()
                        if name.startswith("RLIMIT_")
                    ),
                    faulthandler.is_enabled(),
                    threading.active_count(),
                    sys.getprofile(),
                    sys.gettrace(),
                    decimal.getcontext(),
                    os.umask(0o22),
                    os.nice(0),
                    sorted(map(str, warnings.filters)),
                    pa.cpu_count(),
                    pa.io_thread_count(),
                    pa.default_memory_pool().backend_name,
                    np.geterr(),
                    np.get_printoptions(),
                    pd.get_option("compute.use_numexpr"),
                    pd.get_option("mode.copy_on_write"),
                ),
            )
        )

    spark.sparkContext.setLocalProperty("resource.pyspark.memory", "4000")  # RLIMIT_AS, in MiB
    try:
        set_option(FUNCTIONS, "off")
        (own,) = collected(spark, surroundings)
        set_option(FUNCTIONS, "on")
        (warm,) = collected(spark, surroundings)
    finally:
        spark.sparkContext.setLocalProperty("resource.pyspark.memory", None)
    assert warm == own.replace("pyspark.daemon", "shmring.spark.daemon")
    assert str(4000 << 20) in warm


def private(pid):
    """Return the bytes of memory that the process has and no file."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))


def rings_of(pid):
    return set(re.findall(r"shmring\.worker\.[^\s.]+", Path(f"/proc/{pid}/maps").read_text()))


def test_idle_worker_gives_memory_back_and_takes_the_next_task(
    spark, set_option, new_workers, until
):
    """Spark ends a worker only after a minute."""

    def work():
        freed = [b"x" * (1 << 20) for _ in range(48)]
        del freed
        return f"{os.getpid()} {private(os.getpid())} {' '.join(rings_of(os.getpid()))}"

    set_option(FUNCTIONS, "on")
    executor = spark._jvm.java.lang.ProcessHandle.current().pid()
    seen = set()
    for _ in range(2):
        ((pid, kept, *rings),) = map(str.split, collected(spark, work))
        assert len(rings) == 1
        assert seen.isdisjoint(rings)
        seen.update(rings)
        until(lambda pid=pid: not rings_of(pid), "the end of the worker's rings")
        until(lambda: seen.isdisjoint(rings_of(executor)), "the end of the executor's rings")
        until(
            lambda pid=pid, kept=kept: private(pid) < int(kept) - (32 << 20),
            "the end of freed memory",
        )


def _processes_of(name):
    """Return the processes whose environment `new_workers` has set for this test."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended
            if f"SHMRING_TEST={name}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.add(int(folder.name))
    return found


def test_worker_starts_while_the_first_task_makes_its_first_batch(
    spark, set_option, new_workers, name
):
    set_option(FUNCTIONS, "on")
    rows = spark.range(1, numPartitions=1).selectExpr("string(raise_error('no batch')) text")
    with pytest.raises(Exception, match="no batch"):
        rows.mapInArrow(lambda batches: batches, "text string").collect()
    started = _processes_of(name)
    assert len(started) == 2  # the daemon and its worker
    assert int(*collected(spark, lambda: str(os.getpid()))) in started
    assert _processes_of(name) == started


def _archived(path, name):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, OTHER)
    return str(path)


@pytest.fixture(
    params=["zip", *(pytest.param(way, marks=pytest.mark.long) for way in ("file", "archive"))]
)
def other_module(request, spark, tmp_path):
    """Adds another pandas, or a module that pandas imports, to the task's files; gives its name."""
    context = spark.sparkContext
    path, includes = list(sys.path), list(context._python_includes)
    added = Path(SparkFiles.getRootDirectory(), {"file": "csv.py"}.get(request.param, "pandas"))
    if request.param == "zip":
        context.addPyFile(_archived(tmp_path / "libraries.zip", "pandas/__init__.py"))
    elif request.param == "file":
        (tmp_path / "csv.py").write_text(OTHER)
        context.addPyFile(str(tmp_path / "csv.py"))
    else:
        context.addArchive(_archived(tmp_path / "packed.zip", "__init__.py") + "#pandas")
    sys.path[:] = path  # the driver's tests import the usual one
    yield added.stem
    context._python_includes[:] = includes
    shutil.rmtree(added, ignore_errors=True)
    if added.suffix:
        added.unlink()


def test_worker_with_another_module_on_its_path_starts_without_imports(
    spark, set_option, new_workers, other_module
):
    def version():
        from importlib import import_module

        left = [each for each in os.environ if each.startswith(("SHMRING_WARM", "SHMRING_REC"))]
        return f"{getattr(import_module(other_module), '__version__', '')} {left}"

    for functions in ("off", "on", "on"):  # the second time in a worker that is used again
        set_option(FUNCTIONS, functions)
        assert collected(spark, version) == ["0.1 []"]


def modules_after(statement):
    """Names of the outermost modules that a new process has after a statement."""
    code = f"import sys; {statement}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
    )
    return set(run.stdout.split())


def test_daemon_imports_no_module_in_whose_place_a_task_may_bring_its_own():
    """A task's csv.py would be ignored if the daemon had imported csv before it looks."""
    ours = modules_after("import shmring.spark.daemon")
    sparks = modules_after("import pyspark.daemon, pyspark.worker")
    assert ours - sparks == {"shmring"}


class Daemon:
    """Spark's end of a daemon, without an executor."""

    def __init__(self, **environment):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "shmring.spark.daemon", "pyspark.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ
            | {"PYTHON_WORKER_FACTORY_SECRET": "secret", "OMP_NUM_THREADS": "1"}
            | environment,
        )
        self.port = read_int(self.process.stdout)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()
        self.process.stderr.close()

    def threads(self):
        return len(os.listdir(f"/proc/{self.process.pid}/task"))

    def has_pandas(self):
        return "/pandas/" in Path(f"/proc/{self.process.pid}/maps").read_text()


class Worker:
    """A worker of a daemon, which waits for its first task."""

    def __init__(self, daemon):
        self._socket = socket.create_connection(("127.0.0.1", daemon.port))
        self._file = self._socket.makefile("rwb")
        self.pid = read_int(self._file)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file.close()
        self._socket.close()

    def answer(self):
        """Return what the worker says of the secret, which it reads before its first task."""
        write_with_length(b"secret", self._file)
        self._file.flush()
        return UTF8Deserializer().loads(self._file)


def test_64_workers_of_which_half_are_killed_while_they_start():
    with ExitStack() as stack:
        daemon = stack.enter_context(Daemon())
        workers = [stack.enter_context(Worker(daemon)) for _ in range(64)]
        for worker in workers[::2]:
            os.kill(worker.pid, signal.SIGKILL)
        assert {worker.answer() for worker in workers[1::2]} == {"ok"}
        assert stack.enter_context(Worker(daemon)).answer() == "ok"
        assert daemon.has_pandas()
        assert daemon.threads() == 1


@pytest.mark.parametrize(
    ("at_import", "says"),
    [
        ("threading.Thread(target=threading.Event().wait, daemon=True).start()", "1 threads"),
        ("raise ImportError('out of order')", "ImportError: out of order"),
        ("os.environ['ARROW_DEFAULT_MEMORY_POOL'] = 'jemalloc'", "jemalloc"),
    ],
)
def test_daemon_starts_again_without_imports(tmp_path, at_import, says):
    (tmp_path / "sitecustomize.py").write_text(f"""
import os, sys, threading

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "pandas":
            {at_import}

sys.meta_path.insert(0, Finder())
""")
    with Daemon(PYTHONPATH=str(tmp_path)) as daemon, Worker(daemon) as worker:
        assert worker.answer() == "ok"
        assert not daemon.has_pandas()
        assert daemon.threads() == 1
        daemon.process.stdin.close()
        assert says in daemon.process.stderr.read().decode()


@pytest.mark.parametrize("same", [True, False])
def test_archive_takes_bytecode_of_an_installed_module_with_the_same_source(tmp_path, same):
    sources = {"pack/__init__.py": "", "pack/module.py": "def where():\n    return 'source'\n"}
    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
        for name, source in sources.items():
            archive.writestr(name, source)
            installed = tmp_path / name
            installed.parent.mkdir(exist_ok=True)
            installed.write_text(source)
    bytecode = Path(py_compile.compile(str(installed), doraise=True))
    bytecode.write_bytes(bytecode.read_bytes().replace(b"source", b"stored"))
    if not same:
        stat = installed.stat()
        installed.write_text(sources["pack/module.py"].replace("source", "others"))
        os.utime(installed, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    told = subprocess.run(
        [sys.executable, "-c", USES_ARCHIVE],
        env=os.environ | {"PYTHONPATH": f"{tmp_path / 'archive.zip'}:{tmp_path}"},
        capture_output=True,
        text=True,
        check=True,
    )
    file = f"{tmp_path}/archive.zip/pack/module.py"
    assert told.stdout.split() == ["stored" if same else "source", file, file, "0"]


USES_ARCHIVE = """
import sys
from shmring.spark import archives
hooks = list(sys.path_hooks)
with archives.installed_bytecode():
    from pack import module
left = [each for each in sys.path_importer_cache.values() if isinstance(each, archives._Archive)]
print(module.where(), module.where.__code__.co_filename, module.__file__, len(left))
assert sys.path_hooks == hooks
"""


def test_daemon_compiles_no_module_of_sparks_archive_that_is_installed():
    archive = Path(pyspark.__file__).parent / "python" / "lib" / "pyspark.zip"
    told = subprocess.run(
        [sys.executable, "-c", COMPILES],
        env=os.environ | {"PYTHONPATH": str(archive)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.split() == [f"{archive}/pyspark/__init__.py", "0"]


COMPILES = """
import sys
compiled = []
sys.addaudithook(lambda event, given: compiled.append(given[1]) if event == "compile" else None)
import shmring.spark.daemon
import pyspark
files = [f"{pyspark.__path__[0]}/{name}.py" for name in ("__init__", "util", "serializers")]
print(pyspark.__file__, sum(compiled.count(file) for file in files))
"""
