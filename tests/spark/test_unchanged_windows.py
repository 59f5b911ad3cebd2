"""Functions of windows do over rings what they do over the socket: a table of cases."""

from __future__ import annotations

import os
from decimal import Decimal
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from direct import ROWS, TYPES, columns_of
from pyspark.sql import DataFrame, Window, functions
from pyspark.sql.functions import col
from unchanged import (
    ADAPTIVE,
    LARGE,
    MOST_BYTES,
    WHOLE_STAGE,
    Case,
    Cases,
    Given,
    adds_to,
    arrays,
    compare,
    for_each,
    series,
    series_iterator,
    way_of,
)

CASES: Cases = {}
case = adds_to(CASES)

SHUFFLED = "spark.sql.shuffle.partitions"
IN_MEMORY = "spark.sql.windowExec.buffer.in.memory.threshold"
SPILL = "spark.sql.windowExec.buffer.spill.threshold"

BEGIN, END = Window.unboundedPreceding, Window.unboundedFollowing


def _whole() -> Any:
    return Window.partitionBy("k")


def _sorted() -> Any:
    return _whole().orderBy("id")


def _sliding() -> Any:
    return _sorted().rowsBetween(-2, 1)


FRAMES = {
    "unbounded": _whole,
    "of_peers": lambda: _whole().orderBy("tens"),
    "growing": lambda: _sorted().rowsBetween(BEGIN, 0),
    "shrinking": lambda: _sorted().rowsBetween(0, END),
    "sliding": _sliding,
    "behind": lambda: _sorted().rowsBetween(-4, -3),
    "ahead": lambda: _sorted().rowsBetween(1, 3),
    "range": lambda: _sorted().rangeBetween(-9, 20),
    "growing_range": lambda: _sorted().rangeBetween(BEGIN, -7),
    "range_of_peers": lambda: _whole().orderBy(col("tens").desc()).rangeBetween(-1, 1),
    "without_partition": lambda: Window.orderBy("id").rowsBetween(-1, 1),
    "without_anything": lambda: Window.partitionBy(),
}


def _mean() -> Any:
    return series("double", lambda x: x.mean(), float)


def _sum() -> Any:
    return arrays("long", lambda x: pc.sum(x), pa.Scalar)


def _keyed(s: Given) -> DataFrame:
    return s.t.selectExpr("id % 7 k", "int(id / 10) tens", "if(id % 5 = 1, null, half) n", "*")


def _over(window: Any) -> Case:
    return lambda s: [
        _keyed(s).select("*", function.over(window())).orderBy("id")
        for function in (_mean()("n"), _sum()("id"))
    ]


for name, window in FRAMES.items():
    CASES[f"window_{name}"] = _over(window), {WHOLE_STAGE: name < "r"}


def frames_of_all_sorts(s: Given) -> list[DataFrame]:
    """Several functions beside each other."""
    both = series("string", lambda x, y: f"{len(x)} {x.min()} {y.max()}", str)
    mean, total, few = _mean(), _sum(), _sliding()
    keyed = _keyed(s)
    return [
        frame.orderBy("id")
        for frame in (
            keyed.select(
                "id",
                both("id", "text").over(few),
                mean("n").over(_whole()),
                mean(col("n") + 1).over(FRAMES["growing"]()),
                both(y="text", x="id").over(few),
                mean("n").over(few),
            ),
            keyed.select(
                "id",
                total("id").over(few),
                total(col("id") * 2).over(_sorted()),
                functions.sum("id").over(few),
                functions.row_number().over(_sorted()),
                functions.lag("id").over(_sorted()),
            ),
            keyed.select("id", total("id").over(few) + mean("n").over(_whole())),
            keyed.withColumn("k", total("id").over(_whole())).select(
                "id", mean("id").over(_sorted())
            ),
        )
    ]


for name, options in {
    "": {},
    "_one_row_a_batch": {ROWS: 1, ADAPTIVE: False},
    "_small_batches": {ROWS: 7, MOST_BYTES: 300, LARGE: True},
    "_one_batch": {ROWS: 0, WHOLE_STAGE: False},
    "_that_spill": {IN_MEMORY: 5, SPILL: 20, SHUFFLED: 1},
}.items():
    CASES[f"windows{name}"] = frames_of_all_sorts, options


@case()
def windows_of_nulls(s):
    null = _keyed(s).selectExpr(
        "if(k = 3, null, k) k", "if(id % 9 = 2, null, id) o", "id", "cast(null as double) none", "n"
    )
    ordered = Window.partitionBy("k").orderBy("o", "id")
    return [
        null.select("id", _mean()("n").over(ordered.rowsBetween(-1, 0))).orderBy("id"),
        null.select("id", _sum()("o").over(ordered)).orderBy("id"),
        null.select("id", _mean()("none").over(_whole())).orderBy("id"),
        null.select("id", series("long", lambda x: None, int)("n").over(_whole())).orderBy("id"),
    ]


