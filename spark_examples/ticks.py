"""A feed handler, a ring, a windowed aggregate in Structured Streaming, a ring, a reader.

    python spark_examples/ticks.py

Three processes and Spark: `ticks.py feed RING` pushes ticks as they come, Spark's stream sums them
up by windows inside the executor, `ticks.py read RING COUNT` prints the windows.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import pyarrow as pa

import shmring
from shmring.spark import configure

MICROS = pa.timestamp("us", "UTC")
TICKS = pa.schema([("time", MICROS), ("symbol", pa.string()), ("price", pa.float64())])
WINDOWS = pa.schema(
    [("time", MICROS), ("symbol", pa.string()), ("ticks", pa.int64()), ("price", pa.float64())]
)

SYMBOLS = ["AAPL", "IBM", "ORCL", "SAP"]
BEGIN = 1_700_000_000  # time of the first tick, seconds since 1970: a whole number of windows
SECONDS = 60  # duration of the ticks
PER_SECOND = 1000
WINDOW = 5  # seconds


def ticks(first: int, count: int) -> pa.RecordBatch:
    """Some ticks of the feed; what a real handler gets from its socket."""
    numbers = range(first, first + count)
    return pa.record_batch(
        [
            pa.array([BEGIN * 1_000_000 + i * 1_000_000 // PER_SECOND for i in numbers], MICROS),
            pa.array([SYMBOLS[i % len(SYMBOLS)] for i in numbers]),
            pa.array([100.0 + i % 7 for i in numbers]),
        ],
        schema=TICKS,
    )


def feed(ring: str) -> None:
    """The feed handler. It waits while the ring is full; a handler that must not says timeout=0."""
    with shmring.attach(ring).arrow_writer() as out:
        for first in range(0, SECONDS * PER_SECOND, 100):
            out.write(ticks(first, 100))
        # Windows are closed by the time that comes after them.
        out.write(ticks(2 * SECONDS * PER_SECOND, 1))


def read(ring: str, count: int) -> None:
    """The reader: prints so many windows."""
    with shmring.attach(ring).arrow_reader("reader", timeout=600) as windows:
        rows = (row for batch in windows for row in batch.to_pylist())
        for _, row in zip(range(count), rows, strict=False):
            print(f"{row['time']:%H:%M:%S} {row['symbol']:5} {row['ticks']:5} {row['price']:8.2f}")


def main() -> int:
    """Run all of it; 1 if a window is missing or wrong."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as f

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("ticks")
    builder = builder.config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.shuffle.partitions", "2")
    spark = configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    windows = SECONDS // WINDOW * len(SYMBOLS)
    names = [f"ticks-{os.getpid()}", f"windows-{os.getpid()}"]
    with (
        shmring.create(names[0], slots=8192, schema=TICKS, temporary=True) as source,
        shmring.create(names[1], slots=8192, schema=WINDOWS, temporary=True) as target,
        tempfile.TemporaryDirectory() as checkpoint,
    ):
        source.subscribe("spark", exclusive=True)  # from here on nothing is lost
        target.subscribe("reader")
        stream = spark.readStream.format("shmring").option("ring", names[0])
        query = (
            stream.option("branch", "spark")
            .load()
            .withWatermark("time", "1 second")
            .groupBy(f.window("time", f"{WINDOW} seconds"), "symbol")
            .agg(f.count("*").alias("ticks"), f.avg("price").alias("price"))
            .select(f.col("window.start").alias("time"), "symbol", "ticks", "price")
            .writeStream.format("shmring")
            .option("ring", names[1])
            .option("checkpointLocation", checkpoint)
            .outputMode("append")
            .start()
        )
        feeder = _start("feed", names[0])
        reader = _start("read", names[1], str(windows))
        printed, _ = reader.communicate()
        feeder.wait()
        query.stop()
        _remove_record(target, str(query.id))
    spark.stop()
    lines = sorted(printed.splitlines())
    print("\n".join(lines))
    right = len(lines) == windows and lines == sorted(expected())
    print(f"{len(lines)} windows, {'as they should be' if right else 'WRONG'}")
    return 0 if right else 1


def _start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, os.path.abspath(__file__), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _remove_record(ring: shmring.Ring, query: str) -> None:
    """Remove the ring's record of the query: it outlives both, and the query ends for good."""
    folder, file = os.path.split(ring.path)
    os.unlink(os.path.join(folder, f".shmring-sink-{file}-{query}"))


def expected() -> Iterator[str]:
    """The windows, without Spark."""
    per_window = WINDOW * PER_SECOND
    for first in range(0, SECONDS * PER_SECOND, per_window):
        for i, symbol in enumerate(SYMBOLS):
            prices = [100.0 + n % 7 for n in range(first + i, first + per_window, len(SYMBOLS))]
            time = pa.scalar((BEGIN + first // PER_SECOND) * 1_000_000, MICROS).as_py()
            mean = sum(prices) / len(prices)
            yield f"{time:%H:%M:%S} {symbol:5} {len(prices):5} {mean:8.2f}"


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["feed", ring]:
            feed(ring)
        case ["read", ring, count]:
            read(ring, int(count))
        case _:
            sys.exit(main())
