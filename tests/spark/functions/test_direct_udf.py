"""UDFs of a sidecar straight from the executor's JVM, beside the way through Python."""

from __future__ import annotations

import functools as tools

import pyarrow as pa
import pytest
from direct import LOSES, ROWS, TYPES, ZONED, columns_of, is_direct, metrics_of, plan_of
from pyspark.ml.linalg import Vectors
from pyspark.sql import Window, functions
from pyspark.sql.functions import col, expr

from shmring.spark import arrow_udf


@pytest.fixture(scope="module")
def spark(start_spark):
    return start_spark("local[2]", **ZONED)


def own_identity(kind):
    """Spark's own UDF."""

    def same(column):
        return column

    same.__annotations__ = {"column": pa.Array, "return": pa.Array}
    return functions.arrow_udf(same, returnType=kind)


def numbers(spark, count=2000, parts=3):
    return spark.range(count, numPartitions=parts).selectExpr(
        "id", "id * 10 tens", "if(id % 3 = 0, null, id) gaps", "repeat('x', cast(id % 50 as int)) s"
    )


def test_every_type_comes_back(spark, served, set_option):
    """Of some nulls: test_direct_several.py; and of nulls alone test_direct.py."""
    name = served("identity", workers=2)
    set_option(ROWS, 70)
    frame = spark.range(300, numPartitions=2).selectExpr("id", *columns_of(TYPES, "none"))
    same = [arrow_udf(name, frame.schema[c].dataType)(c).alias(c) for c in TYPES]
    ours = frame.select("id", *same)
    assert plan_of(ours).count(f"Sidecar {name} udf, through(") == 1
    assert ours.collect() == frame.collect()


def test_function_sees_names_and_types_of_its_arguments(spark, served):
    name = served("types")
    frame = numbers(spark, 10).selectExpr("*", "timestamp_seconds(id) at", "struct(id, s) pair")
    types = arrow_udf(name, "string")

    calls = [
        types("id", col("gaps"), frame.s),
        types(col("id") + 1, "pair.s", "id"),
        types("id", "id"),
        types("tens", sum=col("id") + 1, at="at"),
    ]
    (seen,) = frame.select(*calls).distinct().collect()
    assert tuple(seen) == (
        "id int64, gaps int64, s string",
        "_0 int64, _1 string, id int64",
        "id int64, _1 int64",
        "tens int64, sum int64, at timestamp[us, tz=Europe/Berlin]",
    )
    renamed = frame.withColumnRenamed("id", "price").select(types("price"))
    assert renamed.first()[0] == "price int64"


def test_no_two_arguments_have_one_name(spark, served):
    """A keyword stays what it is: the function may have an argument of that name."""
    types = arrow_udf(served("types"), "string")
    frame = spark.range(3, numPartitions=1).selectExpr("id a", "cast(id as string) b", "id _1")
    calls = {
        "_0 string, b int64": types("b", b="a"),
        "_0 int64, _1 string, b string, a int64": types("a", "b", b="b", a="a"),
        "__0 int64, _0 string": types(col("a") + 1, _0="b"),
        "_1 int64, __1 int64": types("_1", col("a") + 1),
    }
    twice = types("_1", "_1")
    (seen,) = frame.select(*calls.values(), twice).distinct().collect()
    assert tuple(seen) == (*calls, "_1 int64, __1 int64")


def test_large_offsets_where_the_session_wants_them(spark, served, set_option):
    set_option("spark.sql.execution.arrow.useLargeVarTypes", True)
    name = served("identity", workers=2)
    frame = spark.range(300, numPartitions=2).selectExpr("id", *columns_of(TYPES, "some"))

    ours = frame.select("id", *(arrow_udf(name, frame.schema[c].dataType)(c) for c in TYPES))
    assert is_direct(ours, name)
    assert ours.collect() == frame.collect()
    seen = frame.select(arrow_udf(served("types"), "string")("text")).distinct().collect()
    assert seen == [("text large_string",)]


CASTS = [
    ("cast(id as int)", "long"),
    ("id", "int"),
    ("id", "double"),
    ("id", "string"),
    ("cast(id as string)", "long"),
    ("cast(id as decimal(10, 2))", "decimal(12, 3)"),
    ("cast(id as double)", "long"),
    ("cast(timestamp_seconds(id) as timestamp_ntz)", "timestamp"),
    ("struct(cast(id as int) a)", "a long"),
]


