"""Cogroups through a sidecar."""

from __future__ import annotations

from collections import Counter

import pytest
from direct import DIRECT, TYPES, columns_of, is_direct, shown_of
from pyspark.sql.functions import expr

from shmring.spark import through

SIDES = "left long, right long, names string"


@pytest.fixture(scope="module")
def spark(start_spark):
    return start_spark(
        "local[2]", **{DIRECT: "true", "spark.sql.session.timeZone": "Europe/Berlin"}
    )


@pytest.fixture
def cogrouped():
    """Both frames' rows of a key through this sidecar."""

    def cogrouped(name, left, right, schema, keys="k", **options):
        by = [expr(key) for key in keys.split(", ")]
        groups = left.groupBy(*by).cogroup(right.groupBy(*by))
        result = groups.applyInArrow(through(name, **options), schema)
        assert is_direct(result, name)
        return result

    return cogrouped


def sides_of(left, right, keys="k"):
    """What functions.sides() gives for the cogroups of two frames."""
    by = [expr(key) for key in keys.split(", ")]
    counts, others = (Counter(map(tuple, f.select(*by).collect())) for f in (left, right))
    names = f"{' '.join(left.columns)} | {' '.join(right.columns)}"
    return in_order((counts[key], others[key], names) for key in counts.keys() | others.keys())


def numbers(spark, count=2000):
    return spark.range(count, numPartitions=3).selectExpr("id % 7 k", "id", "id * 10 tens")


def in_order(rows):
    return sorted(map(tuple, rows))


def found(frame):
    return in_order(frame.collect())


@pytest.mark.parametrize(("right_rows", "count"), [("k > 2", 10), ("k < 0", 5)])
def test_either_side_may_have_no_rows(spark, served, cogrouped, right_rows, count):
    name = served("sides", workers=2)
    left = numbers(spark, 100).where("k < 5")
    right = spark.range(50, numPartitions=2).selectExpr("id % 10 k", "repeat('x', 3) s")
    right = right.where(right_rows)
    ours = found(cogrouped(name, left, right, SIDES))
    assert ours == sides_of(left, right)
    assert len(ours) == count
    assert {row[2] for row in ours} <= {"k id tens | k s"}


def test_keys_may_be_null_several_or_expressions(spark, served, cogrouped):
    keys = "k, id % 3, s"
    name = served("sides", workers=2)
    made = "if(id % 4 = 0, null, id % 4) k", "id", "if(id % 3 = 0, null, repeat('é', 1)) s"
    left = spark.range(600, numPartitions=3).selectExpr(*made)
    right = spark.range(20, numPartitions=2).selectExpr(*made)
    ours = found(cogrouped(name, left, right, SIDES, keys))
    assert ours == sides_of(left, right, keys)
    assert len(ours) >= 3


def test_every_type_reaches_the_function_and_comes_back(spark, served, cogrouped):
    name = served("left_side", workers=2)
    columns = columns_of(TYPES, "some")
    frame = spark.range(60, numPartitions=2).selectExpr("id % 5 k", "id", *columns)
    other = spark.range(5).withColumnRenamed("id", "k")
    assert cogrouped(name, frame, other, frame.schema).orderBy("id").collect() == (
        frame.orderBy("id").collect()
    )
    reverse = cogrouped(name, other, frame, "k long")
    assert sorted(row.k for row in reverse.collect()) == list(range(5))


def test_one_key_may_have_nearly_all_rows(spark, served, cogrouped):
    name = served("sides", workers=2)
    left = spark.range(50_000, numPartitions=4).selectExpr("if(id % 100 = 0, id % 7, 9) k", "id")
    right = spark.range(20_000, numPartitions=2).selectExpr("9 k", "repeat('x', 20) s")
    result = cogrouped(name, left, right, SIDES)
    ours = found(result)
    (shown,) = shown_of(result, name)
    assert (shown["number of input rows"], shown["requests sent"]) == ("70,000", "8")
    assert (49_500, 20_000, "k id | k s") in ours
    assert ours == sides_of(left, right)


def test_frame_is_cogrouped_with_itself_and_with_what_came_of_it(spark, served, cogrouped):
    name = served("left_side", workers=2)
    frame = numbers(spark)
    once = cogrouped(name, frame, frame, frame.schema)
    twice = cogrouped(name, once, frame.where("k < 3"), frame.schema)
    assert found(twice) == found(frame)
    joined = twice.join(once.withColumnRenamed("id", "other"), expr("id = other + 7"))
    assert joined.count() == 1993
    assert twice.limit(3).count() == 3


# --- when something goes wrong ------------------------------------------------------------------


def failure_of(frame):
    with pytest.raises(Exception, match="sidecar") as caught:
        frame.collect()
    return str(caught.value)


def test_function_of_one_side_that_is_given_two_says_so(spark, served, cogrouped):
    name = served("identity")
    frame = spark.range(3).withColumnRenamed("id", "k")
    assert "takes 1 positional argument but 2 were given" in failure_of(
        cogrouped(name, frame, frame, "k long")
    )
