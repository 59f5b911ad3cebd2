"""Columns that a function passes on: they stay in the JVM, and the answer has the others."""

from __future__ import annotations

import pytest
from direct import ROWS, TYPES, columns_of, metrics_of
from pyspark.sql.functions import col, lit

from shmring.spark import through

COUNT = 6_000  # rows, in two requests that are large enough
LEFT = 10_000  # bytes of answers that have heads and lists


@pytest.fixture
def frame(spark):
    return spark.range(COUNT, numPartitions=2).selectExpr("id", *columns_of(TYPES, "some"))


def by_id(rows):
    return sorted(rows, key=lambda row: row.id)


def expected_of(frame):
    """Return the frame that ``passed_on`` of functions.py should return."""
    names = frame.columns[::-1]
    return frame.select(lit(7).cast("long").alias("new"), *names, col(names[0]).alias("again"))


@pytest.mark.parametrize("generated", [True, pytest.param(False, marks=pytest.mark.long)])
def test_columns_of_each_type_go_nowhere(spark, serve, name, frame, set_option, generated):
    serve("passed_on", workers=2)
    set_option("spark.sql.codegen.wholeStage", generated)
    expected = expected_of(frame)
    result = frame.mapInArrow(through(name), expected.schema)
    assert by_id(result.collect()) == by_id(expected.collect())
    found = metrics_of(result)
    assert found["requestBytes"] > 50 * COUNT
    assert found["answerBytes"] < 8 * COUNT + LEFT


def test_columns_are_right_after_later_batches_wherever_they_are_kept(
    spark, serve, name, frame, set_option
):
    serve("passed_on", workers=2)
    set_option(ROWS, 500)
    expected = expected_of(frame)
    result = frame.mapInArrow(through(name), expected.schema)
    rows = by_id(expected.collect())
    kept = result.cache()
    try:
        assert kept.count() == COUNT
        assert by_id(kept.collect()) == rows
    finally:
        kept.unpersist()
    assert result.sort("id").collect() == rows
    some = result.limit(700).collect()
    assert len(some) == 700
    assert all(row == rows[row.id] for row in some)


def test_rows_that_die_with_their_worker_come_back_with_their_columns(
    spark, serve, name, frame, marker
):
    serve("die_once", workers=2)
    result = frame.mapInArrow(through(name), frame.schema)
    assert by_id(result.collect()) == by_id(frame.collect())


def test_type_of_a_column_that_is_passed_on_is_checked(spark, serve, name, frame):
    serve("identity")
    with pytest.raises(Exception, match="big is bigint, not string"):
        frame.select("id", "big").mapInArrow(through(name), "id long, big string").collect()


@pytest.mark.parametrize(
    "said",
    ['[["id", 1]]', '[["id", -1]]', '[["id"]]', '[["id", "x"]]', "7", "{"],
)
def test_answer_that_leaves_out_what_nobody_has_fails_its_job_in_words(spark, serve, name, said):
    serve("claims_unchanged")
    frame = spark.range(3, numPartitions=1).selectExpr("id", f"'{said}' said").select("said")
    with pytest.raises(
        Exception, match=r"leaves out columns that its request does not have.*same shmring"
    ):
        frame.mapInArrow(through(name), "id string").collect()
