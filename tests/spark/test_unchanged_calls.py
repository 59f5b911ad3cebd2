"""UDFs and functions of groups do over rings what they do over the socket: a table of cases."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import mapped
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from direct import ROWS
from pyspark.sql import functions
from pyspark.sql.functions import col
from unchanged import (
    WHOLE_STAGE,
    Case,
    Cases,
    Given,
    adds_to,
    arrays,
    arrays_iterator,
    compare,
    for_each,
    series,
    series_iterator,
    values,
    way_of,
)

SIMPLIFIED = "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled"

CASES: Cases = {}
case = adds_to(CASES)


# --- UDFs ---------------------------------------------------------------------------------------


@case()
def several_udfs_in_one_projection(s):
    plus = series("double", lambda x, y: x + y)
    both = series("a long, b string", lambda x, y: pd.DataFrame({"a": x, "b": y}), pd.DataFrame)
    doubled = arrays("long", lambda x: pc.multiply(x, 2))
    shouts = series("string", lambda x: x.str.upper() + "!")
    cast = series("int", lambda x: x * 2)
    return [
        s.t.select(plus("id", "half")),
        s.t.select(
            "*",
            plus("id", "half"),
            plus("half", "half"),
            plus(col("id") + 1, "half"),
            shouts("text"),
        ),
        s.t.select("*", plus(y=col("half"), x=col("id")), both("id", "text"), cast("half")),
        s.t.select("*", doubled("id"), doubled(col("id") % 7)),
        s.t.select("*", plus(plus("half", "id"), "id"), shouts(shouts("text"))),
        s.t.select("*", plus(doubled("id"), "half"), doubled(doubled("id"))),
    ]


@case()
def udfs_everywhere(s):
    odd = series("boolean", lambda x: x % 2 == 1)
    rest = arrays("long", lambda x: pc.subtract(x, pc.multiply(pc.divide(x, 5), 5)))
    near = series("boolean", lambda x, y: (x - y).abs() < 2)
    few = s.t.limit(20)
    return [
        s.t.where(odd("id") & (col("id") > 9)),
        s.t.where(odd("id")).select("text", rest("id")).where(rest(col("id")) > 2),
        few.alias("a").join(few.alias("b"), near(col("a.id"), col("b.id"))).sort("a.id", "b.id"),
        few.orderBy(rest("id").desc(), "id"),
        s.t.groupBy(rest("id"))
        .agg(functions.sum(rest("id")), functions.count("*"))
        .sort(functions.col("count(1)")),
        s.t.groupBy("id")
        .agg(functions.max("half").alias("m"))
        .select(rest("id"), odd("m"))
        .sort("m"),
        few.select(functions.when(col("id") > 3, rest("id")).otherwise(rest(col("id") + 1))),
    ]


@case()
def udf_of_literals_and_nulls(s):
    plus = series("double", lambda x, y: x + y)
    null = s.t.selectExpr("if(id % 2 = 0, null, id) n", "cast(null as string) none", "id")
    return [
        s.t.select(plus(functions.lit(1), "half")),
        null.select(series("int", lambda x: x)("n"), series("string", lambda x: x)("none")),
        null.select(
            arrays("long", lambda x: x)("n"), values("long", lambda x: x)("n"), plus("n", "id")
        ),
    ]


@case()
def udf_of_every_type(s):
    return [
        s.typed.select(*(made(kind, lambda x: x)(name) for name, kind in s.typed.dtypes))
        for made in (arrays, values, series)
    ]


def _udf_that_fails(function: Any) -> Case:
    return lambda s: [
        s.one.select(series("double", function)("half")),
        s.one.select(arrays("double", function)("half")),
    ]


for name, failing in {
    "udf_that_raises": lambda x: (_ for _ in ()).throw(ValueError(f"of {len(x)} rows")),
    "udf_that_loses_a_row": lambda x: x[:-1],
    "udf_that_ends_its_process": lambda x: os._exit(3),
}.items():
    CASES[name] = _udf_that_fails(failing), {SIMPLIFIED: name == "udf_that_raises"}

for number, function in enumerate(mapped.ITERATORS):

    def of_iterators(s, function=function, beside=("*",)[: number % 2]):
        return [
            s.one.select(*beside, arrays_iterator("long", lambda b: function(b))("id")),
            s.one.select(
                *beside, series_iterator("long", lambda b: mapped.of_series(function)(b))("id")
            ),
            s.t.where("id < 0").select(
                *beside, arrays_iterator("long", lambda b: function(b))("id")
            ),
        ]

    CASES[f"iterators_{function.__name__}"] = of_iterators, {}


@case({ROWS: 40})
def iterators_of_tuples_and_structs(s):
    def joins(batches: Iterator[tuple[pd.Series, pd.Series]]) -> Iterator[pd.Series]:
        for first, second in list(batches):
            yield first + second

    def splits(batches: Iterator[pd.Series]) -> Iterator[pd.DataFrame]:
        for batch in batches:
            for part in (batch[:17], batch[17:]):
                yield pd.DataFrame({"n": part, "twice": part * 2})

    return [
        s.t.select("*", functions.pandas_udf(joins, "double")("half", "id")),
        s.t.select("*", functions.pandas_udf(splits, "n long, twice long")("id")),
    ]


@case()
def values_of_all_sorts(s):
    less = values("double", lambda x, y: x - y)
    once = values("long", lambda x: None if x % 5 == 0 else x + 1)
    columns = [
        *(
            once("id"),
            values("string", lambda text: text * 2)("text"),
            less(y=col("id"), x=col("half")),
        ),
        values("a long, b string", lambda x: {"a": x, "b": str(x)})("id"),
        values("array<long>", lambda x: [x, None])("id"),
        *(less(less("id", "half"), "half"), once(once(col("id") + 1))),
    ]
    return [
        s.t.select("*", *columns),
        s.t.select(columns[0]),
        s.t.select(columns[0], less("id", "half")),
    ]


@case(
    {
        "spark.sql.execution.pythonUDF.arrow.enabled": True,
        "spark.sql.execution.pythonUDF.arrow.concurrency.level": 2,
    }
)
def values_that_spark_gives_to_arrow(s):
    return s.t.select("id", functions.udf(lambda x: x * 2.5, "double")("half"))


# --- groups -------------------------------------------------------------------------------------


GROUPED = "k long, n long, of string"


@case()
def groups_of_arrow(s):
    def counts(key: Any, table: pa.Table) -> pa.Table:
        return pa.table({"k": [key[0].as_py()], "n": [table.num_rows], "of": [mapped.sizes(table)]})

    def batches(key: Any, parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for part in parts:
            yield pa.record_batch({"k": [key[0].as_py()], "n": [part.num_rows], "of": ["part"]})

    def stops(parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        part = next(parts)
        yield pa.record_batch({"k": part.column("k"), "n": part.column("id"), "of": part["text"]})

    def nothing(parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return iter([])

    def raises(table: pa.Table) -> pa.Table:
        if table.column("k")[0].as_py() == 3:
            raise ValueError("of the third group")
        return pa.table({"k": [0], "n": [0], "of": ["before"]})

    each = (counts, batches, stops, nothing, raises)
    return [s.grouped.applyInArrow(function, GROUPED) for function in each]


@case()
def groups_of_pandas(s):
    def counts(key: Any, table: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"of": table["text"].max(), "k": key[0], "n": [len(table)]})

    def parts(key: Any, frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for part in frames:
            yield pd.DataFrame({"k": key[0], "n": [len(part)], "of": "part"})

    return [
        s.grouped.applyInPandas(function, GROUPED)
        for function in (counts, parts, lambda t: pd.DataFrame())
    ]


@case({"spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName": False})
def columns_of_groups_by_place(s):
    return [
        s.grouped.applyInArrow(
            lambda t: pa.table({"a": t["k"], "b": t["id"], "c": t["text"]}), GROUPED
        ),
        s.grouped.applyInPandas(
            lambda t: pd.DataFrame({"a": t["k"], "b": t["id"], "c": t["text"]}), GROUPED
        ),
    ]


def _by(expressions: list[str]) -> Case:
    def by(s: Given) -> Any:
        keys = [functions.expr(each) for each in expressions]
        keyed = s.t.limit(60).selectExpr(
            "id % 7 k", "id", "half", "if(id % 5 = 0, null, text) text"
        )
        return [
            keyed.groupBy(*keys).applyInArrow(lambda table: table, keyed.schema),
            keyed.groupBy(*keys).applyInPandas(lambda table: table, keyed.schema),
            keyed.where("id < 0").groupBy(*keys).applyInArrow(lambda t: t, keyed.schema),
        ]

    return by


for keys in ([], ["k"], ["k", "text"], ["id % 3"]):
    CASES[f"groups_by_{'_and_'.join(keys) or 'nothing'}"] = _by(keys), {}


@case({ROWS: 100_000, WHOLE_STAGE: False})
def group_that_is_larger_than_the_rings(s):
    uneven = s.spark.range(50_000, numPartitions=1).selectExpr(
        "if(id < 5, 0, 1) k", "id", "repeat('x', 300) text"
    )
    same = uneven.groupBy("k").applyInArrow(lambda table: table, uneven.schema)
    return same.selectExpr("count(*)", "sum(id * k)", "sum(length(text))")


COGROUPED = "k long, n long, m long, of string"


@case()
def cogroups_of_arrow(s):
    def counts(key: Any, left: pa.Table, right: pa.Table) -> pa.Table:
        rows = {"n": [left.num_rows], "m": [right.num_rows]}
        return pa.table(
            {"k": [key[0].as_py()], **rows, "of": [f"{mapped.sizes(left)} {mapped.sizes(right)}"]}
        )

    def takes_left(left: pa.Table, right: pa.Table) -> pa.Table:
        return pa.table({"k": left["k"], "n": left["id"], "m": left["id"], "of": left["text"]})

    def raises(left: pa.Table, right: pa.Table) -> pa.Table:
        raise ValueError(f"of {left.num_rows} and {right.num_rows} rows")

    both = s.grouped.cogroup(s.other)
    return [both.applyInArrow(each, COGROUPED) for each in (counts, takes_left, raises)]


@case()
def cogroups_of_pandas(s):
    def counts(key: Any, left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
        sizes = {"n": [len(left)], "m": [len(right)]}
        return pd.DataFrame({"k": key[0], **sizes, "of": str(list(left) + list(right))})

    return s.grouped.cogroup(s.other).applyInPandas(counts, COGROUPED)


# --- aggregates ---------------------------------------------------------------------------------


@case()
def aggregates(s):
    mean = series("double", lambda x: x.mean(), float)
    both = series("string", lambda x, y: f"{x.max()} {y.min()}", str)
    total = arrays("long", lambda x: pc.sum(x), pa.Scalar)
    third = functions.expr("id % 3")
    keyed = s.t.selectExpr("id % 7 k", "*")
    by = keyed.groupBy("k")
    return [
        by.agg(mean("id"), both("id", "text")),
        by.agg(both(y="text", x="id").alias("of")),
        keyed.groupBy(third).agg(mean(third + 1) + third, third * 2),
        keyed.agg(mean("id"), mean(col("id") + 1)),
        keyed.where("id < 0").agg(mean("id")),
        keyed.where("id < 0").groupBy("k").agg(mean("id")),
        keyed.groupBy("k", "text").agg(total("id")).where("text > '33'"),
        by.agg(mean(series("int", lambda x: x * 2)("half"))),
        by.agg(mean("id").alias("m")).where("m > 174").orderBy("m"),
    ]


@case()
def aggregates_of_iterators(s):
    parts = series_iterator("double", lambda b: sum(len(x) * 1000 + x.iloc[0] for x in b), float)
    first = arrays_iterator("long", lambda batches: len(next(batches)), int)
    by = s.t.groupBy((col("id") % 7).alias("k"))
    return [by.agg(parts("id")), by.agg(first("id"))]


@case()
def aggregates_that_fail(s):
    raises = series("long", lambda x: [][len(x)], int)
    mean = series("double", lambda x: x.mean(), float)
    return [
        s.grouped.agg(raises("id")),
        lambda: s.t.agg(mean("id"), functions.sum("id")).collect(),
    ]


# --- both ways ----------------------------------------------------------------------------------


RARE = (
    *("groups_by_k", "udf_that_e", "iterators_gives", "iterators_l", "values_that"),
    *("aggregates_of", "columns_of_groups"),
)


@for_each(CASES, newer="aggregates_of_iterators", rare=RARE)
def test_case(spark, set_option, tmp_path, name, live):
    compare(name, way_of(spark, set_option, tmp_path, *CASES[name]), live=live)
