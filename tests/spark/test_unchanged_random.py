"""Random queries with functions of every kind come to the same over rings and over the socket.

``SHMRING_RANDOM_QUERIES`` sets their number in `make test-long`; the default is 300.
"""

from __future__ import annotations

import inspect
import os
import random
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from direct import ROWS, TYPES, columns_of
from pyspark.sql import DataFrame, Window, functions
from pyspark.sql.functions import col, expr
from unchanged import (
    ADAPTIVE,
    FUNCTIONS,
    MOST_BYTES,
    WHOLE_STAGE,
    arrays,
    arrays_iterator,
    compare,
    outcome,
    series,
    series_iterator,
    values,
)

SOME = 7  # in the quick tests
LONG = int(os.environ.get("SHMRING_RANDOM_QUERIES", "300"))
SEEDS = [
    *((seed, False) for seed in range(SOME)),
    *(pytest.param(seed, True, marks=pytest.mark.long) for seed in range(LONG)),
]
COLUMNS = ["id", "a", "b", "c"]
OPTIONS: dict[str, list[Any]] = {
    ROWS: [1, 7, 40, 10_000, 0],
    MOST_BYTES: [200, 5000, 2**31 - 1],
    WHOLE_STAGE: [True, False],
    ADAPTIVE: [True, False],
    "spark.sql.ansi.enabled": [True, False],
    "spark.sql.execution.arrow.useLargeVarTypes": [True, False],
    "spark.sql.execution.pandas.convertToArrowArraySafely": [True, False],
    "spark.sql.execution.pythonUDF.arrow.enabled": [True, False],
}

pytestmark = pytest.mark.spark_version(since="4.3")


def _frame(
    spark: Any, rng: random.Random, kind: str, counts: Sequence[int] = (0, 1, 30, 150)
) -> DataFrame:
    """The same columns each time, but for the type of the last one."""
    count, partitions = rng.choice(counts), rng.choice([1, 2, 3])
    (value,) = columns_of({"c": TYPES[kind]}, rng.choice(["none", "some", "all"]))
    return spark.range(count, numPartitions=partitions).selectExpr(
        "id", "if(id % 5 = 0, null, id / 4) a", "if(id % 7 = 1, null, string(id)) b", value
    )


# --- functions of batches, and of frames ----------------------------------------------------------