def test_answer_is_cast_to_the_return_type_as_spark_casts_its_own(spark, served):
    name = served("identity")
    frame = spark.range(100, numPartitions=2).selectExpr(
        *(f"if(id % 3 = 0, null, {column}) c{i}" for i, (column, _) in enumerate(CASTS))
    )

    def results(make):
        return frame.select(*(make(kind)(f"c{i}") for i, (_, kind) in enumerate(CASTS))).collect()

    assert results(lambda kind: arrow_udf(name, kind)) == results(own_identity)


def test_answer_that_would_lose_its_values_fails_the_job(spark, served):
    """As one of Spark's own function; tests/sidecars/test_calls.py has other losses."""
    name = served("identity")
    frame = spark.range(10, numPartitions=1).selectExpr("id / 4 x")
    with pytest.raises(Exception, match=rf"{LOSES}|cannot become the \w+ that the UDF"):
        frame.select(arrow_udf(name, "long")("x")).collect()
    with pytest.raises(Exception, match=LOSES):
        frame.select(own_identity("long")("x")).collect()


def test_udf_beside_other_columns_and_in_sql(spark, served):
    name = served("double")
    numbers(spark).createOrReplaceTempView("numbers")
    spark.udf.register("doubled", arrow_udf(name, "long"))
    rows = spark.sql("select id, doubled(tens) t from numbers where doubled(id) > 3990").collect()
    assert [tuple(r) for r in rows] == [(i, 20 * i) for i in range(1996, 2000)]


def test_udf_wherever_spark_takes_an_expression(spark, served):
    name = served("double", workers=2)
    double = arrow_udf(name, "long")
    few = numbers(spark, 40)
    sums = few.groupBy(functions.col("id") % 4).agg(functions.sum("id").alias("s"))
    over = few.groupBy().agg(double(functions.max("id")).alias("d"), functions.max(double("id")))
    assert tuple(over.first()) == (78, 78)
    grouped = few.groupBy(double(functions.col("id") % 2)).agg(functions.sum(double("id")))
    assert sorted(map(tuple, grouped.collect())) == [(0, 760), (2, 800)]
    having = sums.where(double("s") > 400).select("s")
    assert sorted(row.s for row in having.collect()) == [210]
    ordered = few.orderBy(double(-functions.col("id"))).select("id").limit(3)
    assert [row.id for row in ordered.collect()] == [39, 38, 37]
    other = few.select(functions.col("id").alias("other"))
    assert few.join(other, double("id") == functions.col("other")).count() == 20
    window = Window.partitionBy(functions.col("id") % 2).orderBy("id")
    running = few.select("id", functions.sum(double("id")).over(window).alias("r"))
    assert running.where("id = 4").first().r == 2 * (0 + 2 + 4)
    inside = few.select(
        functions.struct(double("id").alias("d"), functions.array(double("tens"))).alias("s"),
        functions.when(functions.col("id") > 1, double("id")).otherwise(-1).alias("w"),
        functions.explode(functions.array(double("id"), double("tens"))).alias("e"),
    )
    rows = inside.where("s.d = 4").collect()
    assert [(row.s.d, row.s[1], row.w, row.e) for row in rows] == [
        (4, [40], 4, 4),
        (4, [40], 4, 40),
    ]


def test_udf_is_named_after_its_sidecar(spark, name):
    assert spark.range(1).select(arrow_udf(name, "long")("id")).columns == [f"{name}(id)"]


@pytest.mark.parametrize(
    ("function", "text"),
    [
        ("no_rows", "expected [0-9]+, got 0"),
        ("with_pid", r"answered with 2 columns \(.*, pid\)"),
    ],
)
def test_answer_that_is_no_column_of_the_udf_is_told(spark, served, function, text):
    name = served(function)
    with pytest.raises(Exception, match=f'functions:{function} of sidecar "{name}".*{text}'):
        numbers(spark, parts=1).select(arrow_udf(name, "long")("id")).collect()


def test_udf_that_is_not_deterministic_keeps_its_names(spark, served):
    name = served("types")
    frame = spark.range(10).select(arrow_udf(name, "string").asNondeterministic()("id"))
    assert frame.first()[0] == "id int64"
    assert is_direct(frame, name)


