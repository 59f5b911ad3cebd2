"""The plugin in a Spark of its own: metrics, the end of the executor, settings that are wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

import shmring
from shmring.spark import jar_path

pytestmark = pytest.mark.spark

PLUGIN = "io.shmring.spark.ShmringPlugin"
DRIVER = """
import sys
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[2]")
builder.config("spark.driver.extraClassPath", sys.argv[1])
builder.config("spark.plugins", sys.argv[2])
for setting in sys.argv[3:]:
    builder.config(*setting.split("=", 1))
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("OFF")
print(spark._jvm.ProcessHandle.current().pid(), spark.range(1000).count(), flush=True)
sys.stdin.readline()
spark.stop()
"""


class Driver:
    def __init__(self, metrics, *settings):
        self._metrics = metrics
        sink = {"class": "org.apache.spark.metrics.sink.CsvSink", "period": 1, "directory": metrics}
        settings += tuple(f"spark.metrics.conf.*.sink.csv.{k}={v}" for k, v in sink.items())
        self.process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, jar_path(), PLUGIN, *settings],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        jvm, count = self.process.stdout.readline().split()
        assert count == "1000"
        self.jvm = int(jvm)

    def metric(self, name):
        """What Spark's metrics system has reported last; None before that."""
        for file in self._metrics.glob(f"*plugin.io.shmring.spark.ShmringPlugin.{name}.csv"):
            if (lines := file.read_text().splitlines())[1:]:
                return int(lines[-1].split(",")[1])
        return None

    def close(self):
        if self.process.poll() is None:
            try:
                self.process.communicate("\n", timeout=600)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            stream.close()


@pytest.fixture
def driver(tmp_path):
    started = []

    def start(*settings):
        started.append(Driver(tmp_path, *settings))
        return started[-1]

    yield start
    for each in started:
        each.close()


def ours(name):
    return [ring for ring in shmring.rings() if name in ring]


def test_sidecars_and_rings_are_beside_the_executor_and_in_its_metrics(driver, name, until):
    sidecar = f"spark.shmring.sidecar.{name}"
    spark = driver(
        f"{sidecar}.function=functions:double",
        f"{sidecar}.workers=2",
        f"spark.shmring.ring.{name}.slots=2048",
    )
    until(lambda: spark.metric(f"sidecar.{name}.workers") == 2, "the sidecar's workers")
    assert spark.metric(f"sidecar.{name}.running") == 1
    with shmring.attach(name) as ring:
        assert ring.slots == 2048
        ring.subscribe("b")
        with ring.producer() as out:
            for _ in range(10):
                out.push(b"message")
    until(lambda: spark.metric(f"ring.{name}.usedSlots") == 10, "the ring's metric")
    spark.close()
    assert spark.process.returncode == 0
    assert not ours(name)


def test_all_of_it_ends_with_an_executor_that_is_killed(driver, name, until):
    spark = driver(
        f"spark.shmring.sidecar.{name}.command={sys.executable} -m shmring sidecar "
        f"functions:double --name {name}",
        f"spark.shmring.ring.{name}.slots=1024",
    )
    until(lambda: spark.metric(f"sidecar.{name}.workers") == 1, "the sidecar's worker")
    os.kill(spark.jvm, signal.SIGKILL)
    spark.process.kill()
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
