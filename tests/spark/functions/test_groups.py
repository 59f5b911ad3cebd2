"""Groups and cogroups through a sidecar."""

from __future__ import annotations

from collections import Counter

import pytest
from direct import TYPES, columns_of, is_direct, shown_of
from pyspark.sql.functions import expr
from sessions import failure

from shmring.spark import through

DECLARED = "s string, d double, id long"


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
    assert frame.where("id < 0").groupBy("k").applyInArrow(through(name), schema).count() == 0
    whole = frame.groupBy().applyInArrow(through(name), schema)
    assert whole.select("rows").distinct().collect()[0].rows == 2000


def test_keys_may_be_null_text_or_several(spark, served):
    name = served("with_rows", workers=2)
    frame = spark.range(600, numPartitions=3).selectExpr(
        "if(id % 4 = 0, null, repeat('é', cast(id % 4 as int))) s", "(id % 3) / 2 d", "id"
    )
    counted = frame.groupBy("s", "d").applyInArrow(through(name), f"{DECLARED}, rows long")
    assert [tuple(row) for row in counted.orderBy("id").collect()] == [
        (*row, 50) for row in frame.orderBy("id").collect()
    ]


# --- when something goes wrong ------------------------------------------------------------------


def test_group_that_fits_no_request_is_told_with_what_to_set(spark, served):
    name = served("identity", slots=1024)
    frame = spark.range(5000, numPartitions=1).selectExpr("1 k", "repeat('x', 100) s")
    text = failure(frame.groupBy("k").applyInArrow(through(name), frame.schema).collect)
    assert "5000 rows" in text
    assert "make it larger with `shmring sidecar --slots 4096`" in text


# --- cogroups -------------------------------------------------------------------------------------

SIDES = "left long, right long, names string"


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
    """Return the rows that functions.sides() should give for the cogroups of two frames."""
    by = [expr(key) for key in keys.split(", ")]
    counts, others = (Counter(map(tuple, f.select(*by).collect())) for f in (left, right))
    names = f"{' '.join(left.columns)} | {' '.join(right.columns)}"
    return in_order((counts[key], others[key], names) for key in counts.keys() | others.keys())


def in_order(rows):
    return sorted(map(tuple, rows))


def found(frame):
    return in_order(frame.collect())


@pytest.mark.parametrize(
    ("right_rows", "count"), [("k > 2", 10), pytest.param("k < 0", 5, marks=pytest.mark.long)]
)
def test_either_side_may_have_no_rows(spark, served, cogrouped, right_rows, count):
    name = served("sides", workers=2)
    left = numbers(spark, 100).where("k < 5")
    right = spark.range(50, numPartitions=2).selectExpr("id % 10 k", "repeat('x', 3) s")
    right = right.where(right_rows)
    ours = found(cogrouped(name, left, right, SIDES))
    assert ours == sides_of(left, right)
    assert len(ours) == count
    assert {row[2] for row in ours} <= {"k id tens | k s"}


def test_keys_of_cogroups_may_be_null_several_or_expressions(spark, served, cogrouped):
    keys = "k, id % 3, s"
    name = served("sides", workers=2)
    made = "if(id % 4 = 0, null, id % 4) k", "id", "if(id % 3 = 0, null, repeat('é', 1)) s"
    left = spark.range(600, numPartitions=3).selectExpr(*made)
    right = spark.range(20, numPartitions=2).selectExpr(*made)
    ours = found(cogrouped(name, left, right, SIDES, keys))
    assert ours == sides_of(left, right, keys)
    assert len(ours) >= 3


def test_every_type_reaches_both_sides_and_comes_back(spark, served, cogrouped):
    name = served("left_side", workers=2)
    columns = columns_of(TYPES, "some")
    frame = spark.range(60, numPartitions=2).selectExpr("id % 5 k", "id", *columns)
    other = spark.range(5).withColumnRenamed("id", "k")
    assert cogrouped(name, frame, other, frame.schema).orderBy("id").collect() == (
        frame.orderBy("id").collect()
    )
    reverse = cogrouped(name, other, frame, "k long")
    assert sorted(row.k for row in reverse.collect()) == list(range(5))


@pytest.mark.long
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


@pytest.mark.long
def test_frame_is_cogrouped_with_itself_and_with_what_came_of_it(spark, served, cogrouped):
    name = served("left_side", workers=2)
    frame = numbers(spark)
    once = cogrouped(name, frame, frame, frame.schema)
    twice = cogrouped(name, once, frame.where("k < 3"), frame.schema)
    assert found(twice) == found(frame)
    joined = twice.join(once.withColumnRenamed("id", "other"), expr("id = other + 7"))
    assert joined.count() == 1993
    assert twice.limit(3).count() == 3


# --- options that change while a query is made ----------------------------------------------------


def applied(frame, method, function):
    if method == "mapInArrow":
        return frame.mapInArrow(function, frame.schema)
    groups = frame.groupBy("k")
    if method == "cogroup":
        groups = groups.cogroup(frame.where("id < 0").groupBy("k"))
    return groups.applyInArrow(function, frame.schema)


@pytest.mark.parametrize("method", ["mapInArrow", "applyInArrow", "cogroup"])
def test_instants_stay_when_the_zone_changes(spark, served, set_option, method):
    name = served("left_side" if method == "cogroup" else "identity")
    frame = spark.range(10, numPartitions=1).selectExpr(
        "id % 2 k", "id", "timestamp_seconds(id * 3600000) time"
    )
    result = applied(frame, method, through(name))
    expected = found(frame)
    set_option("spark.sql.session.timeZone", "Asia/Tokyo")
    assert found(result) == expected
    set_option("spark.sql.session.timeZone", "America/New_York")  # the query is planned already
    assert found(result) == expected
