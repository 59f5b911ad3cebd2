"""A real standalone cluster, started from the pip package: the example, and kill -9 at work."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import sysconfig
import zipfile
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from cluster import Cluster, spark_home
from programs import ended

import shmring
from shmring.spark import jar_path

HERE = Path(__file__).parent
EXAMPLES = HERE.parent.parent / "spark_examples"
SCHEMA = pa.schema([("x", pa.int64()), ("s", pa.string())])

pytestmark = [pytest.mark.kill, pytest.mark.spark, pytest.mark.long]


class Driver:
    """A Spark application in processes of its own."""

    def __init__(self, errors, *arguments):
        self._errors = errors
        with errors.open("a") as file:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / "exactly_once.py"), *map(str, arguments)],
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                start_new_session=True,
            )

    def expect(self, line):
        assert self.process.stdout.readline().strip() == line, self._errors.read_text()

    def kill(self):
        """The Python program and the JVM, both at once."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture
def drive(cluster, until, tmp_path):
    started = []

    def start(*arguments):
        started.append(Driver(tmp_path / "errors", cluster.url, *arguments))
        started[-1].expect("ready")
        return started[-1]

    yield start
    for driver in started:
        driver.kill()
    until(lambda: not cluster.executors, "the executors' end")


@pytest.fixture
def rings(name):
    """The ring that is read and the one that is written."""
    with (
        shmring.create(f"{name}-in", slots=65_536, schema=SCHEMA, temporary=True) as source,
        shmring.create(f"{name}-out", slots=65_536, schema=SCHEMA, temporary=True) as target,
    ):
        target.subscribe("check")
        yield source, target
        for left in Path("/dev/shm").glob(f".shmring-*-shmring.{name}-out*"):
            left.unlink() if left.is_file() else shutil.rmtree(left)


def write(ring, rows, text):
    rows = list(rows)
    with ring.arrow_writer() as out:
        for i in range(0, len(rows), 10):
            part = rows[i : i + 10]
            out.write(pa.table([part, [text] * len(part)], schema=SCHEMA))


class Check:
    """The rows that have come out so far."""

    def __init__(self, ring):
        self.rows = []
        self._reader = ring.arrow_reader("check", until="empty", copy=True)

    def __len__(self):
        for batch in self._reader:
            self.rows += batch.column("x").to_pylist()
        return len(self.rows)


def test_stream_is_exactly_once_whatever_is_killed(cluster, drive, rings, tmp_path, thread, until):
    source, target = rings
    source.subscribe("b", exclusive=True)
    count = 3000
    feeder = thread(write, source, range(count), "x" * 100)
    check = Check(target)
    arguments = ("stream", source.name, target.name, tmp_path / "checkpoint")
    driver = drive(*arguments)
    for kill in range(6):
        wanted = min(len(check) + 300, count)  # a micro-batch
        until(lambda wanted=wanted: len(check) >= wanted, "more rows")
        if kill == 3:
            driver.kill()
            driver = drive(*arguments)
        else:
            until(lambda: cluster.executors, "an executor")
            os.kill(random.choice(cluster.executors), signal.SIGKILL)
    until(lambda: len(check) >= count, "the last row")
    feeder.outcome()
    driver.kill()
    assert sorted(check.rows) == list(range(count))


def test_job_is_exactly_once_when_its_executors_are_killed(cluster, drive, rings, tmp_path, until):
    source, target = rings
    source.subscribe("b")
    write(source, range(4000), "x" * 3000)
    driver = drive("batch", source.name, target.name, tmp_path)
    for _ in range(2):
        until(lambda: readers(source), "the task")
        for executor in cluster.executors:
            os.kill(executor, signal.SIGKILL)
        until(lambda: not readers(source), "the task's end")
    (tmp_path / "go").touch()
    driver.expect("done")
    assert not list(Path("/dev/shm").glob(f".shmring-staging-shmring.{target.name}-*"))
    check = Check(target)
    assert len(check) == 4000
    assert sorted(check.rows) == list(range(4000))
    assert [b["released"] for b in source.branches()] == [source.claimed]


def readers(ring):
    return [s for s in ring.participants() if s["alive"] and s["name"].startswith("spark task")]


