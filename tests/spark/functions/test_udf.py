"""UDFs whose work a sidecar does, of one and of several columns."""

from __future__ import annotations

import pytest
from direct import DIRECT
from pyspark.sql import Window, functions

from shmring.spark import arrow_udf


@pytest.fixture
def frame(spark, set_option):
    set_option(DIRECT, True)
    return spark.range(2000, numPartitions=3).selectExpr(
        "id", "id * 10 tens", "if(id % 3 = 0, null, id) gaps", "cast(id as string) s"
    )


def one_task(frame):
    """For a job that fails: Spark would kill the others' clients, and nobody is there to sweep."""
    return frame.coalesce(1)


def test_udf_of_one_column(served, frame):
    name = served("double", workers=2)
    double = arrow_udf(name, "long")
    assert [r[0] for r in frame.select(double("id")).collect()] == [2 * i for i in range(2000)]


def test_udf_of_several_columns(served, frame):
    name = served("total", workers=2)
    total = arrow_udf(name, "double")
    rows = frame.select(total("id", "tens", "gaps")).collect()
    assert [r[0] for r in rows] == [i * 11 + (i if i % 3 else 0) for i in range(2000)]


def test_udf_of_text_and_nulls(served, frame):
    name = served("identity")
    same = arrow_udf(name, "string")
    text = functions.when(functions.col("id") % 2 == 0, functions.col("s"))
    rows = frame.select(same(text)).collect()
    assert [r[0] for r in rows] == [None if i % 2 else str(i) for i in range(2000)]


def test_udf_of_structs(served, frame):
    name = served("identity")
    same = arrow_udf(name, "id long, s string")
    rows = frame.select(same(functions.struct("id", "s"))).collect()
    assert [tuple(r[0]) for r in rows] == [(i, str(i)) for i in range(2000)]


def test_udf_beside_other_columns_and_in_sql(spark, served, frame):
    name = served("double")
    frame.createOrReplaceTempView("numbers")
    spark.udf.register("doubled", arrow_udf(name, "long"))
    rows = spark.sql("select id, doubled(tens) t from numbers where doubled(id) > 3990").collect()
    assert [tuple(r) for r in rows] == [(i, 20 * i) for i in range(1996, 2000)]


def test_udf_wherever_spark_takes_an_expression(served, frame):
    name = served("double", workers=2)
    double = arrow_udf(name, "long")
    few = frame.where("id < 40")
    sums = few.groupBy(functions.col("id") % 4).agg(functions.sum("id").alias("s"))
    over = few.groupBy().agg(double(functions.max("id")).alias("d"), functions.max(double("id")))
    assert tuple(over.first()) == (78, 78)
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


def test_udf_of_parts_of_structs(served, frame):
    name = served("total")
    total = arrow_udf(name, "long")
    nested = frame.select(functions.struct("id", functions.struct("tens").alias("in")).alias("s"))
    rows = nested.select(total("s.id", functions.col("s.in.tens"))).collect()
    assert [row[0] for row in rows] == [11 * i for i in range(2000)]


def test_udf_is_named_after_its_sidecar(serve, name, frame):
    assert frame.select(arrow_udf(name, "long")("id")).columns == [f"{name}(id)"]


def test_exception_of_the_function_reaches_the_job(served, frame):
    name = served("fail_on_seven")
    with pytest.raises(Exception, match="seven is not allowed"):
        one_task(frame).select(arrow_udf(name, "long")("id")).collect()


@pytest.mark.parametrize(
    ("function", "text"),
    [
        ("twice", "expected [0-9]+, got [0-9]+"),
        ("no_rows", "expected [0-9]+, got 0"),
        ("no_columns", "answered with 0 columns"),
        ("with_pid", r"answered with 2 columns \(.*, pid\)"),
    ],
)
def test_answer_that_is_no_column_of_the_udf_is_told(served, frame, function, text):
    name = served(function)
    with pytest.raises(Exception, match=f'functions:{function} of sidecar "{name}".*{text}'):
        one_task(frame).select(arrow_udf(name, "long")("id")).collect()