def _same(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


def _later(batches: Iterator[Any]) -> Iterator[Any]:
    before = None
    for batch in batches:
        if before is not None:
            yield before
        before = batch
    if before is not None:
        yield before


def _cuts(batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        yield from (batch[3:], batch[:2], batch[:0])


def _keeps(batches: Iterator[Any]) -> Iterator[Any]:
    for batch in list(batches)[:3]:
        yield batch
        yield batch


def _stops(batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        yield batch
        return


def _fails(batches: Iterator[Any]) -> Iterator[Any]:
    for number, batch in enumerate(batches):
        if number == 2:
            raise ValueError("of the third batch")
        yield batch


BATCHES = (_same, _later, _cuts, _keeps, _stops, _fails)


def _by_value(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function for workers, which do not find this module."""
    return types.FunctionType(function.__code__, {}, "of_batches")


def _maps(frame: DataFrame, rng: random.Random) -> DataFrame:
    function = _by_value(rng.choice(BATCHES))
    method = frame.mapInArrow if rng.random() < 0.6 else frame.mapInPandas
    return method(function, frame.schema)


# --- UDFs -----------------------------------------------------------------------------------------


def _numbers(rng: random.Random) -> Any:
    """A UDF of one number."""
    by = rng.randrange(1, 9)
    return rng.choice(
        [
            lambda: series("double", lambda x: x * by),
            lambda: series("float", lambda x: x / by),
            lambda: arrays("double", lambda x: pc.add(x, by)),
            lambda: series_iterator("double", lambda batches: (x + by for x in list(batches))),
            lambda: arrays_iterator("double", lambda batches: (pc.divide(x, by) for x in batches)),
            lambda: values("double", lambda x: x and x - by),
            lambda: series("int", lambda x: x.fillna(by) + 0.5),
            lambda: functions.udf(lambda x: x and x * by, "double"),
        ]
    )()


def _selects(frame: DataFrame, rng: random.Random) -> DataFrame:
    number, kind = _numbers(rng), dict(frame.dtypes)["c"]
    made = {
        "a": lambda: number("a"),
        "b": lambda: series("string", lambda x, y: x.astype(str) + y)("a", "b"),
        "c": lambda: arrays(kind, lambda x: x)("c"),
    }
    if rng.random() < 0.4:
        made["a"] = lambda: number(number(col("id").cast("double")))
    if rng.random() < 0.4:
        made["b"] = lambda: values("string", lambda x, y: f"{x} {y}")("id", "b")
    if rng.random() < 0.3:
        both = series(
            "x double, y string", lambda x, y: pd.DataFrame({"x": x, "y": y}), pd.DataFrame
        )
        made |= {
            name: (lambda part=part: both("a", "b")[part])
            for name, part in (("a", "x"), ("b", "y"))
        }
    taken = {name for name in made if rng.random() < 0.6}
    return frame.select(*(made[name]().alias(name) if name in taken else name for name in COLUMNS))


def _filters(frame: DataFrame, rng: random.Random) -> DataFrame:
    odd = rng.choice(
        [
            lambda: series("boolean", lambda x: x % 2 == 1),
            lambda: arrays("boolean", lambda x: pc.equal(pc.bit_wise_and(x, 1), 1)),
            lambda: values("boolean", lambda x: x % 3 > 0),
        ]
    )()
    return frame.where(odd("id") & expr("id > 2"))


# --- groups ---------------------------------------------------------------------------------------


def _keyed(frame: DataFrame, rng: random.Random) -> Any:
    keys = ["id % 3", "b", "id", "1", "if(id % 4 = 0, id, -1)"]
    return frame.groupBy(expr(rng.choice(keys)).alias("key"))


def _groups(frame: DataFrame, rng: random.Random) -> DataFrame:
    keyed, schema = _keyed(frame, rng), frame.schema

    def parts(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.slice(1)

    def frames(parts: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for part in parts:
            yield part[:2]

    return rng.choice(
        [
            lambda: keyed.applyInArrow(lambda table: table, schema),
            lambda: keyed.applyInArrow(lambda key, table: table.slice(0, 2), schema),
            lambda: keyed.applyInArrow(parts, schema),
            lambda: keyed.applyInPandas(lambda frame: frame[frame["id"] % 2 == 0], schema),
            lambda: keyed.applyInPandas(lambda frame: frame, schema),
            lambda: keyed.applyInPandas(lambda key, frame: frame.assign(a=len(frame)), schema),
            lambda: keyed.applyInPandas(frames, schema),
        ]
    )()


def _cogroups(frame: DataFrame, rng: random.Random) -> DataFrame:
    other = frame.sparkSession.range(9).selectExpr("id", "id % 4 key").groupBy("key")
    both = frame.groupBy(expr("id % 6").alias("key")).cogroup(other)
    return rng.choice(
        [
            lambda: both.applyInArrow(lambda left, right: left.slice(right.num_rows), frame.schema),
            lambda: both.applyInPandas(lambda left, right: left[len(right) :], frame.schema),
        ]
    )()


def _aggregates(frame: DataFrame, rng: random.Random) -> DataFrame:
    mean = rng.choice(
        [
            lambda: series("double", lambda x: x.mean(), float),
            lambda: arrays("double", lambda x: pc.sum(x), pa.Scalar),
            lambda: series_iterator("double", lambda batches: float(sum(map(len, batches))), float),
        ]
    )()
    most = series("string", lambda x: x.astype(str).max(), str)
    keys = frame.groupBy(expr(rng.choice(["id % 7", "id", "length(b)"])).cast("long").alias("id"))
    made = keys.agg(mean("a").alias("a"), mean(col("a") + 1).alias("b"))
    if rng.random() < 0.3:
        made = frame.groupBy("id").agg(
            series("double", lambda x, y: len(x), float)("a", "id").alias("a"), most("b").alias("b")
        )
    kind = frame.schema["c"].dataType
    return made.select(
        "id", "a", col("b").cast("string").alias("b"), functions.lit(None).cast(kind).alias("c")
    )


def _tables(frame: DataFrame, rng: random.Random) -> DataFrame:
    most = rng.randrange(4)
    odd = rng.choice([None, None, 1, [2.5]])

    class Repeats:
        def eval(self, number: int, text: str) -> Iterator[Any]:
            for _ in range(number % (most + 1)):
                yield number / 2, text if odd is None or number % 9 else odd

        def terminate(self) -> Iterator[Any]:
            if most == 3:
                yield None, None

    table = functions.udtf(Repeats, returnType="x double, y string", useArrow=True)
    return frame.lateralJoin(table(col("id").outer(), col("b").outer())).select(
        "id", col("x").alias("a"), col("y").alias("b"), "c"
    )


def _windows(frame: DataFrame, rng: random.Random) -> DataFrame:
    """Results that no order of the same rows changes."""
    most = rng.choice(
        [
            lambda: series("double", lambda x: x.max(), float),
            lambda: arrays("double", lambda x: pc.max(x), pa.Scalar),
            lambda: series("long", lambda x: len(x), int),
        ]
    )()
    keys = Window.partitionBy(expr(rng.choice(["id % 3", "b", "1"])))
    # Both may be 0; Spark refuses a window that begins with the end, or ends with the beginning.
    bounds = [Window.unboundedPreceding, -3, 0, 0, 2, Window.unboundedFollowing]
    first, second = (sorted(rng.sample(bounds, 2)) for _ in range(2))
    windows = [
        keys,
        keys.orderBy("id", "a", "b").rowsBetween(*first),
        keys.orderBy("id").rangeBetween(*second),
    ]
    made = {name: most(name).over(rng.choice(windows)) for name in ("a", "id")}
    return frame.select("id", made["a"].alias("a"), made["id"].cast("string").alias("b"), "c")


# --- Spark's own ----------------------------------------------------------------------------------


def _natives(frame: DataFrame, rng: random.Random) -> DataFrame:
    return rng.choice(
        [
            lambda: frame.orderBy("id", "a", "b").limit(rng.choice([0, 5, 50])),
            lambda: frame.union(frame),
            lambda: frame.repartition(2, "id"),
            lambda: frame.join(frame.select("id").distinct(), "id"),
            lambda: frame.selectExpr("id", "cast(b as double) / nullif(a, 0) a", "b", "c"),
            lambda: frame.selectExpr("id", "a", "string(cast(concat(b, 'x') as int)) b", "c"),
        ]
    )()


STEPS = (_maps, _selects, _filters, _groups, _cogroups, _aggregates, _windows)


@pytest.mark.parametrize(("seed", "live"), SEEDS)
def test_query(spark, set_option, seed, live):
    rng = random.Random(seed)
    for option, choices in OPTIONS.items():
        set_option(option, rng.choice(choices))
    kind = rng.choice(list(TYPES))
    number = rng.randrange(1 << 30)
    firsts = [*STEPS, *([_tables] if live else [])]

    def way(switch: str) -> list[str]:
        set_option(FUNCTIONS, switch)
        steps = random.Random(number)
        frame = firsts[seed % len(firsts)](_frame(spark, steps, kind), steps)
        for _ in range(steps.randrange(3)):
            frame = steps.choice([*firsts, _natives])(frame, steps)
        return sorted(outcome(frame))

    compare(f"random {seed}", way, live=live)


# --- columns that stages pass on ------------------------------------------------------------------

PASSED_ON = (
    *("tiny", "small", "number", "single", "half", "day", "time", "local"),
    *("flag", "exact", "text"),
)
STORED = "spark.sql.inMemoryColumnarStorage.batchSize"
OF_COLUMNS: dict[str, list[Any]] = {
    ROWS: [7, 40, 10_000],
    MOST_BYTES: [2000, 2**31 - 1],
    ADAPTIVE: [True, False],
    **{f"spark.sql.{form}.columnarReaderBatchSize": [16, 4096] for form in ("parquet", "orc")},
    STORED: [16, 10_000],
    "spark.sql.columnVector.offheap.enabled": [True, False],
    "spark.sql.codegen.splitConsumeFuncByOperator": [True, False],
}


def _stored(frame: DataFrame, rng: random.Random, folder: Path) -> DataFrame:
    """The frame's rows from a file, with the columns of its folders and the file's own, or from
    memory, or from a function."""
    form = rng.choice(["parquet", "parquet", "orc", "csv", "json", "cache", "function", "empty"])
    kept = frame.selectExpr("*", "if(id % 4 = 0, null, int(id % 3)) p")
    if form == "cache":
        return kept.cache()
    if form == "function":
        return kept.mapInArrow(_by_value(rng.choice([_same, _cuts])), kept.schema)
    if form == "empty":
        form, kept = "parquet", kept.where("id < 0")
    path = str(folder / str(len(list(folder.iterdir()))))
    kept.write.format(form).partitionBy(*(["p"] if rng.random() < 0.5 else [])).save(path)
    read = frame.sparkSession.read.format(form).schema(kept.schema).load(path)
    if form == "parquet" and rng.random() < 0.5:
        return read.selectExpr("*", "_metadata.row_index", "_metadata.file_block_start")
    return read


def _renamed(frame: DataFrame) -> DataFrame:
    """The same columns under names of their own, the first of which is id."""
    return frame.toDF("id", *(f"k{n}" for n in range(1, len(frame.columns))))


def _passes(frame: DataFrame, rng: random.Random) -> DataFrame:
    """Rows that are left out, and columns in other places, under other names, and twice."""
    columns = [*rng.choices(frame.columns, k=rng.randrange(1, 7)), "id * 2 + 1", "-id"]
    passing = ["id % 10 != 3", "id > 70", "id < 90", "coalesce(id % 4 != 0, true)", "id % 40 = 3"]
    if rng.random() < 0.5:
        frame = frame.where(rng.choice(passing))
    columns = ["id", *rng.sample(columns, k=rng.randrange(len(columns)))]
    return _renamed(frame.selectExpr(*columns))


def _joins(frame: DataFrame, rng: random.Random) -> DataFrame:
    """Joins with broadcast rows: each row gets some partners, none, or more than a batch takes."""
    partners = frame.sparkSession.range(0, 300, 1, 1).selectExpr(
        f"id % {rng.choice([3, 40, 400])} id", "id j"
    )
    few = functions.broadcast(partners.where("j % 3 != 1"))
    other = functions.broadcast(frame.where("id % 3 = 0").selectExpr("id + 1 other", "id"))
    joined = rng.choice(
        [
            lambda: frame.join(few, "id"),
            lambda: frame.join(few, "id", "left"),
            lambda: few.join(frame, "id", "right"),
            lambda: frame.join(few, "id", "left_semi"),
            lambda: frame.join(few, "id", "left_anti"),
            lambda: frame.join(other.drop("other"), "id"),
            lambda: frame.join(other.drop("id"), expr("id = other")),
            lambda: frame.where("id % 5 = 0 or id in (select 3 * id from range(20))"),
        ]
    )()
    return _renamed(joined)


def _others(frame: DataFrame, rng: random.Random) -> DataFrame:
    """Queries that end a stage, or make several rows of one."""
    return rng.choice(
        [
            lambda: frame.union(frame.where("id > 9")),
            lambda: frame.repartition(2, "id"),
            lambda: _renamed(frame.selectExpr("*", "explode(sequence(0, id % 3))")),
            lambda: _renamed(frame.withColumn("z", arrays("long", lambda x: x)("id"))),
        ]
    )()


def _ends(frame: DataFrame, rng: random.Random) -> DataFrame:
    same = arrays("long", lambda x: x)("id")
    some = rng.sample(frame.columns, k=rng.randrange(len(frame.columns)))
    return rng.choice(
        [
            lambda: frame.withColumn("z", same),
            lambda: frame.select(*some, same, "id"),
            lambda: frame.mapInArrow(_by_value(_same), frame.schema),
        ]
    )()


@pytest.mark.parametrize(("seed", "live"), [*SEEDS[:3], *SEEDS[SOME:]])
def test_columns_that_stages_pass_on(spark, set_option, tmp_path, seed, live):
    rng = random.Random(seed)
    for option, choices in OF_COLUMNS.items():
        set_option(option, rng.choice(choices))
    rows = _stored(_frame(spark, rng, rng.choice(PASSED_ON), (150, 400)), rng, tmp_path)
    number = rng.randrange(1 << 30)

    def way(switch: str) -> list[str]:
        set_option(FUNCTIONS, switch)
        steps = random.Random(number)
        frame = _passes(rows, steps)
        for _ in range(steps.randrange(4)):
            frame = steps.choice([_passes, _joins, _others])(frame, steps)
        return sorted(outcome(_ends(frame, steps)))

    compare(f"columns passed on {seed}", way, live=live)
    rows.unpersist()


def _many(frame: DataFrame) -> dict[str, Callable[[], DataFrame]]:
    """Queries over groups that are joined to requests."""
    groups = frame.groupBy("key")
    mean = series("double", lambda x: x.mean(), float)
    text = series("string", lambda x, y: f"{x.dtype} {y.dtype} {len(x)} {y.max()}", str)
    window = Window.partitionBy("key")

    def told(key: Any, frame: pd.DataFrame) -> pd.DataFrame:
        return frame.assign(t=f"{key} {[*frame.dtypes]}", v=frame.v - frame.v.mean())

    def both(left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
        return left.assign(t=f"{[*left.dtypes]} {[*right.dtypes]} {len(right)}")

    return {
        "frames": lambda: groups.applyInPandas(told, frame.schema),
        "cogroups": lambda: groups.cogroup(
            frame.where("id % 3 = 0 or id > 900").groupBy("key")
        ).applyInPandas(both, frame.schema),
        "aggregates": lambda: groups.agg(mean("v"), text("n", "f"), mean("n")),
        "partitions": lambda: frame.select(
            "id", text("n", "f").over(window), mean("v").over(window)
        ),
        "windows": lambda: frame.select(
            "id", text("n", "f").over(window.orderBy("id").rowsBetween(-2, 1))
        ),
    }


# Shapes of groups: rows, key, whether n is null, whether f is null, rows of a batch.
SHAPES = {
    "all_sizes": (
        *(1500, "if(id < 800, id, if(id < 1100, id % 40, -1))", "id % 3 = 0", "id % 7 < 2"),
        150,
    ),
    "nulls": (6000, "id % 300", "id % 300 < 200 or id % 41 > 0", "id % 53 > 0", 10_000),
    "single_rows": (5000, "id", "id % 2 = 0", "id % 3 = 0", 10_000),
    "beyond_batches": (9000, "id % 9", "id % 9 > 3 and id % 5 = 0", "id % 700 = 0", 150),
    "skew": (40_000, "if(id % 10 > 0, -1, id)", "id % 4000 = 0", "id % 3 = 0", 10_000),
    "many_groups": (26_000, "id % 20000", "id % 7 = 0", "id % 11 = 0", 10_000),
}


@pytest.mark.parametrize("query", ["frames", "cogroups", "aggregates", "partitions", "windows"])
@pytest.mark.parametrize(
    ("shape", "live"),
    [
        ("all_sizes", False),
        *(pytest.param(shape, True, marks=pytest.mark.long) for shape in SHAPES),
    ],
)
def test_many_groups(spark, set_option, query, shape, live):
    """Groups of one row and of more rows than a batch has; nulls in some groups, or all."""
    count, key, no_n, no_f, rows_of_batch = SHAPES[shape]
    set_option(ROWS, rows_of_batch)
    rows = spark.range(count, numPartitions=2).selectExpr(
        "id",
        f"{key} key",
        f"if({no_n}, null, id) n",
        f"if({no_f}, null, id % 2 = 0) f",
        "if(id % 40 = 3, null, id / 4D) v",
        "if(id % 5 = 0, null, concat('t', id)) t",
    )

    def way(switch: str) -> list[str]:
        set_option(FUNCTIONS, switch)
        found = sorted(outcome(_many(rows)[query]()))
        assert len(found) > 1  # an error is one text
        return found

    compare(f"many groups {query}", way, live=live)


@pytest.mark.parametrize("switch", ["on", "off"])
def test_conversions_replace_sparks_unless_they_are_off(spark, set_option, switch):
    set_option(FUNCTIONS, "on")
    set_option("spark.shmring.conversions", switch)

    def callers(frame: pd.DataFrame) -> pd.DataFrame:
        return frame.assign(t=" ".join(each.function for each in inspect.stack()))

    rows = spark.range(100, numPartitions=1).selectExpr("id", "'' t")
    told = rows.groupBy((col("id") % 50).alias("key")).applyInPandas(callers, rows.schema)
    by_conversion = ["_compute" in row["t"].split() for row in told.collect()]
    assert len(by_conversion) == 100
    assert any(by_conversion) == (switch == "on")

    def calls(_: int) -> str:
        return " ".join(each.function for each in inspect.stack())

    told = rows.select(functions.udf(calls, "string", useArrow=True)("id").alias("t"))
    by_conversion = ["_called" in row["t"].split() for row in told.collect()]
    assert by_conversion == [switch == "on"] * 100