def others(cluster):
    """Return the processes of a cluster's sessions, apart from its daemons."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, _, _, session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(session) in cluster.daemons and state != "Z":
                found.append(int(folder.name))
    return sorted(set(found) - set(cluster.daemons))


def test_functions_over_rings_give_equal_results_whatever_ends(cluster, drive, tmp_path, until):
    driver = drive("functions", "-", "-", tmp_path)
    begun = 2  # each of the two workers has a core
    for number in (signal.SIGKILL, signal.SIGPWR):  # the second one is for Spark's decommission
        until(lambda begun=begun: len(list(tmp_path.glob("begun-*"))) >= begun, "tasks")
        until(lambda: len(cluster.executors) == 2, "two executors")
        os.kill(cluster.executors[0], number)
        begun += 1
    (tmp_path / "go").touch()
    driver.expect("done")
    until(lambda: not others(cluster), "the end of executors and their Python workers")


def test_nothing_is_left_of_functions_whose_driver_is_killed(cluster, drive, tmp_path, until):
    driver = drive("functions", "-", "-", tmp_path)
    until(lambda: list(tmp_path.glob("begun-*")), "a task")
    executors = cluster.executors
    driver.kill()
    until(lambda: not others(cluster), "the end of executors and their Python workers")
    for executor in executors:
        assert not list(Path("/dev/shm").glob(f"shmring.worker.{executor}-*"))


PACKAGES = ("shmring", "numpy", "numpy.libs", "pandas", "pyarrow", "dateutil", "pytz", "tzdata")
JOB = """
import brought
import pyarrow as pa
from pyspark.sql import SparkSession

def places(batches):
    import shmring

    for _ in batches:
        yield pa.record_batch({"text": [brought.NAME, shmring.__file__]})

spark = SparkSession.builder.getOrCreate()
frame = spark.range(4, numPartitions=4).mapInArrow(places, "text string")
print("over rings" in frame._jdf.queryExecution().toString())
for row in frame.distinct().collect():
    print(row.text)
"""


@pytest.fixture
def environment(tmp_path):
    """Return an archive of a Python with shmring, made by venv-pack."""
    packages = Path(sysconfig.get_path("purelib"))
    made = tmp_path / "environment"
    ended(sys.executable, "-m", "venv", "--without-pip", made, check=True)
    (site,) = made.glob("lib/python*/site-packages")
    for name in PACKAGES:
        if (packages / name).exists():
            skipped = shutil.ignore_patterns("tests", "jars", "include", "__pycache__")
            shutil.copytree(packages / name, site / name, ignore=skipped)
    for file in (*packages.glob("six.py"), *packages.glob("*posix_ipc*.so")):
        shutil.copy(file, site)
    archive = tmp_path / "environment.tar.gz"
    pack = ("-m", "venv_pack", "--prefix", made, "--output", archive, "--compress-level", "1")
    ended(sys.executable, *pack, check=True)
    return archive


def test_spark_submit_brings_python_jar_and_modules(tmp_path, environment, monkeypatch):
    """Run the command of docs/guides/clusters.md as it stands there."""
    monkeypatch.delenv("PYTHONPATH")  # executors would find shmring there
    with zipfile.ZipFile(tmp_path / "brought.zip", "w") as modules:
        modules.writestr("brought.py", "NAME = 'brought along'\n")
    (tmp_path / "job.py").write_text(JOB)
    with Cluster(workers=2, cores=1) as cluster:
        done = ended(
            *(spark_home() / "bin" / "spark-submit", "--master", cluster.url),
            *("--properties-file", HERE.parent / "spark-defaults.conf"),
            *("--conf", "spark.executor.memory=512m"),
            *("--jars", jar_path(), "--conf", "spark.shmring.functions=on"),
            *("--archives", f"{environment}#environment"),
            *("--conf", "spark.pyspark.python=./environment/bin/python"),
            *("--conf", f"spark.pyspark.driver.python={sys.executable}"),
            *("--py-files", tmp_path / "brought.zip", tmp_path / "job.py"),
            check=True,
        )
    over_rings, *texts = sorted(done.stdout.splitlines(), key=len)
    assert over_rings == "True"
    assert texts.pop(0) == "brought along"
    assert texts
    assert all("/environment/lib/" in text for text in texts)


def test_example():
    example = ended(sys.executable, EXAMPLES / "standalone.py", "100000", check=True)
    assert "100,000 rows" in example.stdout
    assert "left in /dev/shm: nothing" in example.stdout
