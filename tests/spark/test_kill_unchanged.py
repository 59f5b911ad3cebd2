"""Kill -9 of Spark's own Python workers that take batches from rings, and tasks that are cancelled.

``SHMRING_KILL_ROUNDS`` sets the number of jobs; the default is three.
"""

from __future__ import annotations

import os
import random
import re
import signal
from contextlib import suppress
from pathlib import Path

import pytest
from direct import FUNCTIONS, ROWS, plan_of
from unchanged import series

COUNT = 40_000
CORES, TASKS = 4, 8
BATCH = 250
RUNS = range(int(os.environ.get("SHMRING_KILL_ROUNDS", "3")))
RINGS = 2 * CORES  # rings of the workers that wait for their next task
WARM = 5  # runs after which an executor has all that it keeps
SOME = 20  # descriptors of Spark's own, now and then

pytestmark = [pytest.mark.kill, pytest.mark.spark, pytest.mark.long]


@pytest.fixture(scope="module")
def spark(start_spark):
    return start_spark(
        f"local[{CORES},20]",
        **{FUNCTIONS: "on", "spark.excludeOnFailure.enabled": "false", ROWS: str(BATCH)},
    )


class Executor:
    """The JVM that runs the tasks."""

    def __init__(self, spark):
        self._java = spark.sparkContext._jvm
        self._conf = spark.sparkContext._jsc.sc().conf()
        self.pid = self._java.java.lang.ProcessHandle.current().pid()
        self._before = 0  # bytes that tests of other files have left to Arrow
        self._before = self.arrow_bytes()

    def reuse_workers(self, wanted):
        self._conf.set("spark.python.worker.reuse", str(wanted).lower())

    def descriptors(self):
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def rings(self):
        """Count the mapped rings of Python workers, which have no names any more."""
        maps = Path(f"/proc/{self.pid}/maps").read_text()
        return len(set(re.findall(r"shmring\.worker\.\S+", maps)))

    def arrow_bytes(self):
        utils = self._java.org.apache.spark.sql.util.ArrowUtils
        return int(utils.rootAllocator().getAllocatedMemory()) - self._before


@pytest.fixture(scope="module")
def executor(spark):
    return Executor(spark)


@pytest.fixture(scope="module")
def descriptors():
    """Return a list for the numbers of the executor's descriptors after each run."""
    return []


def _frames(spark, seen):
    """Each function says in a file that it has got a batch."""

    def says():
        with (seen / str(os.getpid())).open("a") as file:
            file.write(".")

    def maps(batches):
        for batch in batches:
            says()
            yield batch

    def same(x):
        says()
        return x

    numbers = spark.range(COUNT, numPartitions=TASKS)
    return [
        numbers.mapInArrow(maps, "id long"),
        numbers.select(series("long", same)("id").alias("id")),
    ]


@pytest.mark.parametrize("run", RUNS)
def test_kills_and_cancels_cost_no_row_and_leave_nothing(
    spark, executor, descriptors, tmp_path, thread, until, run
):
    rng = random.Random(run)
    executor.reuse_workers(rng.random() < 0.7)
    frame = rng.choice(_frames(spark, tmp_path))
    assert "over rings" in plan_of(frame)

    def total(group):
        spark.sparkContext.setJobGroup(group, group, interruptOnCancel=rng.random() < 0.5)
        return tuple(frame.selectExpr("count(*)", "sum(id)").first() or ())

    def batches():
        return sum(file.stat().st_size for file in tmp_path.iterdir())

    is_cancelled = rng.random() < 0.3
    job = thread(total, f"run {run}")
    for some in sorted(rng.sample(range(1, COUNT // BATCH), rng.randrange(1, 4))):
        until(lambda some=some: batches() >= some, "batches")
        victim = rng.choice(list(tmp_path.iterdir()))
        with suppress(ProcessLookupError):
            os.kill(int(victim.name), signal.SIGKILL)
    if is_cancelled:
        spark.sparkContext.cancelJobGroup(f"run {run}")
        with suppress(Exception):  # the job may have ended before
            job.outcome()
        assert total("again") == (COUNT, sum(range(COUNT)))
    else:
        assert job.outcome() == (COUNT, sum(range(COUNT)))
    until(lambda: executor.arrow_bytes() <= 0, "memory of Arrow")
    named = f"shmring.worker.{executor.pid}-*"
    until(lambda: not list(Path("/dev/shm").glob(named)), "rings without names")
    until(lambda: executor.rings() <= RINGS, "rings of workers that have ended")
    descriptors.append(executor.descriptors())
    assert descriptors[-1] <= max(descriptors[:WARM]) + SOME
