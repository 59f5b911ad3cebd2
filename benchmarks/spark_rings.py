"""How fast does Spark read rings, in the JVM, in Python, and beside parquet files?"""

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

__all__ = [
    *("COLUMNS", "EVERY_COLUMN", "PAYLOAD", "SHM"),
    *("read", "schema", "slots_for", "with_jar"),
]

SHM = Path("/dev/shm")
ROWS = 1_000_000
ROWS_QUICK = 200_000
# A contestant is new to the JVM until its planning, too, has been compiled.
WARM_UP_RUNS = 4
WARM_UP_SECONDS, WARM_UP_SECONDS_QUICK = 6.0, 0.0
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


def with_jar(builder: Any) -> Any:
    """Give the session the jar."""
    from shmring import ShmringError
    from shmring.spark import configure

    try:
        return configure(builder)
    except ShmringError as error:
        raise Unavailable(str(error)) from None


def _generated(session: Any, rows: int) -> Any:
    """Rows that cost little to make, and have too many values for dictionaries."""
    numbers = [f"xxhash64(id, {k}) AS {name}" for k, name in enumerate(NUMBERS[2:])]
    frame = session.range(0, rows, 1, WORKERS)
    return frame.selectExpr("id", "id * 0.25D AS price", *numbers, payload(PAYLOAD))


def schema() -> Any:
    import pyarrow as pa

    kinds = [pa.float64() if name == "price" else pa.int64() for name in NUMBERS]
    return pa.schema([*zip(NUMBERS, kinds, strict=True), ("payload", pa.binary())])


