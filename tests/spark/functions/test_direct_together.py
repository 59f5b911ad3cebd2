"""What runs at a time, or again, on the way straight from the executor's JVM to a sidecar."""

from __future__ import annotations

import pytest
from direct import DIRECT, is_direct, plan_of
from pyspark.sql import functions
from pyspark.sql.functions import expr

from shmring.spark import arrow_udf, through

pytestmark = pytest.mark.spark_version(since="4.1")
ROWS = 20_000
TOTAL = sum(range(ROWS))


@pytest.fixture(scope="module")
def spark(start_spark):
    return start_spark("local[4]", **{DIRECT: "true"})


@pytest.fixture(params=["map", "udf"])
def double(request, name):
    """Doubles a frame's numbers, by each of the two operators."""

    def apply(frame):
        if request.param == "map":
            done = frame.withColumnRenamed("id", "x").mapInArrow(through(name), "x long")
        else:
            done = frame.select(arrow_udf(name, "long")("id").alias("x"))
        assert is_direct(done, name)
        return done

    return apply


def total(frame):
    return frame.agg(functions.sum("x")).first()[0]


def test_threads_of_one_driver_run_their_queries_at_a_time(spark, serve, name, double, thread):
    serve("double", workers=2)
    frames = [double(spark.range(ROWS * i, ROWS * (i + 1), numPartitions=4)) for i in range(4)]
    jobs = [thread(lambda frame=frame: [total(frame) for _ in range(3)]) for frame in frames]
    for i, job in enumerate(jobs):
        assert job.outcome() == [2 * (TOTAL + i * ROWS * ROWS)] * 3


def test_threads_share_one_frame(spark, serve, name, double, thread):
    serve("double", workers=2)
    frame = double(spark.range(ROWS, numPartitions=4))
    jobs = [thread(lambda: total(frame)) for _ in range(4)]
    assert [job.outcome() for job in jobs] == [2 * TOTAL] * 4


def test_one_failing_query_leaves_the_other_alone(spark, serve, name, thread):
    serve("fail_on_seven", workers=2)
    bad = spark.range(8, numPartitions=4).select(arrow_udf(name, "long")("id"))
    good = spark.range(8, ROWS, numPartitions=4).mapInArrow(through(name), "id long")
    jobs = [thread(lambda: good.agg(functions.sum("id")).first()[0]) for _ in range(3)]
    for _ in range(3):
        with pytest.raises(Exception, match="seven is not allowed"):
            bad.collect()
    assert [job.outcome() for job in jobs] == [TOTAL - sum(range(8))] * 3


def test_frame_that_is_read_twice_cached_and_joined_with_itself(spark, serve, name, double):
    serve("double", workers=2)
    frame = double(spark.range(ROWS, numPartitions=4))
    assert frame.collect() == frame.collect()
    joined = frame.alias("a").join(frame.alias("b"), expr("a.x = b.x"))
    assert joined.count() == ROWS
    cached = frame.cache()
    assert total(cached) == total(cached.where("x >= 0")) == 2 * TOTAL
    assert "InMemoryTableScan" in plan_of(cached.where("x >= 0"))
    cached.unpersist()


@pytest.mark.parametrize("adaptive", ["true", "false"])
def test_exchange_above_a_sidecar_is_used_again(spark, serve, name, double, set_option, adaptive):
    set_option("spark.sql.adaptive.enabled", adaptive)
    set_option("spark.sql.autoBroadcastJoinThreshold", -1)
    serve("double", workers=2)
    frame = double(spark.range(ROWS, numPartitions=4))
    sums = frame.groupBy(expr("x % 100").alias("k")).agg(functions.sum("x").alias("x"))
    joined = sums.alias("a").join(sums.alias("b"), expr("a.k = b.k")).selectExpr("a.x", "b.x y")
    joined.collect()
    assert "ReusedExchange" in plan_of(joined)
    assert total(joined) == 2 * TOTAL


def test_limit_leaves_nothing(spark, serve, name, double, reply_rings, until):
    sidecar = serve("double")
    frame = double(spark.range(5_000_000, numPartitions=4))
    assert len(frame.limit(5).collect()) == 5
    assert len(frame.take(3)) == 3
    sidecar.stop()
    until(lambda: not reply_rings(), "the end of the reply rings")