def test_only_the_arguments_are_sent_and_read(spark, served, tmp_path):
    name = served("double")
    wide = numbers(spark).selectExpr("*", "repeat('y', 1000) y")
    wide.write.parquet(str(tmp_path / "wide"))
    frame = spark.read.parquet(str(tmp_path / "wide")).select(arrow_udf(name, "long")("tens"))
    assert frame.agg(expr("sum(`" + frame.columns[0] + "`)")).first()[0] == 20 * sum(range(2000))
    assert "ReadSchema: struct<tens:bigint>" in plan_of(frame)
    beside = wide.select("y", arrow_udf(name, "long")("tens"))
    assert len(beside.collect()) == 2000
    assert metrics_of(beside)["answerBytes"] < 2000 * 100


def test_rows_that_are_kept_beside_large_ones_bound_a_batch(spark, served):
    name = served("double", slots=4096)
    rows = [(i, "x" * 20_000) for i in range(300)]
    frame = spark.createDataFrame(rows, "id long, large string").coalesce(1)
    result = frame.select("large", arrow_udf(name, "long")("id").alias("d"))
    assert [(row.d, len(row.large)) for row in result.collect()] == [
        (2 * i, 20_000) for i in range(300)
    ]
    assert metrics_of(result)["requests"] > 20


def test_functions_of_others_are_left_to_spark(spark, served):
    """A function around ours has its name, and does something else."""
    name = served("identity")
    inner = arrow_udf(name, "long").func

    @tools.wraps(inner)
    def run(columns):
        for column in inner(columns):
            yield pa.compute.add(column, 1)

    run.__annotations__ = inner.__annotations__
    frame = spark.range(10).select(functions.arrow_udf(run, returnType="long")("id"))
    assert not is_direct(frame, name)
    with pytest.raises(Exception, match=f'sidecar "{name}": Spark.s Python workers send it'):
        frame.collect()
    mixed = spark.range(10).select(arrow_udf(name, "long")(own_identity("long")("id")))
    assert [row[0] for row in mixed.collect()] == list(range(10))


def test_types_that_no_sidecar_has_are_named_and_stay_beside_the_arguments(spark, served):
    name = served("identity")
    frame = spark.createDataFrame([(i, Vectors.dense([i, 0.5])) for i in range(20)], ["id", "v"])
    for udf, columns, which in (
        (arrow_udf(name, "long"), ("id", "v"), 'column "v" of the type'),
        (arrow_udf(name, frame.schema["v"].dataType), ("id",), f'column "{name}" of the type'),
    ):
        with pytest.raises(Exception, match=f'sidecar "{name}": a UDF cannot have {which}'):
            frame.select(udf(*columns)).collect()
    beside = frame.select(arrow_udf(name, "long")("id"), "v")
    assert is_direct(beside, name)
    assert beside.collect() == frame.collect()


def test_empty_partitions_limits_joins_caches_and_exchanges(spark, served):
    name = served("double", workers=2)
    double = arrow_udf(name, "long")
    frame = numbers(spark, 2000, 8).select("id", double("id").alias("d"))
    assert frame.where("id < 0").collect() == []
    assert [tuple(row) for row in frame.limit(3).collect()] == [(0, 0), (1, 2), (2, 4)]
    few = frame.where("id = 7")
    assert [tuple(row) for row in few.collect()] == [(7, 14)]
    twin = frame.withColumnRenamed("id", "other").withColumnRenamed("d", "e")
    assert frame.join(twin, expr("d = other")).count() == 1000
    cached = frame.cache()
    assert cached.count() == cached.where("d >= 0").count() == 2000
    cached.unpersist()
    shuffled = frame.repartition(2, "d")
    union = shuffled.union(shuffled)
    assert union.agg(functions.sum("d")).first()[0] == 4 * sum(range(2000))


@pytest.mark.kill
@pytest.mark.long
def test_workers_that_are_killed_under_load_cost_nothing(
    spark, serve, name, set_option, outcome_under_kills
):
    sidecar = serve("slow", workers=3)
    set_option(ROWS, 500)
    same = arrow_udf(name, "long", connect_timeout=60)
    frame = numbers(spark, 60_000, 2).select("id", "s", same("tens").alias("t"))
    sums = frame.selectExpr("count(*)", "sum(if(t = 10 * id, 1, 0))")
    found = outcome_under_kills(sidecar, sums.first)
    assert tuple(found) == (60_000, 60_000)
