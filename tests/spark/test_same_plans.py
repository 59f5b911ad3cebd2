"""Spark's rules put the same nodes around functions over rings as around its own.

Some of these rules look for classes of nodes, so a node over rings has to be of the same classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from direct import FUNCTIONS
from pyspark.sql import DataFrame, Window, functions
from pyspark.sql.functions import col
from unchanged import ADAPTIVE, arrays, arrays_iterator, series

# Nodes that only convert between rows and columns, or stand for the node below them.
CONVERTS = {"ColumnarToRow", "RowsToArrow", "InputAdapter", "WholeStageCodegen"}
COLUMNS = "k long, v long, u long"
SHUFFLED = "spark.sql.shuffle.partitions"


def _identity(batches: Any) -> Any:
    yield from batches


class _Table:
    def eval(self, batch: pa.RecordBatch) -> Iterator[pa.Table]:
        yield pa.table(batch)


def _cogroup(f: DataFrame) -> DataFrame:
    other = f.groupBy("k").agg(functions.max("v").alias("w"))
    return (
        f.groupBy("k").cogroup(other.groupBy("k")).applyInArrow(lambda left, right: left, COLUMNS)
    )


def _first(window: Any) -> Any:
    return arrays("long", lambda x: x[0], pa.Scalar)("v").over(window).alias("v")


def _total(column: str = "v") -> Any:
    return series("long", lambda x: int(x.sum()), int)(column).alias(column)


KINDS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "mapInArrow": lambda f: f.mapInArrow(_identity, COLUMNS),
    "mapInPandas": lambda f: f.mapInPandas(_identity, COLUMNS),
    "udf": lambda f: f.select("k", arrays("long", lambda x: pc.add(x, 1))("v").alias("v"), "u"),
    "iterator": lambda f: f.select(
        "k", arrays_iterator("long", lambda parts: iter(parts))("v").alias("v"), "u"
    ),
    "udtf": lambda f: functions.arrow_udtf(_Table, returnType=COLUMNS)(f.asTable()),
    "lateral": lambda f: f.lateralJoin(
        functions.udtf(
            type("Twice", (), {"eval": lambda self, x: [(2 * x,)]}),
            returnType="w long",
            useArrow=True,
        )(col("v").outer())
    ).select("k", col("w").alias("v"), "u"),
    "applyInArrow": lambda f: f.groupBy("k").applyInArrow(lambda g: g, COLUMNS),
    "applyInPandas": lambda f: f.groupBy("k").applyInPandas(lambda g: g, COLUMNS),
    "cogroup": _cogroup,
    "aggregate": lambda f: f.groupBy("k").agg(_total(), _total("u")),
    "window": lambda f: f.select("k", _first(Window.partitionBy("k").orderBy("v")), "u"),
    "window_without_order": lambda f: f.select("k", _first(Window.partitionBy("k")), "u"),
}


def _around(f: DataFrame, kind: Callable[[DataFrame], DataFrame]) -> list[DataFrame]:
    """Queries in which a rule of Spark's may look at the node of a function."""
    by = Window.partitionBy("k")
    made = kind(f)
    summed = f.groupBy("k").agg(functions.sum("v").alias("v"), functions.sum("u").alias("u"))
    other = f.groupBy("k").agg(functions.min("v").alias("least"))
    return [
        made,
        kind(f.repartition(4, "k").sortWithinPartitions("k", "v")),
        made.sortWithinPartitions("k").sortWithinPartitions("k", "v"),
        kind(made),
        kind(f.withColumn("v", functions.sum("v").over(by))),
        made.select("k", functions.sum("v").over(by).alias("v")),
        made.select("k", functions.max("v").over(by.orderBy("v"))),
        made.select("k", functions.max("v").over(by.orderBy("u"))),
        kind(f.select("k", functions.max("v").over(by).alias("v"), "u"))
        .select("k", _first(by.orderBy("u")), "u")
        .select("k", functions.sum("v").over(by)),
        made.orderBy("v").limit(3),
        kind(f.orderBy("v")).limit(3),
        kind(f.orderBy("v")).offset(2),
        kind(f.orderBy("v").limit(4)),
        made.groupBy("k").count(),
        kind(summed).groupBy("k").count(),
        kind(summed).union(kind(summed.where("k > 2"))),
        made.join(other, "k"),
        kind(summed).join(other, "k").where("least > 1"),
        made.join(other.hint("merge"), "k").select("k", functions.sum("v").over(by)),
        made.join(other.hint("shuffle_hash"), "k").sortWithinPartitions("k"),
        made.dropDuplicates(["k"]),
    ]


def _tree(plan: Any) -> list[Any]:
    """Name of a plan's node, and the trees of its children; nodes that convert are left out."""
    name = str(plan.nodeName()).partition(" (")[0].replace(" over rings", "")
    if name == "AdaptiveSparkPlan":
        return _tree(plan.executedPlan())
    if name.endswith("QueryStage"):
        return _tree(plan.plan())
    children = plan.children()
    below = [_tree(children.apply(i)) for i in range(children.size())]
    if name in CONVERTS:
        return below[0]
    if name == "Project" and below[0][0] == "ArrowAggregatePython":
        return below[0]  # Spark's own node of aggregates projects its results itself
    return [name, *below]


COMMON = (("udf", False), ("window_without_order", False))


@pytest.mark.parametrize(
    ("name", "adaptive"),
    [
        pytest.param(name, adaptive, marks=[] if (name, adaptive) in COMMON else pytest.mark.long)
        for name in KINDS
        for adaptive in (False, True)
    ],
)
def test_plan_is_that_of_sparks_own_functions(spark, set_option, name, adaptive):
    set_option(ADAPTIVE, adaptive)
    set_option(SHUFFLED, 3)
    set_option("spark.sql.autoBroadcastJoinThreshold", -1)
    frame = spark.range(40, numPartitions=2).selectExpr("id % 5 k", "id v", "-id u")

    def planned(switch: str) -> list[Any]:
        set_option(FUNCTIONS, switch)
        queries = _around(frame, KINDS[name])
        if adaptive:
            for query in queries:
                query.collect()
        return [_tree(query._jdf.queryExecution().executedPlan()) for query in queries]

    for on, off in zip(planned("on"), planned("off"), strict=True):
        assert on == off
