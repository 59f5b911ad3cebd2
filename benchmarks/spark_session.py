"""A Spark session for one question: local[2], whose JVM is gone afterwards."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import random
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness import Unavailable

WORKERS = 2
# Settings of every session, however it is started.
SESSION = {
    "spark.master": f"local[{WORKERS}]",
    "spark.app.name": "shmring benchmarks",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.warehouse.dir": "/nonexistent",
    # For thousands of queries: at Spark's defaults, what it keeps of them fills the heap of 1 GB,
    # and a query of small batches then takes twice the CPU.
    "spark.driver.memory": "4g",
    "spark.sql.ui.retainedExecutions": "50",
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
}
_NOISE = 50_000  # bytes, of which the payloads are pieces: too many values for dictionaries


def payload(nbytes: int) -> str:
    """SQL of a column with so many bytes in each row, which cost little to make."""
    noise = f"unhex('{random.Random(1).randbytes(_NOISE + nbytes).hex()}')"
    return f"substring({noise}, pmod(id * 97, {_NOISE}), {nbytes}) AS payload"


def find_modules_in_workers() -> None:
    """Let Spark's Python workers and sidecars import what this process imports."""
    paths = [str(Path(__file__).resolve().parent.parent)]
    spec = importlib.util.find_spec("shmring")
    if spec and spec.origin:
        paths.append(str(Path(spec.origin).parent.parent))
    paths += filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable


@contextlib.contextmanager
def spark_session(configure: Callable[[Any], Any] = lambda builder: builder) -> Iterator[Any]:
    """A session of its own.

    Parameters
    ----------
    configure : adds to the builder what the question needs
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from pyspark import SparkContext
            from pyspark.sql import SparkSession
    except ImportError as error:
        raise Unavailable(f"not installed here: {error}") from None
    builder = SparkSession.builder
    for option, value in SESSION.items():
        builder = builder.config(option, value)
    try:
        session = configure(builder).getOrCreate()
    except Exception as error:
        raise Unavailable(f"Spark does not start (is there a Java 17?): {error}") from None
    session.sparkContext.setLogLevel("ERROR")
    try:
        yield session
    finally:
        session.stop()
        gateway: Any = SparkContext._gateway
        if gateway is not None:
            SparkContext._gateway = SparkContext._jvm = None
            gateway.shutdown()
            gateway.proc.stdin.close()  # tells the JVM to exit
            try:
                gateway.proc.wait(10)
            except subprocess.TimeoutExpired:
                gateway.proc.kill()
