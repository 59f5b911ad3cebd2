"""UDFs over rings above plans of every shape: results stand beside columns of the stage below."""

from __future__ import annotations

import threading
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from direct import FLAT, FUNCTIONS, ROWS, columns_of, metrics_of, plan_of
from pyspark.sql import DataFrame, Window, functions
from pyspark.sql.functions import broadcast, col, expr
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import ArrayType, LongType, StructType
from unchanged import (
    ADAPTIVE,
    MOST_BYTES,
    WHOLE_STAGE,
    Cases,
    Given,
    adds_to,
    arrays,
    arrays_iterator,
    compare,
    for_each,
    outcome,
    series,
    values,
    way_of,
)

CASES: Cases = {}
case = adds_to(CASES)
KINDS: dict[str, Callable[[], Any]] = {
    "pandas": lambda: series("double", lambda x, y: x + y),
    "arrow": lambda: arrays("double", lambda x, y: pc.add(x, y)),
    "value": lambda: values("double", lambda x, y: x + y),
}


def _other(s: Given) -> DataFrame:
    return s.spark.range(0, 400, 3).selectExpr("id", "id % 4 kind", "string(-id) name")


SHAPES: dict[str, Callable[[Given], DataFrame]] = {
    "file": lambda s: s.file(s.t),
    "filter": lambda s: s.file(s.t).where("id % 10 != 3"),
    "rows": lambda s: s.t,
    "join": lambda s: s.t.join(broadcast(_other(s)), "id", "left"),
    "many_partners": lambda s: s.t.where("id < 5").join(
        broadcast(_other(s).drop("id")), expr("kind = text")
    ),
    "merge": lambda s: s.t.join(_other(s).hint("merge"), "id"),
    "shuffle": lambda s: s.t.repartition(2, "text"),
    "coalesced": lambda s: s.t.repartition("text"),
    "sort": lambda s: s.t.sortWithinPartitions(col("text").desc()),
    "aggregate": lambda s: s.t.groupBy(expr("id % 90 id")).agg(
        functions.sum("half").alias("half"), functions.max("text").alias("text")
    ),
    "window": lambda s: s.t.withColumn(
        "n", functions.sum("half").over(Window.partitionBy(expr("id % 5")).orderBy("id"))
    ),
    "union": lambda s: s.t.union(s.t.where("id > 300")),
    "limit": lambda s: s.t.limit(120),
    "generate": lambda s: s.t.selectExpr("*", "explode(sequence(0, id % 3)) k"),
    "random": lambda s: s.t.selectExpr("*", "rand(3) r", "monotonically_increasing_id() m"),
    "function": lambda s: s.t.withColumn("half", KINDS["pandas"]()("half", "id")),
    "batches": lambda s: s.t.mapInArrow(lambda batches: batches, s.t.schema),
}


def _above(shape: str, kind: str) -> Any:
    def queries(s: Given) -> list[DataFrame]:
        frame, function = SHAPES[shape](s), KINDS[kind]()
        return [
            frame.withColumn("z", function("id", "half")).orderBy("id", *frame.columns[3:]),
            frame.select("text", function(col("id") + 1, functions.lit(0.5) * col("id")).alias("z"))
            .where("z > 90")
            .orderBy("z", "text"),
        ]

    return queries


for shape in SHAPES:
    for kind in KINDS if shape in ("filter", "join") else ("pandas",):
        CASES[f"{kind}_above_{shape}"] = _above(shape, kind), {}
for option in (ADAPTIVE, WHOLE_STAGE):
    for shape in ("join", "coalesced"):
        CASES[f"arrow_above_{shape}_without_{option}"] = _above(shape, "arrow"), {option: False}


@case()
def columns_of_every_type_beside(s):
    """In both ways of a row: as it was made, and as it was sent."""
    flat = s.spark.range(60, numPartitions=2).selectExpr("id", *columns_of(FLAT, "some"))
    same = {name: arrays(kind, lambda x: x)(name) for name, kind in flat.dtypes}
    return [
        flat.where("id > 3").withColumns({f"{name}_sent": each for name, each in same.items()}),
        s.typed.where("half > 1").withColumn("z", arrays("double", lambda x: x)("half")),
        s.typed.selectExpr("*", "big % 3 r").withColumn("z", arrays("bigint", lambda x: x)("r")),
    ]


