"""Sixteen tasks of one executor and the rings for their answers, in the /dev/shm of a container."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = [pytest.mark.java, pytest.mark.spark, pytest.mark.long]

SMALL = ["unshare", "-Urm", "sh", "-c", 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"']

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
def in_64_mb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Runs a program with a session of sixteen cores and a /dev/shm of 64 MB; what it printed."""
    probe = subprocess.run([*SMALL, "sh", "true"], capture_output=True, text=True)
    if probe.returncode:
        pytest.skip(f"no /dev/shm of one's own: {probe.stderr.strip()}")
    monkeypatch.setenv("SHMRING_TEST_MARKER", str(tmp_path / "marker"))

    def run(code: str) -> str:
        program = textwrap.dedent(PRELUDE) + textwrap.dedent(code)
        done = subprocess.run(
            [*SMALL, "sh", sys.executable, "-c", program],
            capture_output=True,
            text=True,
            timeout=900,
        )
        assert done.returncode == 0, done.stderr[-5000:]
        return done.stdout

    return run


def test_clients_that_are_idle_give_way_to_those_of_another_sidecar(
    in_64_mb: Callable[[str], str],
) -> None:
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


def test_three_sidecars_deep_have_room(in_64_mb: Callable[[str], str]) -> None:
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
