"""Batches of 10 rows, of which the executor's JVM sends several as one request."""

from __future__ import annotations

import pytest
from direct import ROWS, is_direct, metrics_of
from pyspark.sql import functions
from sessions import failure

from shmring.sidecars import Sidecar
from shmring.spark import arrow_udf, through

COUNT = 1005  # the last batch of a partition is a short one


@pytest.fixture(autouse=True)
def _rows_of_a_batch(set_option):
    set_option(ROWS, 10)


@pytest.fixture
def numbers(spark):
    """One partition, whose row 907 has the number 7."""
    return spark.range(COUNT, numPartitions=1).selectExpr("if(id = 907, 7, id + 8) x")


def values(rows):
    return [row.x for row in rows]


def test_function_sees_each_batch_by_itself_in_order(spark, served):
    name = served("with_rows", workers=3)
    frame = spark.range(2 * COUNT, numPartitions=2).selectExpr("id x")
    frame = frame.mapInArrow(through(name), "x long, rows long")
    assert is_direct(frame, name)
    rows = frame.collect()
    assert values(rows) == list(range(2 * COUNT))
    assert [row.rows for row in rows] == ([10] * 1000 + [5] * 5) * 2
    found = metrics_of(frame)
    assert found["numInputRows"] == found["numOutputRows"] == 2 * COUNT
    assert found["batches"] == 202
    assert found["requests"] < 2 * COUNT / 10


def test_columns_go_so_too(spark, served):
    name = served("with_rows", workers=3)
    cached = spark.range(COUNT, numPartitions=1).selectExpr("id x").cache()
    cached.count()
    frame = cached.mapInArrow(through(name), "x long, rows long")
    rows = frame.collect()
    assert values(rows) == list(range(COUNT))
    assert [row.rows for row in rows] == [10] * 1000 + [5] * 5
    assert metrics_of(frame)["requests"] < COUNT / 10
    cached.unpersist()


@pytest.mark.parametrize(("function", "times"), [("twice", 2), ("no_batches", 0)])
def test_function_that_changes_the_number_of_rows(spark, served, function, times):
    name = served(function)
    frame = spark.range(COUNT, numPartitions=2).selectExpr("id x")
    rows = frame.mapInArrow(through(name), "x long").collect()
    assert sorted(values(rows)) == sorted(list(range(COUNT)) * times)


def test_exception_in_the_middle_comes_behind_the_rows_before_its_batch(served, numbers):
    name = served("fail_on_seven")
    frame = numbers.mapInArrow(through(name), "x long")
    text = failure(frame.collect)
    assert f'sidecar "{name}" raised:' in text
    assert "seven is not allowed" in text
    assert "in fail_on_seven" in text
    assert values(frame.limit(900).collect()) == [i + 8 for i in range(900)]


def test_answer_of_another_type_in_the_middle_is_refused(served, spark):
    name = served("words_from_seven_on")
    frame = spark.range(-2000, 2000, numPartitions=1).selectExpr("id x")
    with pytest.raises(Exception, match="x is string, not bigint"):
        frame.mapInArrow(through(name), "x long").collect()


def test_udfs_keep_their_rows_and_count_them_batch_by_batch(spark, served, numbers):
    name = served("identity", workers=2)
    once = arrow_udf(name, "long")
    frame = numbers.select("x", once("x").alias("y"), once(functions.expr("x + 1")).alias("z"))
    assert is_direct(frame, name)
    rows = frame.collect()
    assert [row.y for row in rows] == values(rows) == values(numbers.collect())
    assert [row.z for row in rows] == [x + 1 for x in values(rows)]


def test_udf_that_loses_a_row_of_one_batch_fails_in_words(served, numbers):
    name = served("without_seven")
    with pytest.raises(Exception, match="another number of rows than a UDF must: expected 10, got"):
        numbers.select("x", arrow_udf(name, "long")("x")).collect()


def test_sidecar_that_joins_requests_gets_batches_one_by_one(spark, name):
    with Sidecar("functions:with_rows", name=name, max_batch_rows=30, max_wait_ms=1):
        frame = spark.range(1000, numPartitions=2).selectExpr("id x")
        frame = frame.mapInArrow(through(name), "x long, rows long")
        rows = frame.collect()
        assert values(rows) == list(range(1000))
        assert max(row.rows for row in rows) <= 30
        assert metrics_of(frame)["requests"] == 100


@pytest.mark.kill
def test_worker_that_dies_in_the_middle_costs_nothing(serve, name, numbers, marker):
    serve("die_once_on_seven", workers=2)
    rows = numbers.mapInArrow(through(name, connect_timeout=60), "x long").collect()
    assert values(rows) == values(numbers.collect())
    assert marker.exists()


@pytest.mark.kill
def test_batch_that_kills_every_worker_fails_its_job_in_words(serve, name, numbers):
    serve("die_on_seven", workers=2)
    with pytest.raises(Exception, match=f'3 workers of sidecar "{name}" have died over the same'):
        numbers.mapInArrow(through(name, connect_timeout=60), "x long").collect()