@case({ROWS: 20})
def arguments_that_are_computed(s):
    plus = series("double", lambda x, y: x + y)
    odd = arrays("boolean", lambda x: pc.equal(pc.bit_wise_and(x, 1), 1))
    again = values("string", lambda x, y: f"{x} {y}")
    return [
        s.t.select("id", plus(col("half") * 2, functions.lit(1)), plus("half", col("half") * 2)),
        s.t.where(odd(expr("id div 3"))).select("id", again("text", functions.upper("text"))),
        s.t.select(again(plus("half", "id") + 1, plus(y=col("id") - 1, x="half"))),
        s.t.select(again(expr("array(id, 1)"), expr("struct(id, text)"))),
        s.t.select(again(expr("cast(text as int) / 0"), "id")),
    ]


@case()
def random_numbers_are_made_once(s):
    """They are seeded by the partition of a stage, or, as an argument, by the task."""
    same = arrays("double", lambda x: x)
    made = s.t.withColumn("r", functions.rand(5))
    below = made.withColumn("z", same("r"))
    argument = s.t.withColumn("z", same(functions.rand(7)))
    return [
        below.where("z != r"),
        below.union(below.where("id > 5")).coalesce(1),
        argument.union(argument),
        made.where("r > 0.3").select("r", same(col("r") * 2)),
    ]


@case({MOST_BYTES: 1000, "spark.sql.execution.arrow.pythonUDF.columnarInput.enabled": False})
def sizes_beside_wide_columns(s):
    """Spark counts the bytes of what a function gets, and not of what stands beside."""
    lengths = arrays("long", _lengths())
    wide = s.t.selectExpr("*", "repeat(text, 50) wide")
    return [frame.select("*", lengths("id")) for frame in (wide, s.file(wide), s.file(s.t))]


def _lengths() -> Any:
    """A function that tells how many rows it gets; workers do not find this module."""
    return lambda x: pa.array([len(x)] * len(x))


@case()
def many_fields_beside(s):
    same = series("long", lambda x: x)
    wide = [
        s.t.select("id", *(expr(f"id * {k} c{k}") for k in range(1, count)))
        for count in (99, 100, 101, 220)
    ]
    return [frame.where("c1 > 7").withColumn("z", same("c50")) for frame in wide]


@case()
def limits_above_and_below(s):
    twice = series("double", lambda x: x * 2)
    return [
        s.t.where("id > 9").select("id", twice("half")).limit(60),
        s.t.limit(60).select("id", twice("half")),
        s.t.orderBy(col("id").desc()).limit(30).select("id", twice("half")).limit(9),
        s.t.select("id", twice("half").alias("z")).orderBy("z").limit(9),
        s.t.where("id < 0").select("id", twice("half")),
    ]


@case()
def chains_of_kinds(s):
    plus = {kind: make() for kind, make in KINDS.items()}
    chain = plus["pandas"](plus["pandas"]("half", "id"), "id")
    other = plus["value"](plus["arrow"]("half", col("id") + 1), plus["pandas"]("id", "half"))
    late = arrays_iterator("double", lambda batches: (pc.add(x, 1) for x in batches))
    return [
        s.t.where("id % 7 > 2").select("id", chain, other, late("half")),
        s.t.select("id", late(chain + 1), plus["pandas"](late("half"), other)).where("id > 5"),
    ]


def _dictionaries(s: Given) -> list[DataFrame]:
    """Filters that pass most rows, few, and all or none of some batches, of columns whose pages
    all have a dictionary, or only the first pages do."""
    types = FLAT | {
        "few": "cast(id as decimal(5, 1))",
        "first": "if(n < 200, id, n)",
        "later": "if(n < 200, n, id)",
    }
    rows = s.spark.range(900, numPartitions=2).selectExpr("id n", "id % 40 id")
    pages = {"parquet.page.row.count.limit": 20, "parquet.dictionary.page.size": 400}
    same = arrays("long", lambda x: x)
    return [
        s.file(rows.selectExpr("n", *columns_of(types, nulls)), pages)
        .where(passing)
        .withColumn("z", same("big"))
        for nulls in ("none", "some")
        for passing in ("n % 10 != 3", "n % 40 = 3", "n div 48 % 2 = 0")
    ]


BATCH_ROWS = "spark.sql.parquet.columnarReaderBatchSize"
CASES["dictionaries"] = _dictionaries, {BATCH_ROWS: 16}
OFF_HEAP = {"spark.sql.columnVector.offheap.enabled": True}
CASES["dictionaries_off_heap"] = _dictionaries, {BATCH_ROWS: 16} | OFF_HEAP


