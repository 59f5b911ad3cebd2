"""Real-time mode, by Spark's public switches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import shmring

SCHEMA = pa.schema([("number", pa.int64())])
ROWS = 10
Start = Callable[..., Any]


@pytest.fixture
def real_time(spark: SparkSession) -> Iterator[SparkSession]:
    """A session whose batches in real time may be short, with any sink."""
    mode = "spark.sql.streaming.realTimeMode"
    settings = {f"{mode}.allowlistCheck": "false", f"{mode}.minBatchDuration": "1s"}
    for key, value in settings.items():
        spark.conf.set(key, value)
    yield spark
    for key in settings:
        spark.conf.unset(key)


class IntoRing:
    """A foreach sink, which runs in Spark's Python worker."""

    def __init__(self, path: str) -> None:
        self.path = path

    def open(self, partition: int, epoch: int) -> bool:
        import shmring

        self.ring = shmring.attach(path=self.path)
        self.producer = self.ring.producer()
        return True

    def process(self, row: Any) -> None:
        self.producer.push(b"%d" % row.number)

    def close(self, error: Exception | None) -> None:
        self.producer.close()
        self.ring.close()


@pytest.fixture
def start(name: str, real_time: SparkSession, tmp_path: Path) -> Start:
    """Starts a query from the test's ring into another one."""

    def started(out: shmring.Ring, **options: str) -> Any:
        frame = real_time.readStream.format("shmring").options(ring=name, **options).load()
        writer = frame.writeStream.foreach(IntoRing(out.path)).outputMode("update")
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        # By the JVM's writer: PySpark has this trigger from 4.2 on.
        trigger = real_time._jvm.org.apache.spark.sql.streaming.Trigger
        writer._jwrite = writer._jwrite.trigger(trigger.RealTime("1 second"))
        return writer.start()

    return started


def test_a_restarted_query_loses_no_row(name: str, start: Start) -> None:
    def write(k: int) -> None:
        numbers = pa.array(range(k * ROWS, (k + 1) * ROWS))
        writer.write(pa.record_batch([numbers], schema=SCHEMA))

    def take(query: Any, seen: set[int], count: int) -> None:
        while len(seen) < count:
            try:
                seen.add(int(consumer.pop(timeout=1)))
            except shmring.Empty:
                assert query.isActive, query.exception()

    seen: set[int] = set()
    with (
        shmring.create(name, slots=65536, schema=SCHEMA, temporary=True) as ring,
        shmring.create(f"{name}-out", slots=65536, temporary=True) as out,
        out.consumer("b", start="earliest") as consumer,
        ring.arrow_writer() as writer,
    ):
        for k in range(50):
            write(k)
        query = start(out)
        take(query, seen, 50 * ROWS)
        query.stop()
        query.awaitTermination(30)
        write(50)
        query = start(out)
        take(query, seen, 51 * ROWS)  # uncommitted rows come again
        query.stop()
        query.awaitTermination(30)
        assert seen == set(range(51 * ROWS))
