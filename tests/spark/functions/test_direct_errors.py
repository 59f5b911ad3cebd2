"""What a task that asks a sidecar straight from the executor's JVM fails with."""

from __future__ import annotations

import pytest
from direct import DIRECT

from shmring.spark import through


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


def test_type_that_spark_has_no_vectors_for_is_named(spark, serve, served, name):
    serve("as_small_decimals")
    nested = served("as_small_decimals_inside")
    frame = spark.range(3).selectExpr("id x")
    with pytest.raises(Exception, match=r"x is decimal32\(9, 2\), not decimal\(9,2\)"):
        frame.mapInArrow(through(name), "x decimal(9, 2)").collect()
    with pytest.raises(Exception, match=r"x is decimal32\(9, 2\), not bigint"):
        frame.mapInArrow(through(name), "x long").collect()
    with pytest.raises(Exception, match=r"struct<x: decimal32\(9, 2\)>"):
        frame.mapInArrow(through(nested), "x long").collect()
    spark.conf.set(DIRECT, "false")
    try:
        with pytest.raises(Exception, match=r"x is decimal32\(9, 2\), not decimal\(9,2\)"):
            frame.mapInArrow(through(name), "x decimal(9, 2)").collect()
    finally:
        spark.conf.set(DIRECT, "true")
