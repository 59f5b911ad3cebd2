"""Groups through a sidecar."""

from __future__ import annotations

import pytest
from direct import TYPES, ZONED, columns_of, is_direct
from pyspark.sql import functions
from pyspark.sql.functions import expr

from shmring.spark import through

DECLARED = "s string, d double, id long"


@pytest.fixture(scope="module")
def spark(start_spark):
    return start_spark("local[2]", **ZONED)


def numbers(spark, count=2000):
    return spark.range(count, numPartitions=3).selectExpr("id % 7 k", "id", "id * 10 tens")


def test_every_type_comes_back(spark, served):
    name = served("identity", workers=2)
    columns = columns_of(TYPES, "some")
    frame = spark.range(100, numPartitions=2).selectExpr("id % 5 k", "id", *columns)
    ours = frame.groupBy("k").applyInArrow(through(name), frame.schema).orderBy("id")
    assert is_direct(ours, name)
    assert ours.collect() == frame.orderBy("id").collect()


def test_function_is_called_once_a_group(spark, served):
    name = served("with_rows")
    frame = numbers(spark)
    schema = "k long, id long, tens long, rows long"
    counted = frame.groupBy("k").applyInArrow(through(name), schema)
    found = counted.groupBy("k", "rows").count().orderBy("k").collect()
    assert [(row.k, row.rows) for row in found] == [(k, len(range(k, 2000, 7))) for k in range(7)]
    assert all(row.rows == row["count"] for row in found)
    by_expression = frame.groupBy(expr("id % 2"), "k").applyInArrow(through(name), schema)
    assert by_expression.select("rows").distinct().count() == 2
    assert is_direct(by_expression, name)
    whole = frame.groupBy().applyInArrow(through(name), schema)
    assert whole.select("rows").distinct().collect()[0].rows == 2000


def test_groups_are_never_joined_nor_counted(spark, served):
    name = served("with_rows", max_batch_rows=10_000, max_wait_ms=3_600_000.0)
    schema = "k long, id long, tens long, rows long"
    counted = numbers(spark).groupBy("k").applyInArrow(through(name), schema)
    assert counted.select("k", "rows").distinct().count() == 7


def test_answers_may_have_any_number_of_rows(spark, serve, name):
    sidecar = serve("twice")
    frame = numbers(spark, 100)
    assert frame.groupBy("k").applyInArrow(through(name), frame.schema).count() == 200
    sidecar.stop()
    serve("no_batches")
    assert frame.groupBy("k").applyInArrow(through(name), frame.schema).collect() == []
    none = frame.where("id < 0").groupBy("k")
    assert none.applyInArrow(through(name), frame.schema).collect() == []


def test_keys_may_be_null_text_or_several(spark, served):
    name = served("with_rows", workers=2)
    frame = spark.range(600, numPartitions=3).selectExpr(
        "if(id % 4 = 0, null, repeat('é', cast(id % 4 as int))) s", "(id % 3) / 2 d", "id"
    )
    counted = frame.groupBy("s", "d").applyInArrow(through(name), f"{DECLARED}, rows long")
    assert [tuple(row) for row in counted.orderBy("id").collect()] == [
        (*row, 50) for row in frame.orderBy("id").collect()
    ]


def test_groups_of_groups_and_beside_a_join(spark, served):
    name = served("identity", workers=2)
    frame = numbers(spark)
    once = frame.groupBy("k").applyInArrow(through(name), frame.schema)
    twice = once.groupBy("k").applyInArrow(through(name), frame.schema)
    joined = twice.join(once.withColumnRenamed("id", "other"), expr("id = other + 7"))
    assert joined.count() == 1993
    assert once.limit(3).count() == 3


# --- when something goes wrong ------------------------------------------------------------------


def failure_of(frame):
    with pytest.raises(Exception, match="sidecar") as caught:
        frame.collect()
    return str(caught.value)


def test_answer_that_spark_does_not_expect_is_told_with_both(spark, served):
    name = served("with_pid")
    frame = spark.range(10, numPartitions=1)
    text = failure_of(frame.groupBy("id").applyInArrow(through(name), "id long"))
    assert f'functions:with_pid of sidecar "{name}" answered with other columns' in text
    assert "applyInArrow was declared with: other names, or another number" in text


def test_group_that_fits_no_request_is_told_with_what_to_set(spark, served):
    name = served("identity", slots=1024)
    frame = spark.range(5000, numPartitions=1).selectExpr("1 k", "repeat('x', 100) s")
    text = failure_of(frame.groupBy("k").applyInArrow(through(name), frame.schema))
    assert "5000 rows" in text
    assert "make it larger with `shmring sidecar --slots 4096`" in text


@pytest.mark.kill
def test_worker_of_the_sidecar_that_is_killed_costs_nothing(
    spark, serve, name, monkeypatch, tmp_path
):
    monkeypatch.setenv("SHMRING_TEST_MARKER", str(tmp_path / "marker"))
    serve("die_once", workers=2)
    result = (
        numbers(spark)
        .groupBy("k")
        .applyInArrow(through(name, connect_timeout=60), "k long, id long, tens long")
    )
    assert result.agg(functions.sum("id")).first()[0] == sum(range(2000))
    assert (tmp_path / "marker").exists()