def slots_for(rows: int) -> int:
    """Slots of a ring that holds so many rows, with some room."""
    return 1 << (rows * 11 // 10).bit_length()


class _Session:
    """What both questions share: Spark with the jar, and a folder on tmpfs."""

    def __init__(self, settings: Settings) -> None:
        self.rows = ROWS_QUICK if settings.quick else ROWS
        self._warm_up_seconds = WARM_UP_SECONDS_QUICK if settings.quick else WARM_UP_SECONDS
        self._stack = contextlib.ExitStack()
        self.spark: Any = None
        self.folder = SHM
        self._warm: set[str] = set()

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Until the rounds are done."""
        find_modules_in_workers()
        with self._stack:
            self.spark = self._stack.enter_context(spark_session(with_jar))
            self.folder = Path(tempfile.mkdtemp(dir=SHM, prefix=f"{unique_name()}-"))
            self._stack.callback(shutil.rmtree, self.folder)
            self.fill()
            yield

    def fill(self) -> None:
        """Make what the rows need."""
        raise NotImplementedError

    def ring(self, rows: int) -> str:
        """A new ring for so many rows; gone when the session ends."""
        import shmring

        name = unique_name()
        slots = slots_for(rows)
        ring = shmring.create(name, slots=slots, schema=schema(), temporary=True)
        self._stack.enter_context(ring)
        return name

    def warm_up(
        self, what: str, act: Callable[[], Any], tidy: Callable[[], Any] = lambda: None
    ) -> None:
        """Run what is new for a while, for the JVM to compile it."""
        if what in self._warm:
            return
        self._warm.add(what)
        until = time.monotonic() + self._warm_up_seconds
        runs = 0
        while runs < WARM_UP_RUNS or time.monotonic() < until:
            act()
            tidy()
            runs += 1

    def sample(
        self, what: str, act: Callable[[], Any], tidy: Callable[[], Any] = lambda: None
    ) -> Sample:
        """Warm it up, and time it; what it leaves is tidied up at nobody's cost."""
        self.warm_up(what, act, tidy)
        started = time.monotonic()
        act()
        took = time.monotonic() - started
        tidy()
        return Sample(self.rows / took / 1e6, {"GB/s": self.rows * ROW_BYTES / took / 1e9})


class _Reads(_Session):
    """Two rings and a folder of parquet files with the same rows."""

    def fill(self) -> None:
        """Write the rows to all places."""
        self.parquet = str(self.folder / "rows")
        frame = _generated(self.spark, self.rows)
        frame.write.option("compression", "uncompressed").parquet(self.parquet)
        names = [self.ring(self.rows // WORKERS) for _ in range(WORKERS)]
        for k, name in enumerate(names):
            part = frame.where(f"id % {WORKERS} = {k}")
            part.write.format("shmring").option("ring", name).mode("append").save()
        self.rings = ",".join(names)
        self._answers: dict[str, Any] = {}

    def frame(self, where: str) -> Any:
        """The rows, read from there."""
        if where == "parquet":
            return self.spark.read.parquet(self.parquet)
        source, _, copy = where.partition(" ")
        reader = self.spark.read.format(source).option("ring", self.rings)
        return (reader.option("copy", copy) if copy else reader).load()

    def aggregate(self, where: str, expression: str) -> Callable[[float], Sample]:
        """A contestant; each one's answer must be that of the others."""

        def run(seconds: float) -> Sample:
            del seconds
            answers: list[Any] = []
            frame = self.frame(where).selectExpr(expression)
            sample = self.sample(where + expression, lambda: answers.append(frame.collect()[0][0]))
            if answers[0] != self._answers.setdefault(expression, answers[0]):
                raise RuntimeError(f"{where}: the rows that were read are not those of the others")
            return sample

        return run

    def udf(self, where: str) -> Callable[[float], Sample]:
        """A contestant: a vectorised function of 264 of 320 bytes, and the sum of its answers."""

        def run(seconds: float) -> Sample:
            del seconds
            import pyarrow as pa
            from pyspark.sql.functions import arrow_udf

            answers: list[Any] = []
            # Spark looks at the annotations for the kind of function.
            kinds = dict.fromkeys(("number", "payload", "return"), pa.Array)
            _id_and_length.__annotations__.update(kinds)
            function = arrow_udf(_id_and_length, returnType="long")
            frame = self.frame(where).select(function("id", "payload").alias("n"))
            frame = frame.selectExpr("sum(n)")
            sample = self.sample(f"udf {where}", lambda: answers.append(frame.collect()[0][0]))
            if answers[-1:] != [self.rows * (self.rows - 1) // 2 + self.rows * PAYLOAD]:
                raise RuntimeError(f"{where}: the function did not see the rows that it should")
            return sample

        return run


def _id_and_length(number: Any, payload: Any) -> Any:
    import pyarrow.compute as pc

    compute: Any = pc
    return compute.add(number, compute.binary_length(payload))


_PARQUET = "uncompressed parquet on tmpfs"


def _reads(job: _Reads, what: str, expression: str, over_parquet: float) -> list[Row]:
    def row(name: str, where: str, **options: Any) -> Row:
        return Row(f"{what}: {name}", "M rows/s", job.aggregate(where, expression), **options)

    parquet = f"{what}: {_PARQUET}"
    return [
        row(_PARQUET, "parquet"),
        row("ring", "shmring", targets=(Target(over_parquet, parquet),)),
        row("ring, zero-copy", "shmring false", compare=(parquet,)),
    ]


def read(settings: Settings) -> Question:
    """The same rows from rings and from files."""
    job = _Reads(settings)
    udf = "arrow_udf over parquet"
    return Question(
        "spark-read",
        f"How fast does Spark read rings? (local[{WORKERS}], {job.rows:,} rows of 320 bytes)",
        [
            *_reads(job, "all columns", EVERY_COLUMN, 1.3),
            *_reads(job, "two columns", TWO_COLUMNS, 1.5),
            Row(udf, "M rows/s", job.udf("parquet")),
            Row("arrow_udf over the ring", "M rows/s", job.udf("shmring"), compare=(udf,)),
        ],
        setup=job.open,
        least_rounds=LEAST_ROUNDS,
    )
