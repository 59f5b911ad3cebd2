"""The plugin in Spark: metrics, the end of the executor, settings that are wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from py4j.java_gateway import JavaClass
from pyspark.sql import functions

import shmring
from shmring.spark import jar_path, status

pytestmark = pytest.mark.spark

PLUGIN = "io.shmring.spark.ShmringPlugin"
GAUGES = "io.shmring.spark.request.WorkerMetrics"
DRIVER = """
import sys
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[2]")
builder.config("spark.driver.extraClassPath", sys.argv[1])
for setting in sys.argv[2:]:
    builder.config(*setting.split("=", 1))
spark = builder.getOrCreate()
print(spark._jvm.ProcessHandle.current().pid(), flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def settings(tmp_path):
    """Return settings of a Spark with the plugin, which writes its metrics into a folder."""
    sink = {"class": "org.apache.spark.metrics.sink.CsvSink", "period": 1, "directory": tmp_path}
    metrics = {f"spark.metrics.conf.*.sink.csv.{key}": str(value) for key, value in sink.items()}
    return {"spark.plugins": PLUGIN, **metrics}


@pytest.fixture
def metric(tmp_path):
    """Return a function for the last reported value of a metric; None before a report."""

    def metric(name):
        for file in tmp_path.glob(f"*plugin.io.shmring.spark.ShmringPlugin.{name}.csv"):
            if (lines := file.read_text().splitlines())[1:]:
                return int(lines[-1].split(",")[1])
        return None

    return metric


def ours(name):
    return [ring for ring in shmring.rings() if name in ring]


def test_sidecars_and_rings_are_beside_the_executor_and_in_its_metrics(
    start_spark, sessions, settings, metric, name, until
):
    settings[f"spark.shmring.sidecar.{name}.function"] = "functions:double"
    settings[f"spark.shmring.sidecar.{name}.workers"] = "2"
    settings[f"spark.shmring.ring.{name}.slots"] = "2048"
    spark = start_spark("local[2]", **settings)
    assert spark.range(1000).count() == 1000
    assert status(spark, queries=0)["wrong_settings"] == []
    until(lambda: metric(f"sidecar.{name}.workers") == 2, "the sidecar's workers")
    until(lambda: metric(f"sidecar.{name}.running") == 1, "its attendant's word on it")
    with shmring.attach(name) as ring:
        assert ring.slots == 2048
        ring.subscribe("b")
        with ring.producer() as out:
            for _ in range(10):
                out.push(b"message")
    until(lambda: metric(f"ring.{name}.usedSlots") == 10, "the ring's metric")
    sessions.stop()
    assert not ours(name)


def test_python_functions_are_in_the_metrics_of_a_plugin_without_sidecars(
    start_spark, settings, metric, until, thread, marker
):
    def waits(batches):
        while not marker.exists():
            time.sleep(0.01)
        yield from batches

    def told(name):
        return metric(f"functions.{name}") or 0

    spark = start_spark("local[2]", **settings, **{"spark.shmring.functions": "on"})
    frame = spark.range(10_000, numPartitions=2).mapInArrow(waits, "id long")
    counting = thread(frame.count)
    until(lambda: told("workers") == 2, "workers")
    until(lambda: told("ringBytes") >= 4 * 1024 * 332, "rings")
    until(lambda: told("idleWorkers") == 0, "tasks")
    before = told("numOutputRows")  # rows of earlier sessions of this JVM
    marker.touch()
    assert counting.outcome() == 10_000
    until(lambda: told("numOutputRows") == before + 10_000, "the rows")
    until(lambda: told("idleWorkers") == 2, "the tasks' end")
    until(lambda: told("idleWorkerBytes") > 2 << 20, "the workers' memory")
    until(lambda: told("requestBytes") > 80_000 and told("workedTime") > 0, "the other counts")


def test_worker_that_has_its_next_task_is_not_idle_when_the_task_before_ends(
    start_spark, thread, until, tmp_path
):
    """A task gives its worker back as soon as the function has ended, and may then go on."""
    given, taken, go, over = (tmp_path / name for name in ("given", "taken", "go", "over"))

    def gives_back(batches):
        yield from batches
        given.write_text(str(os.getpid()))

    def goes_on(x):  # in a worker of Spark's own daemon
        while not go.exists():
            time.sleep(0.01)
        return x

    def takes(batches):
        if str(os.getpid()) == given.read_text():
            taken.touch()
            while not over.exists():
                time.sleep(0.01)
        yield from batches

    spark = start_spark("local[2]", **{"spark.shmring.functions": "on"})
    one = spark.range(1, numPartitions=1)
    rest = one.select(functions.udf(goes_on, "long", useArrow=False)("id"))
    before = thread(one.mapInArrow(gives_back, "id long").union(rest).coalesce(1).collect)
    until(given.exists, "the function's end")

    def tasks():
        while not taken.exists():
            one.mapInArrow(takes, "id long").collect()

    after = thread(tasks)
    until(taken.exists, "the same worker's next task")
    go.touch()
    before.outcome()
    gauges = JavaClass(GAUGES, spark._jvm._gateway_client).gauges()
    busy = [gauges[f"functions.{name}"].getValue() for name in ("workers", "idleWorkers")]
    over.touch()
    after.outcome()
    assert busy[0] - busy[1] == 1


def test_all_of_it_ends_with_an_executor_that_is_killed(settings, metric, name, until, tmp_path):
    (tmp_path / "json.py").write_text("raise ImportError")  # the plugin's process has Python's
    sidecar = f"env -C / {sys.executable} -m shmring sidecar functions:double --name {name}"
    settings[f"spark.shmring.sidecar.{name}.command"] = sidecar
    settings[f"spark.shmring.ring.{name}.slots"] = "1024"
    command = [sys.executable, "-P", "-c", DRIVER, jar_path(), *map("=".join, settings.items())]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, cwd=tmp_path, **pipes) as driver:
        try:
            jvm = int(driver.stdout.readline())
            until(lambda: metric(f"sidecar.{name}.workers") == 1, "the sidecar's worker")
            os.kill(jvm, signal.SIGKILL)
        finally:
            driver.kill()
    until(lambda: not ours(name), "the end of the rings")


@pytest.mark.parametrize(
    "setting", ["spark.shmring.sidecar.x.workers=1", "spark.shmring.python=/no/such/python"]
)
def test_wrong_settings_do_not_keep_spark_from_working(start_spark, sessions, name, setting):
    plugin = {"spark.plugins": PLUGIN, f"spark.shmring.ring.{name}.slots": "1000"}
    spark = start_spark("local[2]", **plugin, **dict([setting.split("=")]))
    assert spark.range(1000).count() == 1000
    sessions.stop()
    assert not ours(name)
