"""What a task that asks a sidecar straight from the executor's JVM fails with."""

from __future__ import annotations

import pytest
from direct import DIRECT, is_direct
from pyspark.sql.types import ArrayType, LongType, MapType, StringType, StructField, StructType

from shmring.spark import arrow_udf, through

LONGS = ArrayType(LongType(), containsNull=False)


@pytest.fixture(scope="module")
def spark(start_spark):
    return start_spark("local[2]", **{DIRECT: "true"})


def test_sidecars_that_are_there_are_listed_where_one_is_not(spark, serve, name):
    serve("identity")
    result = spark.range(1).mapInArrow(through(f"{name}-typo", connect_timeout=0), "id long")
    with pytest.raises(Exception, match="did not start") as caught:
        result.collect()
    listed = str(caught.value).partition("there are ")[2].partition(";")[0]
    assert f'"{name}"' in listed.split(", ")


def test_type_that_arrow_has_no_vectors_for_is_an_error(spark, serve, name):
    serve("as_small_decimals")
    frame = spark.range(3).selectExpr("id x")
    with pytest.raises(Exception, match=r"decimal values|x is Decimal\(9, 2, 32\)"):
        frame.mapInArrow(through(name), "x decimal(9, 2)").collect()


NESTED = ArrayType(StructType([StructField("a", LONGS, False)]))
DEEP = "array(if(id = 2, null, struct(array(if(id = 3, null, id)) a)))"


@pytest.mark.parametrize(
    ("method", "values", "kind", "nullable"),
    [
        ("mapInArrow", "if(id = 3, null, id)", LongType(), False),
        ("mapInArrow", "if(id = 3, null, cast(id as string))", StringType(), False),
        ("mapInArrow", "if(id = 2, null, array(id, if(id = 3, null, id)))", LONGS, True),
        (
            "mapInArrow",
            "map('k', if(id = 3, null, id))",
            MapType(StringType(), LongType(), False),
            True,
        ),
        ("mapInArrow", DEEP, NESTED, True),
        ("applyInArrow", DEEP, NESTED, True),
    ],
    ids=["long", "string", "array", "map", "nested", "groups"],
)
def test_null_where_none_was_declared_is_an_error(spark, served, method, values, kind, nullable):
    name = served("identity")
    frame = spark.range(6, numPartitions=2).selectExpr("id", f"{values} x")
    declared = StructType([StructField("id", LongType()), StructField("x", kind, nullable)])

    def answered(frame, function):
        data = frame if method.startswith("map") else frame.groupBy("id")
        return getattr(data, method)(function, declared)

    with pytest.raises(Exception, match=r"a null in .*x,? (which|that) was declared without nulls"):
        answered(frame, through(name)).collect()
    whole = frame.where("id != 3")
    ours = answered(whole, through(name))
    assert is_direct(ours, name)
    assert sorted(ours.collect()) == sorted(whole.collect())


def test_null_inside_a_udfs_result_is_an_error_where_none_was_declared(spark, served):
    udf = arrow_udf(served("identity"), LONGS)
    frame = spark.range(6).selectExpr("id", "array(if(id = 3, null, id)) x")
    with pytest.raises(Exception, match="a null in a part of _0 that was declared without nulls"):
        frame.select(udf("x")).collect()
    whole = frame.where("id != 3")
    assert [row.y for row in whole.select(udf("x").alias("y")).collect()] == [
        row.x for row in whole.collect()
    ]
