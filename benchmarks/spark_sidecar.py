"""What does a sidecar cost a Spark job? local[2], 300-byte rows, one session.

Spark's own functions run at Spark's best settings: its Python workers talk to the JVM over Unix
sockets, and no limit of bytes makes its Arrow writer ask for the size of the batch after every row.
"""

from __future__ import annotations

import contextlib
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks import engines
from benchmarks.harness import Question, Row, Sample, Settings, Target, Unavailable
from benchmarks.payload import MESSAGE_BYTES, unique_name
from benchmarks.spark_cpu import cpu_use
from benchmarks.spark_rings import SHM, slots_for, with_jar
from benchmarks.spark_session import WORKERS, find_modules_in_workers, payload, spark_session

__all__ = ["question"]

IDENTITY = "identity mapInArrow, no sidecar"
SOCKET = "identity sidecar over a Unix socket"
THROUGH = "identity sidecar through the ring, by Python workers"
DIRECT = "identity sidecar through the ring, straight from the JVM"
OVER_PARQUET = "over parquet: identity mapInArrow, no sidecar"
OVER_RING = "over a ring: identity mapInArrow, no sidecar"
SMALL = "batches of 10 rows: identity mapInArrow, no sidecar"
LARGE = "batches of 100,000 rows: identity mapInArrow, no sidecar"
NUMBERS = "ten numbers: identity mapInArrow, no sidecar"
OVER_NUMBERS = "over parquet of ten numbers: identity mapInArrow, no sidecar"
SUMMED = "a sum after it: identity mapInArrow, no sidecar"
SUMMED_NUMBERS = "ten numbers and a sum after it: identity mapInArrow, no sidecar"
UDF = "arrow_udf of two columns of ten over parquet, no sidecar"