@case()
def windows_of_nothing(s):
    empty, first = _keyed(s).where("id < 0"), _keyed(s).where("id < 1")
    return [
        frame.select("id", _mean()("n").over(window))
        for frame in (empty, first)
        for window in (_whole(), _sliding(), Window.partitionBy())
    ]


@case({"spark.sql.session.timeZone": "Asia/Kolkata"})
def windows_of_every_type(s):
    typed = s.spark.range(60, numPartitions=2).selectExpr("id", *columns_of(TYPES, "some"))
    window = Window.partitionBy("flag").orderBy("id")
    kinds = [(name, kind) for name, kind in typed.dtypes if name != "id"]
    keys = [name for name, kind in kinds if "map" not in kind]
    firsts = (arrays(kind, lambda x: x[0], pa.Scalar)(name) for name, kind in kinds)
    lasts = (series("string", lambda x: str(x.iloc[-1]), str)(name) for name in keys)
    return [
        typed.select("id", *(first.over(window) for first in firsts)).orderBy("id"),
        typed.select("id", *(last.over(window) for last in lasts)).orderBy("id"),
        *(
            typed.select("id", _sum()("id").over(Window.partitionBy(name))).orderBy("id")
            for name in keys
        ),
    ]


@case()
def windows_of_other_results(s):
    exact = series("decimal(10,2)", lambda x: Decimal(len(x)) / 4, Decimal)
    pairs = arrays("a long, b string", lambda x: pa.scalar({"a": len(x), "b": "x"}), pa.Scalar)
    lists = series("array<long>", lambda x: list(x[:3]), list)
    days = series("date", lambda x: pd.Timestamp("2026-02-03").date(), Any)
    return [
        _keyed(s).select("id", function("id").over(window)).orderBy("id")
        for function in (exact, pairs, lists, days)
        for window in (_whole(), _sliding())
    ]


@case({ROWS: 10_000})
def window_that_is_larger_than_the_rings(s):
    uneven = s.spark.range(50_000, numPartitions=2).selectExpr(
        "if(id < 5, 0, 1) k", "id", "repeat('x', 300) text"
    )
    longest = arrays("long", lambda x: pc.max(pc.utf8_length(x)), pa.Scalar)
    counts = series("long", lambda x: len(x), int)
    return [
        uneven.select("*", longest("text").over(_whole()).alias("n")).selectExpr(
            "sum(n)", "sum(id * k)", "sum(length(text))"
        ),
        uneven.where("id < 9000")
        .select("*", counts("text").over(_sliding()).alias("n"))
        .selectExpr("sum(n * id)", "sum(length(text))"),
    ]


@case()
def windows_of_a_file_and_among_others(s):
    file = s.file(_keyed(s))
    mean = file.select("*", _mean()("n").over(_whole()).alias("m"))
    return [
        mean.orderBy("id"),
        mean.where("m > 260").groupBy("k").agg(functions.max("m")).orderBy("k"),
        mean.union(mean).orderBy("id", "m").limit(60),
        mean.alias("a").join(mean.alias("b"), "id").orderBy("id"),
        mean.mapInArrow(lambda batches: batches, mean.schema).orderBy("id"),
    ]


@case({ROWS: 3})
def windows_that_stop_early(s):
    one = _keyed(s).coalesce(1)
    return [
        one.select("id", _mean()("n").over(Window.partitionBy("id"))).limit(7),
        one.select("id", _sum()("id").over(Window.orderBy("id"))).limit(2),
        lambda: one.select(_mean()("n").over(Window.partitionBy("id"))).isEmpty(),
    ]


def _that_fails(function: Any) -> Case:
    def fails(s: Given) -> Any:
        one = s.one.selectExpr("id % 7 k", "*")
        window = _sliding()
        return [
            one.select(series("double", function, float)("half").over(_whole())),
            one.select(arrays("double", function, pa.Scalar)("half").over(window)),
        ]

    return fails


for name, failing in {
    "raises": lambda x: (_ for _ in ()).throw(ValueError(f"of {len(x)} rows")),
    "ends_its_process": lambda x: os._exit(3),
}.items():
    CASES[f"window_that_{name}"] = _that_fails(failing), {}


@case()
def windows_that_spark_refuses(s):
    parts = series_iterator("double", lambda batches: 1.5, float)
    mixed = _mean()("n").over(_whole()), _sum()("id").over(_whole())
    return [_keyed(s).select(parts("id").over(_whole())), _keyed(s).select(*mixed)]


# --- both ways ----------------------------------------------------------------------------------


RARE = (
    *("window_g", "window_s", "window_b", "window_range_of", "window_w", "windows_one"),
    *("windows_small", "windows_of_other", "windows_of_nulls", "windows_of_every"),
    "windows_that_spill",
)


@for_each(CASES, newer="windows_that_spark_refuses", rare=RARE)
def test_case(spark, set_option, tmp_path, name, live):
    set_option(SHUFFLED, 3)
    compare(name, way_of(spark, set_option, tmp_path, *CASES[name]), live=live)