@case({ROWS: 50, BATCH_ROWS: 16})
def columns_that_stages_pass_on(s):
    """Rows of columns that filters drop and joins drop or repeat; columns in other orders, under
    other names, of another reader and of a function, with nulls and without."""
    typed = s.spark.range(300, numPartitions=2).selectExpr("id n", *columns_of(FLAT, "some"))
    same = {name: arrays("long", lambda x: x)(name) for name in ("n", "big")}
    partners = s.spark.range(700).selectExpr("(id * 7) % 400 n", "id m")
    few, many = broadcast(partners.where("m < 300")), broadcast(partners.where("n % 3 = 1"))
    all_of_one = broadcast(partners.selectExpr("m - m + 7 n", "m"))
    file, orc = s.file(typed), s.file(typed.drop("local"), form="orc")
    return [
        *(frame.where("n % 10 != 3").withColumn("z", same["n"]) for frame in (file, orc)),
        file.where("n % 3 = 0").withColumn("made", same["n"]).where("n > 9").select("*", same["n"]),
        orc.selectExpr("day", "n", "n again", "big + 1 more").where("n > 9").select("*", same["n"]),
        file.join(few, "n").withColumn("z", same["big"]),
        orc.join(many, "n", "left").withColumn("z", same["n"]),
        file.join(many, "n", "left_semi").select("day", same["n"]),
        file.join(all_of_one, "n", "left").where("n < 9").select("day", "m", same["n"]),
    ]


def masked(frame):
    """Return a frame whose column is computed under the id of the column below, as by masks."""
    jvm, plan = frame.sparkSession._jvm, frame._jdf.queryExecution().analyzed()
    sql, seq = jvm.org.apache.spark.sql, jvm.org.apache.spark.api.python.PythonUtils.toSeq
    (column,) = jvm.scala.jdk.javaapi.CollectionConverters.asJava(plan.output())
    value = sql.catalyst.expressions.UnaryMinus(column, False)
    none = getattr(getattr(jvm.scala, "None$"), "MODULE$")
    # A second column, because Spark leaves out a projection whose ids are those of its child.
    ids = column.exprId(), sql.catalyst.expressions.NamedExpression.newExprId()
    columns = [
        sql.catalyst.expressions.Alias(value, name, each, seq([]), none, seq([]))
        for name, each in zip(("n", "more"), ids, strict=True)
    ]
    project = sql.catalyst.plans.logical.Project(seq(columns), plan)
    made = sql.classic.Dataset.ofRows(frame.sparkSession._jsparkSession, project)
    return DataFrame(made, frame.sparkSession)


@case()
def value_with_the_id_of_a_column(s):
    file = s.file(s.spark.range(30).selectExpr("id n"))
    same = arrays("long", lambda x: x)("n")
    return [masked(file).withColumn("z", same), masked(file.where("n > 3")).withColumn("z", same)]


@case()
def nulls_that_no_operator_above_reads(s):
    """Spark makes rows of all columns of a function, and raises if one declared without nulls has
    a null."""
    one = s.spark.range(1)

    def gives(values: list[Any], kind: pa.DataType, *, nullable: bool = False) -> DataFrame:
        batch = pa.record_batch({"a": pa.array(values, kind), "b": range(len(values))})
        schema = StructType().add("a", from_arrow_type(kind), nullable).add("b", LongType())
        return one.mapInArrow(lambda batches: (batch for _ in batches), schema)

    same = arrays("long", lambda x: x)("b").alias("z")
    lists = arrays(ArrayType(LongType(), containsNull=False), _nulls())
    long, text = gives([1, None, 3], pa.int64()), gives(["x", None], pa.string())
    exact = gives([Decimal(1), None], pa.decimal128(10, 2))  # Spark reads a null from this column
    return [
        long.where("b != 1").mapInArrow(lambda batches: batches, long.schema),
        long.where("b >= 0").select("b", same),
        text.withColumn("z", same),
        text.where("b = 0").select("b", same),
        exact.where("b >= 0").withColumn("z", same),
        long.selectExpr("a + b", "b").limit(1),
        long.limit(2),
        one.where("id < 5").select(lists("id").alias("z")).selectExpr("size(z)"),
        gives([1, None], pa.int64(), nullable=True).where("b >= 0").withColumn("z", same),
    ]


def _nulls() -> Any:
    return lambda x: pa.array([[1, None]] * len(x), pa.list_(pa.int64()))


@case()
def exchange_that_is_used_twice(s):
    twice = series("double", lambda x: x * 2)
    once = s.t.where("id > 3").withColumn("z", twice("half")).repartition(2, "id")
    return once.join(once.withColumnRenamed("z", "other"), "id").orderBy("id")