# The JVM warms up slowly and has its own noise.
LEAST_ROUNDS = 7
WARM_UP_SECONDS = 20.0  # of a row before its first sample: what runs once a batch is compiled late
ROWS = 1_000_000
ROWS_QUICK = 200_000
FEW = 10  # a part of the rows, for batches of few
BATCH = 10_000  # rows, where nobody says how many
SPARKS_BATCH_OF_NUMBERS = 64_000  # with which its own function is fastest
FIRST_TASKS = 20
SESSIONS = 5  # of each side, whose first query is measured
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
        self._folder = ""

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Start Spark; the sidecars start with their first run."""
        find_modules_in_workers()
        with self._stack:
            self._session = self._stack.enter_context(spark_session(_configured))
            same = f"unhex('{'5a' * PAYLOAD}') AS payload"
            self._data["rows"] = self._numbers().selectExpr("id", same)
            few = self._session.range(0, self._rows // FEW, 1, WORKERS)
            self._data["few rows"] = few.selectExpr("id", same)
            numbers = [f"{k} * id AS n{k}" for k in range(1, NUMBER_COLUMNS)]
            self._data["numbers"] = self._numbers().selectExpr("id", *numbers)
            self._add_columns()
            yield

    def _numbers(self) -> Any:
        return self._session.range(0, self._rows, 1, WORKERS)

    def _add_columns(self) -> None:
        """The rows once more, in places from where Spark has them as columns."""
        import pyarrow as pa

        import shmring

        others = [f"xxhash64(id, {k}) AS c{k}" for k in range(OTHERS)]
        frame = self._numbers().selectExpr("id", "2 * id AS twice", *others, payload(PAYLOAD))
        folder = self._folder = tempfile.mkdtemp(dir=SHM, prefix=f"{unique_name()}-")
        self._stack.callback(shutil.rmtree, folder)
        frame.write.option("compression", "uncompressed").parquet(f"{folder}/wide")
        self._data["wide parquet"] = self._session.read.parquet(f"{folder}/wide")
        numbers = self._data["numbers"]
        numbers.write.option("compression", "uncompressed").parquet(f"{folder}/numbers")
        self._data["number parquet"] = self._session.read.parquet(f"{folder}/numbers")
        narrow = frame.select("id", "payload")
        narrow.write.option("compression", "uncompressed").parquet(f"{folder}/narrow")
        self._data["parquet"] = self._session.read.parquet(f"{folder}/narrow")
        names = [unique_name() for _ in range(WORKERS)]
        schema = pa.schema([("id", pa.int64()), ("payload", pa.binary())])
        for k, name in enumerate(names):
            slots = slots_for(self._rows // WORKERS)
            ring = shmring.create(name, slots=slots, schema=schema, temporary=True)
            self._stack.enter_context(ring)
            part = narrow.where(f"id % {WORKERS} = {k}")
            part.write.format("shmring").option("ring", name).mode("append").save()
        reader = self._session.read.format("shmring").option("ring", ",".join(names))
        self._data["ring"] = reader.load()

    def _made(
        self,
        name: str,
        make: Callable[[], Any],
        apply: Callable[[Any], Any],
        *wanted: tuple[str, int],
    ) -> Any:
        """What `make` makes; made, and the totals of its answers checked, once."""
        if name not in self._functions:
            function = make()
            totals = tuple(apply(function).selectExpr(*(text for text, _ in wanted)).first())
            if totals != tuple(value for _, value in wanted):
                raise RuntimeError(f"{name}: the rows that came back are not those that were sent")
            self._functions[name] = function
        return self._functions[name]

    def _rows_of(self, data: str) -> int:
        return self._rows // FEW if data == "few rows" else self._rows

    def _time(
        self,
        name: str,
        data: Any,
        rows: int,
        row_bytes: int = MESSAGE_BYTES,
        *,
        summed: bool = False,
    ) -> Sample:
        def run() -> None:
            if summed:
                data.selectExpr("count(*)", *_sums(data)).collect()
            else:
                data.write.format("noop").mode("overwrite").save()

        until = time.monotonic() + self._warm_up_seconds
        while name not in self._warm and time.monotonic() < until:
            run()
        self._warm.add(name)
        before, started = cpu_use(), time.monotonic()
        run()
        took, used = time.monotonic() - started, cpu_use().since(before)
        size = rows * row_bytes / 1e9
        a_gigabyte = {kind or "CPU s/GB": seconds / size for kind, seconds in used.items()}
        return Sample(size / took, {"M rows/s": rows / took / 1e6, **a_gigabyte})

    def _configure(self, *, direct: bool, batch: int = BATCH, limit: int = NO_LIMIT) -> None:
        for name, value in _settings(direct=direct, batch=batch, limit=limit).items():
            self._session.conf.set(name, value)

    def _row_bytes(self, data: str) -> int:
        return NUMBER_BYTES if "number" in data else MESSAGE_BYTES

    def nothing(self, data: str, *, summed: bool = False) -> Callable[[float], Sample]:
        """A contestant: the rows without Python."""

        def run(seconds: float) -> Sample:
            del seconds
            rows, size = self._rows_of(data), self._row_bytes(data)
            name = f"{data}, {'summed' if summed else 'dropped'}"
            return self._time(name, self._data[data], rows, size, summed=summed)

        return run

    def mapped(
        self,
        name: str,
        make: Callable[[_Job], Callable[..., Any]],
        data: str = "rows",
        *,
        direct: bool = False,
        batch: int = BATCH,
        limit: int = NO_LIMIT,
        summed: bool = False,
    ) -> Callable[[float], Sample]:
        """A contestant: the rows through what `make` makes, so many rows and bytes in a batch."""
        rows = self._rows_of(data)
        numbers = "number" in data

        def apply(function: Callable[..., Any]) -> Any:
            return self._data[data].mapInArrow(function, self._data[data].schema)

        def run(seconds: float) -> Sample:
            del seconds
            self._configure(direct=direct, batch=batch, limit=limit)
            totals = (
                ("count(*)", rows),
                ("sum(id)", rows * (rows - 1) // 2),
                ("sum(n9)", 9 * rows * (rows - 1) // 2)
                if numbers
                else ("sum(length(payload))", rows * PAYLOAD),
            )
            made = apply(self._made(name, lambda: make(self), apply, *totals))
            return self._time(name, made, rows, self._row_bytes(data), summed=summed)

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
            return self._time(name, apply(function), self._rows, 8 * (2 + OTHERS) + PAYLOAD)

        return run

    def first_batch(
        self, make: Callable[[_Job], Callable[..., Any]], *, direct: bool = False
    ) -> Callable[[float], Sample]:
        """A contestant: from a task's first row to the first one that comes back."""
        made: list[Callable[..., Any]] = []

        def run(seconds: float) -> Sample:
            del seconds
            self._configure(direct=direct, batch=10)
            if not made:
                made.append(make(self))
            now = "bigint(reflect('java.lang.System', 'nanoTime'))"
            rows = self._session.range(0, 100 * FIRST_TASKS, 1, FIRST_TASKS)
            sent = rows.selectExpr("id", f"{now} AS begun").mapInArrow(
                made[0], "id long, begun long"
            )
            taken = sent.selectExpr("id", f"{now} - begun AS took").collect()
            firsts = [row.took / 1e6 for row in taken if row.id % 100 == 0]
            return Sample(statistics.median(firsts), {"worst": max(firsts)})

        return run

    def first_query(self, *, direct: bool = False) -> Callable[[float], Sample]:
        """A contestant: the first query of a session of its own, whose JVM has run no function."""
        sidecars: list[str] = []

        def run(seconds: float) -> Sample:
            del seconds
            if direct and not sidecars:
                sidecars.append(_sidecar(self, "benchmarks.peers.spark_engine:identity"))
            with contextlib.closing(engines.spark()) as engine:
                engine.ask("ready")
                before = cpu_use()
                answer = engine.ask(
                    "query",
                    path=f"{self._folder}/narrow",
                    function="identity",
                    sidecar=sidecars[0] if direct else None,
                    totals=None,
                    settings=_settings(direct=direct),
                )
                used = cpu_use().since(before)
            return Sample(answer["seconds"], {kind or "CPU s": used[kind] for kind in used})

        return run

    def enter(self, context: contextlib.AbstractContextManager[Any]) -> Any:
        """Keep a sidecar until the session ends."""
        return self._stack.enter_context(context)


