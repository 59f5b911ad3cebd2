"""Cogroups through a sidecar."""

from __future__ import annotations

from collections import Counter

import pytest
from direct import DIRECT, TYPES, columns_of, is_direct, shown_of
from pyspark.sql import functions
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


@pytest.mark.parametrize("sides", ["both", "left", "right", "none"])
def test_either_side_may_have_no_rows(spark, served, cogrouped, sides):
    name = served("sides", workers=2)
    left = numbers(spark, 100).where("k < 5" if sides in ("both", "left") else "k < 0")
    right = spark.range(50, numPartitions=2).selectExpr("id % 10 k", "repeat('x', 3) s")
    right = right.where("k > 2" if sides in ("both", "right") else "k < 0")
    ours = found(cogrouped(name, left, right, SIDES))
    assert ours == sides_of(left, right)
    assert len(ours) == {"both": 10, "left": 5, "right": 7, "none": 0}[sides]
    assert {row[2] for row in ours} <= {"k id tens | k s"}


@pytest.mark.parametrize("keys", ["k", "k, s", "id % 3, s"])
def test_keys_may_be_null_several_or_expressions(spark, served, cogrouped, keys):
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


def test_frame_is_cogrouped_with_itself(spark, served, cogrouped):
    name = served("left_side", workers=2)
    frame = numbers(spark)
    assert found(cogrouped(name, frame, frame, frame.schema)) == found(frame)


def test_frame_is_cogrouped_with_what_came_of_it(spark, served, cogrouped):
    name = served("left_side", workers=2)
    frame = numbers(spark)
    once = cogrouped(name, frame, numbers(spark), frame.schema)
    assert once.agg(functions.sum("id")).first()[0] == sum(range(2000))
    twice = cogrouped(name, once, frame.where("k < 3"), frame.schema)
    assert found(twice) == found(frame)
    joined = twice.join(once.withColumnRenamed("id", "other"), expr("id = other + 7"))
    assert joined.count() == 1993
    assert twice.limit(3).count() == 3


def test_threads_of_one_driver_run_their_queries_at_a_time(spark, served, cogrouped, thread):
    name = served("left_side", workers=2)
    frames = [numbers(spark, 1000 * (i + 1)) for i in range(3)]
    results = [cogrouped(name, frame, frame.where("k = 1"), frame.schema) for frame in frames]
    jobs = [thread(lambda frame=frame: [found(frame) for _ in range(2)]) for frame in results]
    for frame, job in zip(frames, jobs, strict=True):
        assert job.outcome() == [found(frame)] * 2


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


def test_answer_that_spark_does_not_expect_is_told_with_both(spark, served, cogrouped):
    name = served("sides", workers=2)
    frame = spark.range(3).withColumnRenamed("id", "k")
    text = failure_of(cogrouped(name, frame, frame, "k long"))
    assert f'functions:sides of sidecar "{name}" answered with other columns' in text
    assert "applyInArrow was declared with: k is missing, left is not declared" in text


def test_cogroup_that_fits_no_request_is_told_with_what_to_set(spark, served, cogrouped):
    name = served("left_side", slots=1024)
    left = spark.range(5000, numPartitions=1).selectExpr("1 k", "repeat('x', 100) s")
    text = failure_of(cogrouped(name, left, left.limit(30), left.schema))
    assert "5030 rows need at least" in text
    assert "make it larger with `shmring sidecar --slots 4096`" in text


@pytest.mark.kill
def test_worker_of_the_sidecar_that_is_killed_costs_nothing(
    spark, serve, name, cogrouped, monkeypatch, tmp_path
):
    monkeypatch.setenv("SHMRING_TEST_MARKER", str(tmp_path / "marker"))
    serve("left_side_of_a_second_worker", workers=2)
    frame = numbers(spark)
    result = cogrouped(name, frame, frame.where("k = 1"), frame.schema, connect_timeout=60)
    assert found(result) == found(frame)
    assert (tmp_path / "marker").exists()
