"""What do rings bring to the functions of a session? local[2], one session, Spark's workers.

Both sides have Spark's best settings: Unix sockets, and no limit of bytes, which makes its Arrow
writer ask for the size of the batch after every row. A new session's first ten queries have a
process of their own.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import Question, Row, Sample, Settings, Target
from benchmarks.payload import unique_name
from benchmarks.spark_cpu import cpu_use
from benchmarks.spark_rings import SHM, with_jar
from benchmarks.spark_session import WORKERS, find_modules_in_workers, spark_session

QUICK = 10  # a part of the rows
RUNS = 7  # to warm up, and measured
BEST = {
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
}
NUMBERS, WIDE, SMALL, FEW, NEW = 1_000_000, 400_000, 200_000, 60_000, 2_000  # rows

# The rows, and how many times as fast as Spark's own.
CASES = {
    "mapInArrow, parquet, 10 numbers": (NUMBERS, 2.2),
    "mapInArrow, parquet, 300 bytes": (WIDE, 2.3),
    "mapInArrow, rows made, 10 numbers": (NUMBERS, 2.3),
    "mapInArrow, rows made, 300 bytes": (WIDE, 2.6),
    "pandas_udf beside 10 numbers": (NUMBERS, 2.4),
    "pandas_udf alone": (NUMBERS, 2.2),
    "arrow_udf beside 10 numbers": (NUMBERS, 3.3),
    "mapInPandas, 10 numbers": (NUMBERS, 2.5),
    "applyInPandas, 10 numbers, groups of 100, identity": (SMALL, 7.0),
    "applyInPandas, 10 numbers, groups of 100, demean": (SMALL, 5.0),
    "applyInPandas, 3 columns, groups of 10, demean": (FEW, 4.5),
    "applyInPandas, 3 columns, groups of 100, demean": (SMALL, 4.5),
    "applyInPandas, 3 columns, groups of 1000, demean": (NUMBERS, 2.3),
    "applyInPandas, cogroups of 100 and 100": (FEW, 3.0),
    "pandas_udf of groups of 10": (FEW, 3.2),
    "pandas_udf of groups of 100": (SMALL, 2.8),
    "pandas_udf of groups of 1000": (NUMBERS, 1.5),
    "pandas_udf over partitions of 100": (SMALL, 1.9),
    "pandas_udf over 11 rows of partitions of 100": (FEW // 2, 1.35),
    "udf of a double beside 10 numbers": (NUMBERS, 2.5),
    "udf of a text alone": (NUMBERS, 1.7),
    "udtf of a double": (SMALL, 2.0),
    "tasks of 1,000 rows": (SMALL, 1.0),
    "a new function each time": (NEW, 1.0),
}


# Queries that a new session begins with.
OF_NEW_SESSIONS = (
    "mapInPandas, 10 numbers",
    "applyInPandas, 3 columns, groups of 100, demean",
    "pandas_udf of groups of 100",
    "udf of a double beside 10 numbers",
)
FIRST, NEXT = "first query", "queries 2 to 10"
QUERIES = 10
SESSIONS = 3  # rounds of new sessions, each of which takes seconds to start


class Job:
    """The session and its data, while the rounds run.

    Parameters
    ----------
    rows : the rows of each query, by its name
    """

    def __init__(self, settings: Settings, rows: Mapping[str, int]) -> None:
        self._rows = rows
        self.part = QUICK if settings.quick else 1
        self._warm_up_runs = 1 if settings.quick else RUNS
        self._stack = contextlib.ExitStack()
        self.session: Any = None
        self.folder = ""
        self._warm: set[str] = set()
        self._answers: dict[str, Any] = {}
        self._cases: dict[str, Callable[[], Any]] = {}

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Until the rounds are done."""
        find_modules_in_workers()
        with self._stack:
            self.session = self._stack.enter_context(spark_session(configured))
            self.folder = tempfile.mkdtemp(dir=SHM, prefix=f"{unique_name()}-")
            self._stack.callback(shutil.rmtree, self.folder)
            for name, frame in (("numbers", self.numbers()), ("wide", self.wide())):
                frame.write.parquet(f"{self.folder}/{name}")
            self._cases = self.made()
            yield

    def numbers(self) -> Any:
        """Ten numbers of four types."""
        return numbers(self.session, NUMBERS // self.part)

    def wide(self) -> Any:
        """300 bytes a row."""
        texts = [f"repeat('{k}', 68) s{k}" for k in range(4)]
        return self.session.range(0, WIDE // self.part, 1, WORKERS).selectExpr(
            "id", "id * 1.5D v", *texts
        )

    def made(self) -> dict[str, Callable[[], Any]]:
        """The queries; the functions are Spark's."""
        import pandas as pd
        import pyarrow as pa
        import pyspark.sql.functions as sql

        functions: Any = sql
        numbers = self.session.read.parquet(f"{self.folder}/numbers")
        wide = self.session.read.parquet(f"{self.folder}/wide")
        small = self.session.range(0, SMALL // self.part, 1, SMALL // self.part // 1000)
        few = self.session.range(0, NEW // self.part, 1, WORKERS)

        def mapped(make: Callable[[], Any]) -> Callable[[], Any]:
            return lambda: (frame := make()).mapInArrow(identity, frame.schema)

        def new() -> Any:
            def same(batches: Iterator[Any]) -> Iterator[Any]:
                return batches

            return few.mapInArrow(same, few.schema)

        by_pandas = functions.pandas_udf(adding(pd.Series), "double")("quantity", "price")
        twice = functions.udtf(_Twice, returnType="z double", useArrow=True)
        by_arrow = functions.arrow_udf(adding(pa.Array), "double")("quantity", "price")

        return {
            "mapInArrow, parquet, 10 numbers": mapped(lambda: numbers),
            "mapInArrow, parquet, 300 bytes": mapped(lambda: wide),
            "mapInArrow, rows made, 10 numbers": mapped(self.numbers),
            "mapInArrow, rows made, 300 bytes": mapped(self.wide),
            "pandas_udf beside 10 numbers": lambda: numbers.withColumn("z", by_pandas),
            "pandas_udf alone": lambda: numbers.select(by_pandas.alias("z")),
            "arrow_udf beside 10 numbers": lambda: numbers.withColumn("z", by_arrow),
            "mapInPandas, 10 numbers": lambda: numbers.mapInPandas(identity, numbers.schema),
            "udf of a double beside 10 numbers": lambda: numbers.withColumn(
                "z", functions.udf(_twice, "double")("price")
            ),
            "udf of a text alone": lambda: numbers.select(
                functions.udf(_upper, "string")(functions.expr("concat('name', orderkey % 1000)"))
            ),
            "udtf of a double": lambda: (
                numbers.where(f"orderkey < {SMALL // self.part}")
                .select("price")
                .lateralJoin(twice(functions.col("price").outer()))
            ),
            **self._of_groups(numbers),
            "tasks of 1,000 rows": mapped(lambda: small),
            "a new function each time": new,
        }

    def _of_groups(self, numbers: Any) -> dict[str, Callable[[], Any]]:
        """The queries over groups, cogroups and windows of successive rows."""
        import pyspark.sql.functions as sql
        from pyspark.sql import Window

        functions: Any = sql
        mean = functions.pandas_udf(_mean, "double", functions.PandasUDFType.GROUPED_AGG)

        def rows(count: int) -> Any:
            three = "orderkey k", "price v", "concat('name', orderkey % 1000) s"
            return numbers.where(f"orderkey < {count // self.part}").selectExpr(*three)

        def grouped(frame: Any, key: str, size: int) -> Any:
            return frame.groupBy(functions.expr(f"{key} div {size}").alias("grp"))

        def ten(function: Callable[[Any], Any]) -> Callable[[], Any]:
            few = numbers.where(f"orderkey < {SMALL // self.part}")
            return lambda: grouped(few, "orderkey", 100).applyInPandas(function, few.schema)

        def demeaned(count: int, size: int) -> Callable[[], Any]:
            frame = rows(count)
            return lambda: grouped(frame, "k", size).applyInPandas(_demean("v"), frame.schema)

        def aggregated(count: int, size: int) -> Callable[[], Any]:
            return lambda: grouped(rows(count), "k", size).agg(mean("v").alias("mean"))

        def cogroups() -> Any:
            groups = grouped(rows(FEW), "k", 100)
            return groups.cogroup(groups).applyInPandas(_demean_by_other, rows(FEW).schema)

        def over(count: int, *bounds: int) -> Callable[[], Any]:
            partitions = Window.partitionBy(functions.expr("k div 100"))
            window = partitions.orderBy("k").rowsBetween(*bounds) if bounds else partitions
            return lambda: rows(count).withColumn("m", mean("v").over(window))

        counts = {10: FEW, 100: SMALL, 1000: NUMBERS}
        return {
            "applyInPandas, 10 numbers, groups of 100, identity": ten(_itself),
            "applyInPandas, 10 numbers, groups of 100, demean": ten(_demean("price")),
            "applyInPandas, cogroups of 100 and 100": cogroups,
            "pandas_udf over partitions of 100": over(SMALL),
            "pandas_udf over 11 rows of partitions of 100": over(FEW // 2, -5, 5),
            **{
                f"applyInPandas, 3 columns, groups of {size}, demean": demeaned(count, size)
                for size, count in counts.items()
            },
            **{
                f"pandas_udf of groups of {size}": aggregated(count, size)
                for size, count in counts.items()
            },
        }

    def _check(self, case: str) -> None:
        """The answers of both sides have to agree."""
        frame = self._cases[case]()
        sums = [f"sum(hash(`{column}`))" for column in frame.columns]
        answer = frame.selectExpr("count(*)", *sums).collect()
        if answer != self._answers.setdefault(case, answer):
            raise RuntimeError(f"{case}: the rows that came back are not those of the other side")

    def sample(self, case: str, switch: str, seconds: float) -> Sample:
        """Time a query, and what its processes use."""
        del seconds

        if (name := case + switch) not in self._warm:
            self._warm.add(name)
            self.session.conf.set("spark.shmring.functions", switch)
            self._check(case)
            for _ in range(self._warm_up_runs):
                run(self._cases[case]())
        before = cpu_use()
        took = self.seconds(case, switch)
        used = cpu_use().since(before)
        millions = self._rows[case] // self.part / 1e6
        cpu = {kind or "CPU s/M rows": seconds / millions for kind, seconds in used.items()}
        return Sample(millions / took, cpu)

    def seconds(self, case: str, switch: str) -> float:
        """Time a query."""
        self.session.conf.set("spark.shmring.functions", switch)
        started = time.monotonic()
        run(self._cases[case]())
        return time.monotonic() - started

    def pairs(self, wanted: Mapping[str, float]) -> list[Row]:
        """Two rows a query, Spark's own way and over rings, so many times as fast."""
        rows: list[Row] = []
        for case in self._rows:
            own, ours = f"{case}: Spark's own", f"{case}: over rings"
            targets = (Target(wanted[case], own),) if case in wanted else ()
            measure = partial(self.sample, case, "on")
            rows += [
                Row(own, "M rows/s", partial(self.sample, case, "off")),
                Row(ours, "M rows/s", measure, targets, compare=() if targets else (own,)),
            ]
        return rows


class NewSession:
    """The first queries of a session in a process of its own.

    Parameters
    ----------
    module : prints the seconds of each query, when it is run with the name and the switch
    rows : rows of a query
    """

    def __init__(self, module: str, name: str, switch: str, rows: int) -> None:
        self._command = [sys.executable, "-m", module, name, switch, str(rows)]
        self._millions = rows / 1e6
        self._of_next = Sample(0)

    def first(self, seconds: float) -> Sample:
        """Time the first query; the others belong to the row after this one."""
        del seconds
        folder = Path(__file__).resolve().parent.parent
        told = subprocess.run(self._command, cwd=folder, capture_output=True, text=True, check=True)
        times: list[float] = json.loads(told.stdout.splitlines()[-1])
        self._of_next = Sample(self._millions / statistics.median(times[1:]))
        return Sample(self._millions / times[0])

    def next(self, seconds: float) -> Sample:
        """Give what the queries after the first one took, in the median."""
        del seconds
        return self._of_next


def of_new_sessions(
    module: str, names: Mapping[str, int], wanted: Mapping[tuple[str, str], float]
) -> list[Row]:
    """Four rows for each name with its rows: both sides' first query, and their next ones."""
    rows: list[Row] = []
    for name, count in names.items():
        sides = [
            (whose, NewSession(module, name, switch, count))
            for whose, switch in (("Spark's own", "off"), ("over rings", "on"))
        ]
        for when in (FIRST, NEXT):
            own = f"new session, {name}, {when}: Spark's own"
            for whose, session in sides:
                title = f"new session, {name}, {when}: {whose}"
                limit = wanted.get((name, when))
                targets = (Target(limit, own),) if limit and title != own else ()
                compare = (own,) if not targets and title != own else ()
                measure = session.first if when == FIRST else session.next
                rows.append(
                    Row(title, "M rows/s", measure, targets, compare=compare, rounds=SESSIONS)
                )
    return rows


def run(frame: Any) -> None:
    """Make all rows, and drop them."""
    frame.write.format("noop").mode("overwrite").save()


def numbers(session: Any, count: int) -> Any:
    """Make rows of ten numbers of four types."""
    day = "date_add(date'1992-01-01', int(id % 2500))"
    return session.range(0, count, 1, WORKERS).selectExpr(
        *("id orderkey", "id % 200000 partkey", "id % 10000 suppkey", "int(id % 7) line"),
        *("double(id % 50 + 1) quantity", "id * 1.25D price", "(id % 10) / 100D discount"),
        *("(id % 8) / 100D tax", f"{day} shipped", f"{day} committed"),
    )


def configured(builder: Any) -> Any:
    """Give a session the jar, and Spark's best settings."""
    return with_jar(builder).config(map=BEST)


def identity(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield the batches."""
    yield from batches


def _itself(frame: Any) -> Any:
    return frame


def _mean(values: Any) -> Any:
    return values.mean()


def _twice(value: float) -> float:
    return value * 2


class _Twice:
    def eval(self, value: float) -> Iterator[tuple[float]]:
        yield (value * 2,)


def _upper(text: str) -> str:
    return text.upper()


def _demean(column: str) -> Callable[[Any], Any]:
    def demean(frame: Any) -> Any:
        return frame.assign(**{column: frame[column] - frame[column].mean()})

    return demean


def _demean_by_other(left: Any, right: Any) -> Any:
    return left.assign(v=left.v - right.v.mean())


def adding(kind: type) -> Any:
    """A function of two columns, of the kind that Spark sees in its annotations."""

    def add(one: Any, other: Any) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        compute: Any = pc
        return compute.add(one, other) if isinstance(one, pa.Array) else one + other

    add.__annotations__.update(dict.fromkeys(("one", "other", "return"), kind))
    return add


def question(settings: Settings) -> Question:
    """The same queries, with batches over the socket and over rings."""
    job = Job(settings, {case: rows for case, (rows, _) in CASES.items()})
    return Question(
        "spark-unchanged",
        f"What do rings bring to Spark's own Python workers? (local[{WORKERS}])",
        job.pairs({case: wanted for case, (_, wanted) in CASES.items()})
        + of_new_sessions(
            "benchmarks.spark_unchanged",
            {case: CASES[case][0] // job.part for case in OF_NEW_SESSIONS},
            {},
        ),
        setup=job.open,
        least_rounds=RUNS,
    )


def _first_queries(case: str, switch: str, rows: int) -> list[float]:
    """Seconds of a new session's first queries."""
    job = Job(Settings(1, 0.0, rows < CASES[case][0]), {case: rows})
    with job.open():
        return [job.seconds(case, switch) for _ in range(QUERIES)]


if __name__ == "__main__":
    print(json.dumps(_first_queries(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
