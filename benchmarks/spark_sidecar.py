"""What does a sidecar cost a Spark job? local[2], 300-byte rows, one session.

Spark's own functions run at Spark's best settings: its Python workers talk to the JVM over Unix
sockets, and no limit of bytes makes its Arrow writer ask for the size of the batch after every row.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.harness import Question, Row, Sample, Settings, Target
from benchmarks.payload import MESSAGE_BYTES, unique_name
from benchmarks.spark_cpu import cpu_use
from benchmarks.spark_rings import SHM, with_jar
from benchmarks.spark_session import WORKERS, find_modules_in_workers, payload, spark_session

IDENTITY = "identity mapInArrow, no sidecar"
AT_DEFAULT = f"{IDENTITY}, at Spark's default maxBytesPerBatch"
OVER_RINGS = f"{IDENTITY}, over rings"
SOCKET = "identity sidecar over a Unix socket"
THROUGH = "identity sidecar through the ring, by Python workers"
DIRECT = "identity sidecar through the ring, straight from the JVM"
OVER_PARQUET = "over parquet: identity mapInArrow, no sidecar"
OVER_NUMBERS = "over parquet of ten numbers: identity mapInArrow, no sidecar"
UDF = "arrow_udf of two columns of ten over parquet, no sidecar"

# The JVM warms up slowly and has its own noise.
LEAST_ROUNDS = 7
WARM_UP_SECONDS = 20.0  # before a row's first sample: code that runs once a batch is compiled late
ROWS = 1_000_000
ROWS_QUICK = 200_000
BATCH = 10_000  # rows, where nobody says how many
SPARKS_BATCH_OF_NUMBERS = 64_000  # with which its own function is fastest
NO_LIMIT = 2**31 - 1  # bytes of a batch
DEFAULT_LIMIT = 64 << 20

PAYLOAD = MESSAGE_BYTES - 8
OTHERS = 7  # columns that no function takes
NUMBER_COLUMNS = 10
NUMBER_BYTES = 8 * NUMBER_COLUMNS


class _Job:
    """The session, the data, and the sidecars, while the rounds run."""

    def __init__(self, rows: int, warm_up_seconds: float) -> None:
        self._rows = rows
        self._warm_up_seconds = warm_up_seconds
        self._warm: set[str] = set()
        self._session: Any = None
        self._data: dict[str, Any] = {}
        self._stack = contextlib.ExitStack()
        self._functions: dict[str, Any] = {}

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Start Spark; the sidecars start with their first run."""
        find_modules_in_workers()
        with self._stack:
            self._session = self._stack.enter_context(spark_session(_configured))
            same = f"unhex('{'5a' * PAYLOAD}') AS payload"
            self._data["rows"] = self._numbers().selectExpr("id", same)
            self._add_columns()
            yield

    def _numbers(self) -> Any:
        return self._session.range(0, self._rows, 1, WORKERS)

    def _add_columns(self) -> None:
        """The rows once more, in places from where Spark has them as columns."""
        others = [f"xxhash64(id, {k}) AS c{k}" for k in range(OTHERS)]
        frame = self._numbers().selectExpr("id", "2 * id AS twice", *others, payload(PAYLOAD))
        folder = tempfile.mkdtemp(dir=SHM, prefix=f"{unique_name()}-")
        self._stack.callback(shutil.rmtree, folder)
        frame.write.option("compression", "uncompressed").parquet(f"{folder}/wide")
        self._data["wide parquet"] = self._session.read.parquet(f"{folder}/wide")
        names = [f"{k} * id AS n{k}" for k in range(1, NUMBER_COLUMNS)]
        numbers = self._numbers().selectExpr("id", *names)
        numbers.write.option("compression", "uncompressed").parquet(f"{folder}/numbers")
        self._data["number parquet"] = self._session.read.parquet(f"{folder}/numbers")
        narrow = frame.select("id", "payload")
        narrow.write.option("compression", "uncompressed").parquet(f"{folder}/narrow")
        self._data["parquet"] = self._session.read.parquet(f"{folder}/narrow")

    def _made(
        self,
        name: str,
        make: Callable[[], Any],
        apply: Callable[[Any], Any],
        *wanted: tuple[str, int],
    ) -> Any:
        """The function that `make` makes; it is made, and its totals are checked, once."""
        if name not in self._functions:
            function = make()
            totals = tuple(apply(function).selectExpr(*(text for text, _ in wanted)).first())
            if totals != tuple(value for _, value in wanted):
                raise RuntimeError(f"{name}: the rows that came back are not those that were sent")
            self._functions[name] = function
        return self._functions[name]

    def _time(
        self,
        name: str,
        data: Any,
        row_bytes: int,
    ) -> Sample:
        def run() -> None:
            data.write.format("noop").mode("overwrite").save()

        until = time.monotonic() + self._warm_up_seconds
        while name not in self._warm and time.monotonic() < until:
            run()
        self._warm.add(name)
        before, started = cpu_use(), time.monotonic()
        run()
        took, used = time.monotonic() - started, cpu_use().since(before)
        size = self._rows * row_bytes / 1e9
        a_gigabyte = {kind or "CPU s/GB": seconds / size for kind, seconds in used.items()}
        return Sample(size / took, {"M rows/s": self._rows / took / 1e6, **a_gigabyte})

    def _configure(self, **options: Any) -> None:
        for name, value in _settings(**options).items():
            self._session.conf.set(name, value)

    def _row_bytes(self, data: str) -> int:
        return NUMBER_BYTES if "number" in data else MESSAGE_BYTES

    def nothing(self, data: str) -> Callable[[float], Sample]:
        """A contestant: the rows without Python."""

        def run(seconds: float) -> Sample:
            del seconds
            return self._time(data, self._data[data], self._row_bytes(data))

        return run

    def mapped(
        self,
        name: str,
        make: Callable[[_Job], Callable[..., Any]],
        data: str = "rows",
        **options: Any,
    ) -> Callable[[float], Sample]:
        """A contestant: the rows through what `make` makes, with the options of `_settings()`."""
        rows = self._rows
        numbers = "number" in data

        def apply(function: Callable[..., Any]) -> Any:
            return self._data[data].mapInArrow(function, self._data[data].schema)

        def run(seconds: float) -> Sample:
            del seconds
            self._configure(**options)
            totals = (
                ("count(*)", rows),
                ("sum(id)", rows * (rows - 1) // 2),
                ("sum(n9)", 9 * rows * (rows - 1) // 2)
                if numbers
                else ("sum(length(payload))", rows * PAYLOAD),
            )
            made = apply(self._made(name, lambda: make(self), apply, *totals))
            return self._time(name, made, self._row_bytes(data))

        return run

    def udf(
        self, name: str, make: Callable[[_Job], Any], *, direct: bool = False
    ) -> Callable[[float], Sample]:
        """A contestant: the columns, and beside them a UDF of two of them."""

        def apply(function: Any) -> Any:
            return self._data["wide parquet"].withColumn("sum", function("id", "twice"))

        def run(seconds: float) -> Sample:
            del seconds
            self._configure(direct=direct)
            total = ("sum(sum)", 3 * self._rows * (self._rows - 1) // 2)
            function = self._made(name, lambda: make(self), apply, total)
            return self._time(name, apply(function), 8 * (2 + OTHERS) + PAYLOAD)

        return run

    def enter(self, context: contextlib.AbstractContextManager[Any]) -> Any:
        """Keep a sidecar until the session ends."""
        return self._stack.enter_context(context)


def _settings(
    *, direct: bool = False, functions: str = "off", batch: int = BATCH, limit: int = NO_LIMIT
) -> dict[str, str]:
    return {
        "spark.shmring.direct": str(direct).lower(),
        "spark.shmring.functions": functions,
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(batch),
        "spark.sql.execution.arrow.maxBytesPerBatch": str(limit),
    }


def _configured(builder: Any) -> Any:
    return with_jar(builder, functions=False).config(
        "spark.python.unix.domain.socket.enabled", "true"
    )


def _identity(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


def _by_socket(job: _Job) -> Callable[..., Any]:
    from benchmarks.socket_sidecar import SocketClient, identity, serve

    return SocketClient(job.enter(serve(identity, workers=WORKERS)))


def _sidecar(job: _Job, function: str) -> str:
    from shmring.sidecars import Sidecar

    name = unique_name()
    job.enter(Sidecar(function, name=name, workers=WORKERS))
    return name


def _by_ring(job: _Job) -> Callable[..., Any]:
    import shmring.spark

    return shmring.spark.through(_sidecar(job, "benchmarks.socket_sidecar:identity"))


def added(batch: Any) -> Any:
    """Adds two columns: the function that the sidecar serves."""
    import pyarrow as pa

    return pa.record_batch([_added(*batch.columns)], names=["sum"])


def _added(one: Any, other: Any) -> Any:
    import pyarrow.compute as pc

    compute: Any = pc
    return compute.add(one, other)


def _udf_of_ring(job: _Job) -> Any:
    import shmring.spark

    return shmring.spark.arrow_udf(_sidecar(job, "benchmarks.spark_sidecar:added"), "long")


def _udf() -> Any:
    import pyarrow as pa
    from pyspark.sql.functions import arrow_udf

    # Spark looks at the annotations for the kind of function.
    _added.__annotations__.update(dict.fromkeys(("one", "other", "return"), pa.Array))
    return arrow_udf(_added, returnType="long")


def _over_parquet(job: _Job) -> list[Row]:
    rows: list[Row] = []
    for data, spark, wanted in (
        ("parquet", OVER_PARQUET, 2.5),
        ("number parquet", OVER_NUMBERS, 2.0),
    ):
        where, _, _ = spark.partition(":")
        ours = f"{where}: identity sidecar, straight from the JVM"
        batch = SPARKS_BATCH_OF_NUMBERS if "number" in data else BATCH
        direct = job.mapped(ours, _by_ring, data, direct=True)
        rows += [
            Row(f"{where}: rows without Python", "GB/s", job.nothing(data)),
            Row(spark, "GB/s", job.mapped(spark, lambda _: _identity, data, batch=batch)),
            Row(ours, "GB/s", direct, (Target(wanted, spark),)),
        ]
    ours = UDF.replace("no sidecar", "by a sidecar straight from the JVM")
    udf = job.udf(ours, _udf_of_ring, direct=True)
    return [
        *rows,
        Row(UDF, "GB/s", job.udf(UDF, lambda _: _udf())),
        Row(ours, "GB/s", udf, (Target(2.0, UDF),)),
    ]


def question(settings: Settings) -> Question:
    """The same rows through nothing, Python, rings, and two kinds of sidecar."""
    job = _Job(ROWS_QUICK, 0.0) if settings.quick else _Job(ROWS, WARM_UP_SECONDS)
    return Question(
        "spark",
        "What does a sidecar cost a Spark job? (local[2], rows of 300 bytes)",
        [
            Row("rows without Python", "GB/s", job.nothing("rows")),
            Row(IDENTITY, "GB/s", job.mapped(IDENTITY, lambda _: _identity)),
            Row(
                AT_DEFAULT,
                "GB/s",
                job.mapped(AT_DEFAULT, lambda _: _identity, limit=DEFAULT_LIMIT),
                compare=(IDENTITY,),
            ),
            Row(
                OVER_RINGS,
                "GB/s",
                job.mapped(OVER_RINGS, lambda _: _identity, direct=True, functions="on"),
                compare=(IDENTITY,),
            ),
            Row(
                THROUGH,
                "GB/s",
                job.mapped(THROUGH, _by_ring),
                (Target(0.95, IDENTITY), Target(1.0, SOCKET)),
            ),
            Row(
                DIRECT,
                "GB/s",
                job.mapped(DIRECT, _by_ring, direct=True),
                (Target(2.3, IDENTITY),),
                compare=(THROUGH,),
            ),
            Row(
                SOCKET,
                "GB/s",
                job.mapped(SOCKET, _by_socket),
                compare=(IDENTITY,),
            ),
            *_over_parquet(job),
        ],
        setup=job.open,
        least_rounds=LEAST_ROUNDS,
    )
