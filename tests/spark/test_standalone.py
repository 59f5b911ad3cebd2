"""A real standalone cluster, started from the pip package: the example, and kill -9 at work."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from programs import ended

import shmring

HERE = Path(__file__).parent
EXAMPLES = HERE.parent.parent / "spark_examples"
SCHEMA = pa.schema([("x", pa.int64()), ("s", pa.string())])

pytestmark = [pytest.mark.kill, pytest.mark.spark, pytest.mark.long]


class Driver:
    """A Spark application in processes of its own."""

    def __init__(self, *arguments):
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "exactly_once.py"), *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )

    def expect(self, line):
        assert self.process.stdout.readline().strip() == line

    def kill(self):
        """The Python program and the JVM, both at once."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture
def drive(cluster, until):
    started = []

    def start(*arguments):
        started.append(Driver(cluster.url, *arguments))
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


def test_example():
    example = ended(sys.executable, EXAMPLES / "standalone.py", "100000", check=True)
    assert "100,000 rows" in example.stdout
    assert "left in /dev/shm: nothing" in example.stdout
