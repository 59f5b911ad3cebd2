"""How fast does a result come to the driver's Python? local[2], one session.

Both sides have Spark's best settings: a Unix socket, and no limit of bytes of a batch. The session
has a heap of 4 GB, as Spark's own way does not end with one of 1 GB; a row of its own shows that.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.harness import Question, Row, Sample, Settings, Target
from benchmarks.payload import unique_name
from benchmarks.spark_cpu import cpu_use
from benchmarks.spark_rings import SHM, with_jar
from benchmarks.spark_session import WORKERS, find_modules_in_workers, spark_session
from benchmarks.spark_unchanged import BEST, RUNS

QUICK = 10  # a part of the rows
NUMBERS, TEXTS, SOME, FEW = 2_000_000, 1_000_000, 10_000, 10  # rows
HEAP_ROWS = 13_600_000  # 1,088 MB
SWITCH = "spark.shmring.driver"

# The rows, and how many times as fast as Spark's own.
CASES = {
    "toArrow, parquet, 10 numbers": (NUMBERS, 3.5),
    "toArrow, rows made, 10 numbers": (NUMBERS, 4.5),
    "toPandas, parquet, 10 numbers": (NUMBERS, 2.8),
    "toArrow, parquet, 2 numbers and 4 texts": (TEXTS, 2.5),
    "toPandas, parquet, 2 numbers and 4 texts": (TEXTS, 1.0),
    "toPandas, 10,000 rows": (SOME, 1.0),
    "toPandas, 10 rows": (FEW, 1.0),
}

# At Spark's default heap of 1 GB, with no limit of the result's bytes.
HEAP = """
import sys
from pyspark.sql import SparkSession
from shmring.spark import configure

