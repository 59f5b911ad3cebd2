"""Rings of an executor in the /dev/shm of a container: of sixteen tasks, and of Python workers."""

from __future__ import annotations

import functools
import sys
import textwrap

import pytest
from programs import ended

pytestmark = [pytest.mark.java, pytest.mark.spark, pytest.mark.long]

PRELUDE = """
    import os, threading, time
    from pathlib import Path

    import shmring
    from pyspark.sql import SparkSession
    from shmring.sidecars import Sidecar
    from shmring.spark import through
    from shmring.spark.jvm import configure

    TASKS = 16
    marker = Path(os.environ["SHMRING_TEST_MARKER"])
    builder = SparkSession.builder.master(f"local[{TASKS},4]").config("spark.ui.enabled", "false")
    spark = configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    # Several requests of each task: while the last sidecar waits, none of the others is done.
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 10)
    numbers = spark.range(0, 100 * TASKS, 1, TASKS).selectExpr("id x")

    def replies(*sidecars):
        kinds = tuple(f"reply.{sidecar}." for sidecar in sidecars)
        return [name for name in shmring.rings() if name.startswith(kinds)]

    def run(*sidecars):
        '''Lets no task go on before all have their rings.'''
        count = TASKS * len(sidecars)
        marker.unlink(missing_ok=True)
        frame = numbers
        for name in sidecars:
            frame = frame.mapInArrow(through(name, in_flight=1, **OPTIONS), "x long")
        said = []
        job = threading.Thread(target=lambda: said.append(sum(row.x for row in frame.collect())))
        job.start()
        while job.is_alive() and len(replies(*sidecars)) < count:
            time.sleep(0.01)
        print(len(replies(*sidecars)) >= count, flush=True)
        marker.touch()
        job.join()
        assert said == [sum(range(100 * TASKS))]
"""


@pytest.fixture
def in_64_mb(marker, in_small_shm):
    """Runs a program with a session of sixteen cores and a /dev/shm of 64 MB; what it printed."""
    return functools.partial(in_small_shm, "64m", PRELUDE, timeout=900)


def test_clients_that_are_idle_give_way_to_those_of_another_sidecar(in_64_mb):
    said = in_64_mb(
        """
        OPTIONS = {"reply_slots": 8192, "connect_timeout": 300}  # sixteen take 43 MB
        with Sidecar("functions:wait_for_marker", name="one", slots=1024, workers=16):
            with Sidecar("functions:wait_for_marker", name="two", slots=1024, workers=16):
                run("one")
                run("two")
                run("one")
        spark.stop()
        """
    )
    assert said == "True\n" * 3


def test_three_sidecars_deep_have_room(in_64_mb):
    said = in_64_mb(
        """
        OPTIONS = {}
        with Sidecar("functions:identity", name="a"), Sidecar("functions:identity", name="b"):
            with Sidecar("functions:wait_for_marker", name="c"):
                run("a", "b", "c")
                paths = [f"/dev/shm/shmring.{name}" for name in replies("a", "b", "c")]
                print(sum(os.stat(path).st_size for path in paths) < 40e6)
        spark.stop()
        """
    )
    assert said == "True\nTrue\n"


OF_WORKERS = """
    import os
    from pathlib import Path

    from pyspark.sql import SparkSession
    from shmring.spark import configure

    builder = SparkSession.builder.master("local[2]").config("spark.local.dir", "local")
    spark = configure(builder).getOrCreate()
    numbers = spark.range(0, 10_000, 1, 4).selectExpr("id", "repeat('x', 300) text")
    for _ in range(2):
        same = numbers.mapInArrow(lambda batches: batches, numbers.schema)
        assert "over rings" in same._jdf.queryExecution().executedPlan().toString()
        totals = same.selectExpr("sum(id)", "sum(length(text))").first()
        assert tuple(totals) == (sum(range(10_000)), 300 * 10_000)
    assert not os.listdir("/dev/shm")
    assert not [path for path in Path("local").rglob("*") if "worker" in path.name]
"""


def test_rings_are_files_elsewhere_and_one_line_says_so(tmp_path, with_small_shm):
    inside = with_small_shm("64k", sys.executable, "-c", textwrap.dedent(OF_WORKERS))
    done = ended(*inside, cwd=tmp_path, check=True)
    assert done.stderr.count("/dev/shm has no room for the rings of Python workers") == 1
