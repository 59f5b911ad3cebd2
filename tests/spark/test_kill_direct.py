"""Kill -9 on two hosts, each with a /dev/shm of its own, under what goes straight to a sidecar.

``SHMRING_KILL_ROUNDS`` sets the number of kills; the default is one of each kind.
"""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from direct import DIRECT, ROWS, plan_of

import shmring
from shmring.sidecars.rings import SUPERVISOR
from shmring.sidecars.wire import reply_ring_name, request_ring_name
from shmring.spark import arrow_udf, through

CORES = 2  # cores of each host: tasks of an executor that ask its sidecar at a time
WORKERS = 2
COUNT = 100_000
VICTIMS = ("worker", "attendant", "executor")
RUNS = range(-(-int(os.environ.get("SHMRING_KILL_ROUNDS", "3")) // len(VICTIMS)))

# Kinds of an application's processes on a host, by a word of their command lines.
KINDS = {
    "CoarseGrainedExecutorBackend": "executor",
    "shmring.spark.attendant": "attendant",
    "shmring.sidecars.worker": "worker",
}
WHOLE = Counter(executor=1, attendant=1, worker=WORKERS)

pytestmark = [pytest.mark.kill, pytest.mark.spark, pytest.mark.long]


class Process(NamedTuple):
    pid: int
    kind: str


class Host:
    """One of Spark's workers, with what it has started and its /dev/shm."""

    def __init__(self, daemon, sidecar):
        self._daemon = daemon
        self._sidecar = sidecar
        self._memory = Path(f"/proc/{daemon}/root/dev/shm")
        self._is_shared = self._memory.samefile("/dev/shm")  # with everything else that is here

    def processes(self):
        """All that Spark's worker has started, orphans too; they do not leave its session."""
        found: list[Process] = []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                stat = (folder / "stat").read_text().rpartition(")")[2].split()
                words = (folder / "cmdline").read_text().split("\0")
                if int(stat[3]) == self._daemon != int(folder.name) and stat[0] != "Z":
                    kind = next((KINDS[word] for word in KINDS if _runs(words, word)), str(words))
                    found.append(Process(int(folder.name), kind))
        return found

    def pids(self, kind):
        return [process.pid for process in self.processes() if process.kind == kind]

    def requests(self):
        """How many slots the requests of clients have taken so far."""
        with self._ring() as ring:
            return ring.claimed

    def is_whole(self):
        """Whether everything runs, once, the workers serve, and there is no file of the dead."""
        if Counter(process.kind for process in self.processes()) != WHOLE or self._left():
            return False
        with suppress(shmring.RingNotFound), self._ring() as ring:
            participants = [
                participant for participant in ring.participants() if participant["alive"]
            ]
            served = (
                sum(participant["role"] == "consumer" for participant in participants) == WORKERS
            )
            return served and any(each["name"].startswith(SUPERVISOR) for each in participants)
        return False

    def _ring(self):
        path = self._memory / f"shmring.{request_ring_name(self._sidecar)}"
        return shmring.attach(path=path, read_only=True, foreign_owner=True)

    def files(self):
        """Return the names in the host's /dev/shm; in a shared one, only those of this sidecar."""
        names = os.listdir(self._memory)
        return {name for name in names if not self._is_shared or self._sidecar in name}

    def _left(self):
        """Files that nobody living is to have."""
        files = self.files() - {f"shmring.{request_ring_name(self._sidecar)}"}
        replies = f"shmring.{reply_ring_name(self._sidecar, '')}"
        living = tuple(f"{replies}{pid}-" for pid in self.pids("executor"))
        kept = {file for file in files if file.startswith(living)}
        assert len(kept) <= CORES
        return {file for file in files - kept if not file.startswith(".shmring-turn-")}

    def is_empty(self):
        return not self.files() and not self.processes()

    def __repr__(self):
        return f"{self.processes()}, {self.files()}"


def _runs(words, name):
    return any(word.rpartition(".")[2] == name or word == name for word in words)


@pytest.fixture(scope="module")
def cluster(clusters):
    return clusters.start(cores=CORES, apart=True)


@pytest.fixture
def start(start_spark, cluster, sessions, name):
    """Starts an application that brings a sidecar along, in a JVM of its own.

    PySpark starts a JVM with the first session's options, which those after it have as well.
    """

    def start(*, shared):
        sidecar = f"spark.shmring.sidecar.{name}"
        options = {
            DIRECT: "true",
            ROWS: "500",
            "spark.plugins": "io.shmring.spark.ShmringPlugin",
            f"{sidecar}.function": "functions:slow",
            f"{sidecar}.workers": str(WORKERS),
            f"{sidecar}.shared": str(shared).lower(),
            "spark.executor.memory": "512m",
            "spark.locality.wait": "0",
        }
        sessions.close()
        return start_spark(cluster.url, **options)

    return start


@pytest.fixture
def expect(until):
    """Waits until something is so on each of these hosts, or says what is there instead."""

    def expect(hosts, condition):
        for host in hosts:
            try:
                until(lambda host=host: condition(host))
            except AssertionError:
                pytest.fail(f"{condition.__name__} is false of a host with {host}")

    return expect


@pytest.mark.parametrize("run", RUNS)
def test_kill_on_one_or_both_hosts_costs_no_row_and_leaves_nothing(
    cluster, sessions, start, name, tmp_path, thread, until, expect, run
):
    rng = random.Random(run)
    hosts = [Host(daemon, name) for daemon in cluster.daemons[1:]]
    spark = start(shared=run % 2 == 1)
    numbers = spark.range(COUNT, numPartitions=8)
    numbers.write.parquet(str(tmp_path / "numbers"))
    same = arrow_udf(name, "long", connect_timeout=120)
    frames = [
        numbers.mapInArrow(through(name, connect_timeout=120), "id long"),
        spark.read.parquet(str(tmp_path / "numbers")).select(same("id").alias("id")),
    ]

    def total(frame):
        sums = frame.selectExpr("count(*)", "sum(id)")
        (row,) = sums.collect()
        above, _, below = plan_of(sums).partition(f"Sidecar {name}")
        assert "ColumnarToRow" in above
        assert "ColumnarToRow" not in below
        return tuple(row)

    try:
        expect(hosts, Host.is_whole)
        for victim in rng.sample(VICTIMS, len(VICTIMS)):
            struck = rng.sample(hosts, rng.choice((1, 2)))
            some = struck[0].requests() + rng.randrange(1, 300)
            jobs = [thread(total, frame) for frame in frames]
            until(lambda struck=struck, some=some: struck[0].requests() >= some, "requests")
            for host in struck:
                os.kill(rng.choice(host.pids(victim)), signal.SIGKILL)
                print(f"killed {victim} of a host with {host}")
            for job in jobs:
                assert job.outcome() == (COUNT, sum(range(COUNT)))
            expect(hosts, Host.is_whole)
    finally:
        sessions.close()
    expect(hosts, Host.is_empty)