options = {"spark.driver.maxResultSize": "0", "spark.shmring.driver": sys.argv[1]}
options |= {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
builder = SparkSession.builder.master("local[2]").config(map=options)
spark = configure(builder, functions=False).getOrCreate()
spark.sparkContext.setLogLevel("OFF")
rows = int(sys.argv[2])
columns = [f"id * {i} c{i}" for i in range(9)]
table = spark.range(0, rows, 1, 2).selectExpr("id", *columns).toArrow()
import pyarrow.compute as pc
assert pc.sum(table["id"]).as_py() == rows * (rows - 1) // 2
assert spark.range(10).count() == 10
jvm = spark.sparkContext._gateway.proc.pid
for process in (jvm, "self"):
    print(open(f"/proc/{process}/status").read())
"""


class _Job:
    """The session and its data, while the rounds run."""

    def __init__(self, settings: Settings) -> None:
        self._part = QUICK if settings.quick else 1
        self._warm_up_runs = 1 if settings.quick else RUNS
        self._stack = contextlib.ExitStack()
        self._session: Any = None
        self._folder = ""
        self._warm: set[str] = set()
        self._cases: dict[str, Callable[[], Any]] = {}

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Until the rounds are done."""
        find_modules_in_workers()
        with self._stack:
            self._session = self._stack.enter_context(spark_session(_configured))
            self._folder = tempfile.mkdtemp(dir=SHM, prefix=f"{unique_name()}-")
            self._stack.callback(shutil.rmtree, self._folder)
            numbers, texts = f"{self._folder}/numbers", f"{self._folder}/texts"
            self._numbers(NUMBERS).write.parquet(numbers)
            self._texts().write.parquet(texts)
            read: Any = self._session.read.parquet
            self._cases = {
                "toArrow, parquet, 10 numbers": read(numbers).toArrow,
                "toArrow, rows made, 10 numbers": self._numbers(NUMBERS).toArrow,
                "toPandas, parquet, 10 numbers": read(numbers).toPandas,
                "toArrow, parquet, 2 numbers and 4 texts": read(texts).toArrow,
                "toPandas, parquet, 2 numbers and 4 texts": read(texts).toPandas,
                "toPandas, 10,000 rows": self._numbers(SOME, 1).toPandas,
                "toPandas, 10 rows": self._numbers(FEW, 1).toPandas,
            }
            yield

    def _numbers(self, rows: int, part: int | None = None) -> Any:
        """Ten numbers of four types."""
        day = "date_add(date'1992-01-01', int(id % 2500))"
        return self._session.range(0, rows // (part or self._part), 1, WORKERS).selectExpr(
            *("id orderkey", "id % 200000 partkey", "id % 10000 suppkey", "int(id % 7) line"),
            *("double(id % 50 + 1) quantity", "id * 1.25D price", "(id % 10) / 100D discount"),
            *("(id % 8) / 100D tax", f"{day} shipped", f"{day} committed"),
        )

    def _texts(self) -> Any:
        """Two numbers and four texts of about 40 bytes."""
        texts = [f"concat('{k}', id, repeat('{k}', 33)) s{k}" for k in range(4)]
        return self._session.range(0, TEXTS // self._part, 1, WORKERS).selectExpr(
            "id", "id * 1.5D v", *texts
        )

    def sample(self, case: str, switch: str, seconds: float) -> Sample:
        """Time a call, and what its processes use; it has the rows of the other side."""
        del seconds
        self._session.conf.set(SWITCH, switch)
        run = self._cases[case]
        if (name := case + switch) not in self._warm:
            self._warm.add(name)
            for _ in range(self._warm_up_runs):
                run()
        java: int = self._session.sparkContext._gateway.proc.pid
        pa.default_memory_pool().release_unused()
        for process in (java, os.getpid()):
            Path(f"/proc/{process}/clear_refs").write_text("5")  # forget the peak
        had, in_files = _megabytes("VmRSS"), _memory_files()
        before, own, started = cpu_use(), time.process_time(), time.monotonic()
        result = run()
        took = time.monotonic() - started
        used = cpu_use().since(before)[""] + time.process_time() - own
        rows = CASES[case][0] // (self._part if case not in list(CASES)[-2:] else 1)
        if len(result) != rows:
            raise RuntimeError(f"{case}: {len(result)} rows instead of {rows}")
        also = {"CPU s/M rows": used / rows * 1e6}
        also["peak MB of the JVM"] = _megabytes("VmHWM", java)
        # Pages of memory files count also if Python has not looked at them yet.
        unseen = _memory_files() - in_files - _megabytes("RssShmem")
        also["more MB of Python at the peak"] = _megabytes("VmHWM") - had + max(0, unseen)
        return Sample(rows / took / 1e6, also)


def _megabytes(key: str, process: int | str = "self") -> float:
    """A size in the status of a process."""
    return _size(Path(f"/proc/{process}/status").read_text(), key)


def _memory_files() -> float:
    """MB of the host's memory files, and of all else that is in shared memory."""
    return _size(Path("/proc/meminfo").read_text(), "Shmem")


def _size(text: str, key: str) -> float:
    return int(text.partition(f"{key}:")[2].split()[0]) / 1024


def _configured(builder: Any) -> Any:
    return with_jar(builder).config(map=BEST)


def _heap(rows: int, switch: str, seconds: float) -> Sample:
    """Whether a result of 1,088 MB comes with a heap of 1 GB: 1 or 0."""
    del seconds
    command = [sys.executable, "-c", HEAP, switch, str(rows)]
    try:
        done = subprocess.run(command, capture_output=True, check=True, text=True, timeout=600)
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError):
        return Sample(0.0)
    java, python = (_size(status, "VmHWM") for status in done.stdout.split("Name:")[1:])
    return Sample(1.0, {"peak MB of the JVM": java, "peak MB of Python": python})


def question(settings: Settings) -> Question:
    """The same results, over the socket and through memory."""
    job = _Job(settings)
    rows: list[Row] = []
    for case, (_, wanted) in CASES.items():
        own, ours = f"{case}: Spark's own", f"{case}: memory"
        rows += [
            Row(own, "M rows/s", partial(job.sample, case, "off")),
            Row(ours, "M rows/s", partial(job.sample, case, "on"), (Target(wanted, own),)),
        ]
    for switch, name, targets in (("off", "Spark's own", ()), ("on", "memory", (Target(1.0),))):
        size = HEAP_ROWS // (QUICK if settings.quick else 1)
        title = f"1,088 MB of result, 1 GB of heap: {name}"
        rows.append(Row(title, "right", partial(_heap, size, switch), targets, rounds=1))
    return Question(
        "driver",
        f"How fast does a result come to the driver's Python? (local[{WORKERS}])",
        rows,
        setup=job.open,
        least_rounds=RUNS,
    )
