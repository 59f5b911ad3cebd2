"""How fast does Structured Streaming follow a ring, in micro-batches and in real-time mode?"""

from __future__ import annotations

import contextlib
import datetime
import importlib.util
import math
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness import Question, Row, Sample, Settings, Target, Unavailable
from benchmarks.payload import rows as messages
from benchmarks.payload import unique_name
from benchmarks.peers import feeds
from benchmarks.processes import Role, run_together
from benchmarks.spark_rings import COLUMNS, PAYLOAD, schema, with_jar
from benchmarks.spark_session import WORKERS, find_modules_in_workers, spark_session

__all__ = ["question"]

SINK = Path(__file__).resolve().parent / "peers" / "LatencySink.java"

SLOTS = 1 << 20  # a micro-batch takes a quarter at most
BATCH_ROWS = 1_000
RATE = 1_000_000
SECONDS, SECONDS_QUICK = 5.0, 2.0

# Real-time batches last 5 s, and are committed one later.
REAL_TIME_RATE = 20_000
REAL_TIME_SECONDS = 12.0
REAL_TIME_SLOTS = 1 << 19


class _Job:
    """The session, and what a query needs."""

    def __init__(self, settings: Settings) -> None:
        self._seconds = SECONDS_QUICK if settings.quick else SECONDS
        self._spark: Any = None
        self._folder = Path()

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Compile the sink, start Spark."""
        find_modules_in_workers()
        with tempfile.TemporaryDirectory(prefix=unique_name()) as folder:
            self._folder = Path(folder)
            with spark_session(self._configure) as self._spark:
                # Each query that is stopped logs errors; ours come as exceptions.
                self._spark.sparkContext.setLogLevel("OFF")
                yield

    def _configure(self, builder: Any) -> Any:
        if shutil.which("javac"):
            spec = importlib.util.find_spec("pyspark")
            assert spec is not None
            assert spec.origin is not None
            jars = Path(spec.origin).parent / "jars" / "*"
            command = ["javac", "-proc:none", "-cp", str(jars), "-d", str(self._folder), str(SINK)]
            subprocess.run(command, check=True)
        builder = builder.config("spark.sql.streaming.numRecentProgressUpdates", "1000")
        return with_jar(builder).config("spark.driver.extraClassPath", str(self._folder))

    @contextlib.contextmanager
    def _query(self, writer: Any, start: Callable[[Any], Any]) -> Iterator[Any]:
        with tempfile.TemporaryDirectory(dir=self._folder) as checkpoint:
            query = start(writer.option("checkpointLocation", checkpoint))
            try:
                yield query
            finally:
                query.stop()

    def micro_batches(self, rate: float) -> Callable[[float], Sample]:
        """A contestant: a producer at that rate, every byte read, each row counted."""

        def run(seconds: float) -> Sample:
            del seconds
            import shmring

            name = unique_name()
            with shmring.create(name, slots=SLOTS, schema=schema(), temporary=True):
                stream = self._spark.readStream.format("shmring").option("ring", name).load()
                hashes = stream.selectExpr(f"xxhash64({', '.join(COLUMNS)}) AS hash")
                writer = hashes.writeStream.format("noop")
                with self._query(writer, lambda writer: writer.start()) as query:
                    return self._follow(query, name, rate)

        return run

    def _follow(self, query: Any, name: str, rate: float) -> Sample:
        role = Role(feeds.feed_batches, (name, _columns(), self._seconds, rate))
        [rows] = run_together([role], timeout=self._seconds + 120)
        query.processAllAvailable()
        progress = [p for p in query.recentProgress if p["numInputRows"]]
        found = sum(p["numInputRows"] for p in progress)
        if found != rows:
            raise RuntimeError(f"{found} of {rows} rows came through the stream")
        late = progress[len(progress) // 2 :]
        if len(late) < 2:
            raise RuntimeError(f"{len(progress)} batches are too few to speak of a rate")
        took = (_started(late[-1]) - _started(late[0])).total_seconds()
        rate = sum(p["numInputRows"] for p in late[:-1]) / took
        lag = max(int(p["sources"][0]["metrics"]["lagSlots"]) for p in late)
        batch = max(p["numInputRows"] for p in late)
        also = {"ring full at most %": 100 * lag / SLOTS, "rows a batch at most": batch}
        return Sample(rate / 1e6, also)

    def real_time(self, seconds: float) -> Sample:
        """A producer of single messages, and a sink in the JVM."""
        del seconds
        import shmring

        if not shutil.which("javac"):
            raise Unavailable("needs javac (openjdk-17-jdk-headless)")
        self._spark.conf.set("spark.sql.streaming.realTimeMode.allowlistCheck", "false")
        jvm = self._spark._jvm
        name = unique_name()
        with shmring.create(name, slots=REAL_TIME_SLOTS, temporary=True):
            stream = self._spark.readStream.format("shmring").option("ring", name).load()
            writer = stream.select("message").writeStream.outputMode("update")
            try:
                writer = writer.trigger(realTime="5 seconds")
            except TypeError as error:
                raise Unavailable(f"real-time mode is in Spark 4.1 and later: {error}") from None
            jvm.LatencySink.clear()

            def start(writer: Any) -> Any:
                return writer._jwrite.foreach(jvm.LatencySink()).start()

            with self._query(writer, start):
                role = Role(feeds.feed_times, (name, REAL_TIME_SECONDS, REAL_TIME_RATE))
                [sent] = run_together([role], timeout=REAL_TIME_SECONDS + 120)
                deadline = time.monotonic() + 30
                while jvm.LatencySink.count() < sent:
                    if time.monotonic() > deadline:
                        count = jvm.LatencySink.count()
                        raise RuntimeError(f"{count} of {sent} messages came to the sink")
                    time.sleep(0.1)
            middle, p99 = (jvm.LatencySink.quantile(sent // 2, q) / 1e3 for q in (0.5, 0.99))
            return Sample(middle, {"us p99": p99})


def _started(progress: Any) -> datetime.datetime:
    return datetime.datetime.fromisoformat(progress["timestamp"])


def _columns() -> dict[str, Any]:
    numbers: dict[str, Any] = {name: range(BATCH_ROWS) for name in COLUMNS[:-1]}
    return {**numbers, "payload": [row.tobytes()[:PAYLOAD] for row in messages(BATCH_ROWS)]}


def question(settings: Settings) -> Question:
    """A ring that is filled while Spark reads it."""
    job = _Job(settings)
    return Question(
        "spark-stream",
        f"How fast does Structured Streaming follow a ring? (local[{WORKERS}])",
        [
            Row(
                "micro-batches, a producer that is as fast as it can be",
                "M rows/s",
                job.micro_batches(math.inf),
                (Target(1.0),),
                rounds=3,
            ),
            Row(
                "micro-batches, a producer of 1 M rows/s",
                "M rows/s",
                job.micro_batches(RATE),
                rounds=3,
            ),
            Row(
                "real-time mode, 20,000 messages/s: latency",
                "us",
                job.real_time,
                (Target(150.0),),
                lower_is_better=True,
                rounds=1,
            ),
        ],
        setup=job.open,
    )
