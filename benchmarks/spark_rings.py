"""How fast does Spark read rings, beside parquet files?"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness import Question, Row, Sample, Settings, Target, Unavailable
from benchmarks.payload import unique_name
from benchmarks.spark_session import WORKERS, find_modules_in_workers, payload, spark_session

SHM = Path("/dev/shm")
ROWS = 1_000_000
ROWS_QUICK = 200_000
# A contestant is new to the JVM until its planning, too, has been compiled.
WARM_UP_RUNS = 4
WARM_UP_SECONDS = 6.0
LEAST_ROUNDS = 7  # the JVM warms up slowly and has its own noise

# 8 numbers of 8 bytes and a payload make a row.
PAYLOAD = 256
ROW_BYTES = 8 * 8 + PAYLOAD
NUMBERS = ["id", "price", "a", "b", "c", "d", "e", "f"]
COLUMNS = [*NUMBERS, "payload"]

# Reads every byte; the same rows in another order have the same sum.
EVERY_COLUMN = f"bit_xor(xxhash64({', '.join(COLUMNS)}))"
# Quarters, so that the sum does not depend on the order.
TWO_COLUMNS = "sum(id) + sum(price)"


def with_jar(builder: Any, **options: Any) -> Any:
    """Give the session the jar."""
    from shmring import ShmringError
    from shmring.spark import configure

    try:
        return configure(builder, **options)
    except ShmringError as error:
        raise Unavailable(str(error)) from None


def _generated(session: Any, rows: int) -> Any:
    """Rows that cost little to make, and have too many values for dictionaries."""
    numbers = [f"xxhash64(id, {k}) AS {name}" for k, name in enumerate(NUMBERS[2:])]
    frame = session.range(0, rows, 1, WORKERS)
    return frame.selectExpr("id", "id * 0.25D AS price", *numbers, payload(PAYLOAD))


class _Job:
    """Spark with the jar; two rings and a folder of parquet files with the same rows."""

    def __init__(self, rows: int, warm_up_seconds: float) -> None:
        self.rows = rows
        self._warm_up_seconds = warm_up_seconds
        self._warm: set[str] = set()
        self._answers: dict[str, Any] = {}

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Write the rows to both places; all of it goes when the rounds are done."""
        import pyarrow as pa

        import shmring

        find_modules_in_workers()
        kinds = [pa.float64() if name == "price" else pa.int64() for name in NUMBERS]
        schema = pa.schema([*zip(NUMBERS, kinds, strict=True), ("payload", pa.binary())])
        slots = 1 << (self.rows // WORKERS * 11 // 10).bit_length()  # with some room
        with contextlib.ExitStack() as stack:
            self._spark = stack.enter_context(spark_session(with_jar))
            folder = tempfile.mkdtemp(dir=SHM, prefix=f"{unique_name()}-")
            stack.callback(shutil.rmtree, folder)
            self._parquet = f"{folder}/rows"
            frame = _generated(self._spark, self.rows)
            frame.write.option("compression", "uncompressed").parquet(self._parquet)
            names = [unique_name() for _ in range(WORKERS)]
            for k, name in enumerate(names):
                ring = shmring.create(name, slots=slots, schema=schema, temporary=True)
                stack.enter_context(ring)
                part = frame.where(f"id % {WORKERS} = {k}")
                part.write.format("shmring").option("ring", name).mode("append").save()
            self._rings = ",".join(names)
            yield

    def _frame(self, where: str) -> Any:
        if where == "parquet":
            return self._spark.read.parquet(self._parquet)
        return self._spark.read.format("shmring").option("ring", self._rings).load()

    def _warm_up(self, frame: Any) -> None:
        until = time.monotonic() + self._warm_up_seconds
        runs = 0
        while runs < WARM_UP_RUNS or time.monotonic() < until:
            frame.collect()
            runs += 1

    def aggregate(self, where: str, expression: str) -> Callable[[float], Sample]:
        """A contestant; each one's answer must be that of the others."""

        def run(seconds: float) -> Sample:
            del seconds
            frame = self._frame(where).selectExpr(expression)
            if where + expression not in self._warm:
                self._warm_up(frame)
                self._warm.add(where + expression)
            started = time.monotonic()
            answer = frame.collect()[0][0]
            took = time.monotonic() - started
            if answer != self._answers.setdefault(expression, answer):
                raise RuntimeError(f"{where}: the rows that were read are not those of the others")
            return Sample(self.rows / took / 1e6, {"GB/s": self.rows * ROW_BYTES / took / 1e9})

        return run


def question(settings: Settings) -> Question:
    """The same rows from rings and from files."""
    job = _Job(ROWS_QUICK, 0.0) if settings.quick else _Job(ROWS, WARM_UP_SECONDS)
    rows: list[Row] = []
    for what, expression, wanted in (
        ("all columns", EVERY_COLUMN, 1.3),
        ("two columns", TWO_COLUMNS, 1.5),
    ):
        parquet = f"{what}: uncompressed parquet on tmpfs"
        ring = job.aggregate("ring", expression)
        rows += [
            Row(parquet, "M rows/s", job.aggregate("parquet", expression)),
            Row(f"{what}: ring", "M rows/s", ring, (Target(wanted, parquet),)),
        ]
    return Question(
        "spark-read",
        f"How fast does Spark read rings? (local[{WORKERS}], {job.rows:,} rows of 320 bytes)",
        rows,
        setup=job.open,
        least_rounds=LEAST_ROUNDS,
    )