# Variants: windows sort below them, rows are coalesced after any shuffle, other cases have limits,
# columns off the heap have the same methods as those on it.
RARE = (
    *("pandas_above_coalesced", "pandas_above_sort", "pandas_above_limit"),
    *("arrow_above_coalesced", "pandas_above_merge", "pandas_above_union", "many_fields_beside"),
    "dictionaries_off_heap",
)


@for_each(CASES, rare=RARE)
def test_same_above(spark, set_option, tmp_path, name, live):
    compare(f"above {name}", way_of(spark, set_option, tmp_path, *CASES[name]), live=live)


# --- plans ----------------------------------------------------------------------------------------


@pytest.fixture
def given(spark, set_option, tmp_path):
    set_option(FUNCTIONS, "on")
    set_option(ADAPTIVE, False)
    return Given(spark, tmp_path)


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape not in ("file", "function")])
def test_stage_writes_columns_and_its_function_gives_them(given, shape):
    frame = SHAPES[shape](given).withColumn("z", KINDS["pandas"]()("half", "id"))
    below = plan_of(frame).partition("ArrowEvalPython over rings")
    assert "ColumnarToRow" in below[0]
    assert ("RowsToArrow" in below[2].splitlines()[1]) == (shape != "batches")


def test_stage_over_a_function_takes_its_columns(given):
    plus, again = KINDS["pandas"](), KINDS["arrow"]()
    frame = given.t.select(again(plus("half", "id") + 1, "id"))
    plan = plan_of(frame)
    assert plan.count("ArrowEvalPython over rings") == plan.count("RowsToArrow") == 2
    assert plan.count("ColumnarToRow") == 2


@pytest.mark.parametrize(
    ("aggregate", "argument"),
    [
        ("collect_list(text)", "id"),
        ("max(text collate UTF8_LCASE)", "id"),
        ("max(text)", "rand(1)"),
        ("max(text)", "element_at(array(id), 1) + rand()"),
    ],
)
def test_rows_wait_where_columns_cannot(given, aggregate, argument):
    frame = given.t.groupBy("id").agg(expr(aggregate).alias("a"))
    result = frame.withColumn("z", series("double", lambda x: x)(expr(argument)))
    assert "RowsToArrow" not in plan_of(result)
    assert len(outcome(result, over_rings=True)) == given.t.count()


@pytest.mark.parametrize(("count", "writes"), [(99, True), (100, False)])
def test_rows_wait_where_they_and_the_results_have_too_many_fields_for_code(given, count, writes):
    frame = given.t.select("id", *(expr(f"id * {k} c{k}") for k in range(1, count)))
    plan = plan_of(frame.withColumn("z", series("long", lambda x: x)("c50")))
    assert ("RowsToArrow" in plan) == writes


def test_metrics_count_what_the_stage_has_written(given, set_option):
    set_option(ROWS, 100)
    frame = given.one.where("id >= 3").withColumn("z", KINDS["arrow"]()("half", "id"))
    assert len(frame.collect()) == 350
    counted = metrics_of(frame, "ArrowEvalPython")
    assert counted["numInputRows"] == counted["numOutputRows"] == 350
    assert counted["batches"] == counted["requests"] == counted["answers"] == 4
    assert counted["rowTasks"] == 0


def test_plan_that_runs_with_large_types_after_it_ran_without(given, set_option):
    frame = given.t.where("id > 3").withColumn("z", series("string", lambda x: x)("text"))
    before = frame.collect()
    set_option("spark.sql.execution.arrow.useLargeVarTypes", True)
    assert frame.collect() == before


def test_frame_that_is_collected_while_another_thread_generates_its_code(given, thread):
    """The code of Spark's stage, which gives rows: collect() in the other thread generates it."""
    for count in range(6):
        columns = [f"id * {k} c{k}" for k in range(40)]
        frame = given.spark.range(9, numPartitions=1).where(f"id > {count}").selectExpr(*columns)
        stage = frame._jdf.queryExecution().executedPlan()
        code, over = stage.doCodeGen()._2().body(), threading.Event()

        def last_code(stage=stage, over=over):
            code = stage.doCodeGen()
            while not over.is_set():
                code = stage.doCodeGen()
            return code._2().body()

        other = thread(last_code)
        try:
            table = frame.toArrow()
        finally:
            over.set()
        assert other.outcome() == code
        assert table.to_pylist() == [row.asDict() for row in frame.collect()]
        assert table.num_rows == 8 - count
