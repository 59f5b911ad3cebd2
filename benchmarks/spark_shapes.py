"""What do rings bring to a function by what stands below it? local[2], Spark's workers.

Both sides have Spark's best settings, as in spark_unchanged.py. A new session's first ten queries
have a process of their own.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.harness import Question, Settings
from benchmarks.spark_session import WORKERS, find_modules_in_workers, spark_session
from benchmarks.spark_unchanged import (
    FIRST,
    NEXT,
    NUMBERS,
    QUERIES,
    RUNS,
    WIDE,
    Job,
    adding,
    configured,
    identity,
    numbers,
    of_new_sessions,
    run,
)

VALUES = 100_000  # rows of a udf, which Python calls for each of them
COLUMNS, BROAD = 100, 100_000  # columns, and rows of so many
# Below functions of each kind, and below pandas_udf alone.
SHAPES = ("scan", "expression", "filter", "rows made", "join", "shuffle")
# Filters that pass one row of so many, and other shapes.
PASSING = {"filter of 10 %": 10, "filter of 1 %": 100}
MORE = (
    *PASSING,
    *("sort", "aggregate", "window", "union", "limit", "generate", "AQE reader", "cached table"),
)
KINDS = ("pandas_udf", "arrow_udf", "udf", "chain of pandas_udf", "mapInArrow")
ONE_OF = ("pandas_udf of one of 100 columns", "pandas_udf of one of 300 bytes")
# How many times as fast as Spark's own.
FAST = {
    "scan": 2.5,
    "expression": 2.5,
    "filter": 2.2,
    "rows made": 2.2,
    "join": 1.8,
    "shuffle": 1.3,
}
WANTED = {
    **{f"{kind} above {shape}": times for kind in KINDS[:2] for shape, times in FAST.items()},
    "mapInArrow above scan": 2.3,
    "mapInArrow above filter": 2.2,
    "mapInArrow above join": 1.8,
    **dict.fromkeys(ONE_OF, 1.0),
    **{f"pandas_udf above {shape}": 1.0 for shape in PASSING},
}
ABOVE = "pandas_udf above "
WANTED_OF_NEW = {
    (f"{ABOVE}scan", FIRST): 1.3,
    (f"{ABOVE}scan", NEXT): 2.2,
    (f"{ABOVE}rows made", NEXT): 1.8,
}


def _shapes(job: Job, count: int) -> dict[str, Any]:
    """Frames of ten numbers in so many rows, by what makes them."""
    rows = numbers(job.session, count)
    scan, other = (_file(job, f"{name}-{count}", rows) for name in ("scan", "other"))
    small = job.session.range(0, 200_000, 1, WORKERS).selectExpr(
        "id partkey", "id * 2.0D of_part", "int(id % 11) of_kind"
    )
    sums = ("sum(price) price", "max(quantity) quantity", "count(*) many")
    return {
        "scan": scan,
        "expression": scan,  # the function takes an expression over the columns
        "filter": scan.where("orderkey % 10 != 3"),
        **{shape: scan.where(f"orderkey % {rows} = 3") for shape, rows in PASSING.items()},
        "rows made": rows,
        "join": scan.join(small.hint("broadcast"), "partkey"),
        "shuffle": scan.repartition(WORKERS, "partkey"),
        "sort": scan.sortWithinPartitions("price"),
        "aggregate": scan.groupBy("partkey").agg(*map(_expression, sums)),
        "window": scan.selectExpr("*", "sum(price) over (partition by suppkey) total"),
        "union": scan.union(rows),
        "limit": scan.limit(count // 2),
        "generate": scan.where("orderkey % 4 = 0").selectExpr("*", "explode(sequence(1, 4)) k"),
        "AQE reader": scan.repartition("suppkey"),
        "cached table": other.cache(),
    }


def _file(job: Job, name: str, frame: Any) -> Any:
    frame.write.parquet(f"{job.folder}/{name}")
    return job.session.read.parquet(f"{job.folder}/{name}")


def _expression(text: str) -> Any:
    from pyspark.sql.functions import expr

    return expr(text)


def _queries(job: Job) -> dict[str, Callable[[], Any]]:
    import pandas as pd
    import pyarrow as pa
    import pyspark.sql.functions as sql

    functions: Any = sql
    by_pandas = functions.pandas_udf(adding(pd.Series), "double")
    by_arrow = functions.arrow_udf(adding(pa.Array), "double")
    by_value = functions.udf(_sum, "double", useArrow=True)
    twice = functions.pandas_udf(_doubling(pd.Series), "double")

    def chain(one: Any, other: Any) -> Any:
        return twice(twice(by_pandas(one, other)))

    results: dict[str, Callable[[Any, Any], Any]] = {
        "pandas_udf": by_pandas,
        "arrow_udf": by_arrow,
        "udf": by_value,
        "chain of pandas_udf": chain,
    }

    def above(kind: str, shape: str, frame: Any) -> Any:
        if kind == "mapInArrow":
            given = frame.withColumn("quantity", _taken(shape))
            return given.mapInArrow(identity, given.schema)
        return frame.withColumn("z", results[kind](_taken(shape), "price"))

    frames = {count: _shapes(job, count // job.part) for count in (NUMBERS, VALUES)}
    columns = [f"(id * {k}) % 1000 c{k}" for k in range(1, COLUMNS)]
    broad = job.session.range(0, BROAD // job.part, 1, WORKERS).selectExpr("id c0", *columns)
    one = functions.pandas_udf(_doubling(pd.Series), "long")
    made: dict[str, Callable[[], Any]] = {
        _name(kind, shape): partial(above, kind, shape, frames[_rows(kind)][shape])
        for kind in KINDS
        for shape in (*SHAPES, *(MORE if kind == KINDS[0] else ()))
    }
    # Above a filter. Spark generates code for at most so many columns.
    made[ONE_OF[0]] = lambda: broad.where("c1 != 5").withColumn("z", one("c7"))
    made[ONE_OF[1]] = lambda: job.wide().where("id % 10 != 3").withColumn("z", one("id"))
    return made


class _Shapes(Job):
    """Queries of functions above each shape."""

    def made(self) -> dict[str, Callable[[], Any]]:
        return _queries(self)


def _taken(shape: str) -> Any:
    return _expression("quantity + discount" if shape == "expression" else "quantity")


def _sum(one: float, other: float) -> float:
    return one + other


def _doubling(kind: type) -> Any:
    def double(one: Any) -> Any:
        return one + one

    double.__annotations__.update(dict.fromkeys(("one", "return"), kind))
    return double


def _name(kind: str, shape: str) -> str:
    return f"{kind} above {shape}"


def _rows(kind: str) -> int:
    return VALUES if kind == "udf" else NUMBERS


def question(settings: Settings) -> Question:
    """Functions above each shape, with batches over the socket and over rings."""
    rows = {
        _name(kind, shape): _rows(kind)
        for kind in KINDS
        for shape in (*SHAPES, *(MORE if kind == KINDS[0] else ()))
    }
    job = _Shapes(settings, rows | {ONE_OF[0]: BROAD, ONE_OF[1]: WIDE})
    return Question(
        "spark-shapes",
        f"What do rings bring by what stands below a function? (local[{WORKERS}])",
        job.pairs(WANTED)
        + of_new_sessions(
            "benchmarks.spark_shapes",
            dict.fromkeys((f"{ABOVE}scan", f"{ABOVE}rows made"), NUMBERS // job.part),
            WANTED_OF_NEW,
        ),
        setup=job.open,
        least_rounds=RUNS,
    )


def _first_queries(name: str, switch: str, count: int) -> list[float]:
    """Seconds of a new session's first queries."""
    import tempfile

    import pandas as pd
    import pyspark.sql.functions as sql

    functions: Any = sql
    find_modules_in_workers()
    times: list[float] = []
    with tempfile.TemporaryDirectory() as folder, spark_session(configured) as session:
        frame = numbers(session, count)
        if name == f"{ABOVE}scan":
            frame.write.parquet(f"{folder}/numbers")
            frame = session.read.parquet(f"{folder}/numbers")
        session.conf.set("spark.shmring.functions", switch)
        for _ in range(QUERIES):
            begun = time.monotonic()
            function = functions.pandas_udf(adding(pd.Series), "double")
            run(frame.withColumn("z", function("quantity", "price")))
            times.append(time.monotonic() - begun)
    return times


if __name__ == "__main__":
    print(json.dumps(_first_queries(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