def _settings(*, direct: bool, batch: int = BATCH, limit: int = NO_LIMIT) -> dict[str, str]:
    return {
        "spark.shmring.direct": str(direct).lower(),
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(batch),
        "spark.sql.execution.arrow.maxBytesPerBatch": str(limit),
    }


def _sums(data: Any) -> list[str]:
    """Of two columns: what follows a function seldom takes all."""
    return ["sum(id)", "sum(n9)" if "n9" in data.columns else "sum(length(payload))"]


def _configured(builder: Any) -> Any:
    return with_jar(builder).config("spark.python.unix.domain.socket.enabled", "true")


def _identity(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


def _by_identity(job: _Job) -> Callable[..., Any]:
    del job
    return _identity


def _by_socket(job: _Job) -> Callable[..., Any]:
    from benchmarks.socket_sidecar import SocketClient, identity, serve

    return SocketClient(job.enter(serve(identity, workers=WORKERS)))


def _sidecar(job: _Job, function: str) -> str:
    try:
        from shmring.sidecars import Sidecar
    except ImportError as error:
        raise Unavailable(f"waits for the sidecar: {error}") from None
    name = unique_name()
    job.enter(Sidecar(function, name=name, workers=WORKERS))
    return name


def _by_ring(job: _Job) -> Callable[..., Any]:
    import shmring.spark

    return shmring.spark.through(_sidecar(job, "benchmarks.socket_sidecar:identity"))


def added(batch: Any) -> Any:
    """What a sidecar answers."""
    import pyarrow as pa

    return pa.record_batch([_added(*batch.columns)], names=["sum"])


def _added(one: Any, other: Any) -> Any:
    import pyarrow.compute as pc

    compute: Any = pc
    return compute.add(one, other)


def _udf_of_ring(job: _Job) -> Any:
    import shmring.spark

    return shmring.spark.arrow_udf(_sidecar(job, "benchmarks.spark_sidecar:added"), "long")


def _udf(job: _Job) -> Any:
    del job
    import pyarrow as pa
    from pyspark.sql.functions import arrow_udf

    # Spark looks at the annotations for the kind of function.
    _added.__annotations__.update(dict.fromkeys(("one", "other", "return"), pa.Array))
    return arrow_udf(_added, returnType="long")


def _at_default(job: _Job, spark: str, data: str, batch: int = BATCH) -> Row:
    name = f"{spark}, at Spark's default maxBytesPerBatch"
    run = job.mapped(name, _by_identity, data, batch=batch, limit=DEFAULT_LIMIT)
    return Row(name, "GB/s", run, compare=(spark,))


def _over_columns(job: _Job) -> list[Row]:
    """Where Spark has columns, or wants them."""
    rows: list[Row] = []
    for data, spark, wanted, summed in (
        ("parquet", OVER_PARQUET, 2.5, False),
        ("ring", OVER_RING, 2.5, False),
        ("number parquet", OVER_NUMBERS, 2.0, False),
        ("numbers", NUMBERS, 2.0, False),
        ("rows", SUMMED, 2.3, True),
        ("numbers", SUMMED_NUMBERS, 2.3, True),
    ):
        where, _, _ = spark.partition(":")
        ours = f"{where}: identity sidecar, straight from the JVM"
        batch = SPARKS_BATCH_OF_NUMBERS if "number" in data else BATCH
        best = job.mapped(spark, _by_identity, data, summed=summed, batch=batch)
        direct = job.mapped(ours, _by_ring, data, direct=True, summed=summed)
        rows += [
            Row(f"{where}: rows without Python", "GB/s", job.nothing(data, summed=summed)),
            Row(spark, "GB/s", best),
            *([] if summed else [_at_default(job, spark, data)]),
            Row(ours, "GB/s", direct, (Target(wanted, spark),)),
        ]
    ours = UDF.replace("no sidecar", "by a sidecar straight from the JVM")
    udf = job.udf(ours, _udf_of_ring, direct=True)
    return [
        *rows,
        Row(UDF, "GB/s", job.udf(UDF, _udf)),
        Row(ours, "GB/s", udf, (Target(2.0, UDF),)),
    ]


def _in_batches(job: _Job) -> list[Row]:
    """Batches of other sizes than Spark's usual one, and the first of a task."""
    rows: list[Row] = []
    for data, batch, spark in (("few rows", 10, SMALL), ("rows", 100_000, LARGE)):
        where, _, _ = spark.partition(":")
        ours = f"{where}: identity sidecar, straight from the JVM"
        direct = job.mapped(ours, _by_ring, data, direct=True, batch=batch)
        rows += [
            Row(spark, "GB/s", job.mapped(spark, _by_identity, data, batch=batch)),
            _at_default(job, spark, data, batch),
            Row(ours, "GB/s", direct, (Target(3.0 if data == "few rows" else 1.0, spark),)),
        ]
    spark = "first batch of a task: identity mapInArrow, no sidecar"
    ours = "first batch of a task: identity sidecar, straight from the JVM"
    first = job.first_batch(_by_ring, direct=True)
    return [
        *rows,
        Row(spark, "ms", job.first_batch(_by_identity), lower_is_better=True),
        Row(ours, "ms", first, (Target(5.0),), lower_is_better=True, compare=(spark,)),
    ]


def _first_queries(job: _Job) -> list[Row]:
    spark = "first query of a session: identity mapInArrow, no sidecar"
    ours = "first query of a session: identity sidecar, straight from the JVM"
    return [
        Row(spark, "s", job.first_query(), lower_is_better=True, rounds=SESSIONS),
        Row(
            ours,
            "s",
            job.first_query(direct=True),
            (Target(1.0, spark),),
            lower_is_better=True,
            rounds=SESSIONS,
        ),
    ]


def question(settings: Settings) -> Question:
    """The same rows through nothing, through Python, and through two kinds of sidecar."""
    job = _Job(ROWS_QUICK, 0.0) if settings.quick else _Job(ROWS, WARM_UP_SECONDS)
    return Question(
        "spark",
        "What does a sidecar cost a Spark job? (local[2], rows of 300 bytes)",
        [
            Row("rows without Python", "GB/s", job.nothing("rows")),
            Row(IDENTITY, "GB/s", job.mapped(IDENTITY, _by_identity)),
            _at_default(job, IDENTITY, "rows"),
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
            *_in_batches(job),
            *_over_columns(job),
            *_first_queries(job),
        ],
        setup=job.open,
        least_rounds=LEAST_ROUNDS,
    )
