"""Calls at the same time, or repeated, straight from the executor's JVM to a sidecar."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from direct import DIRECT, is_direct, plan_of
from pyspark.sql import functions
from pyspark.sql.functions import expr

from shmring.spark import arrow_udf, through

ROWS = 20_000
TOTAL = sum(range(ROWS))


@pytest.fixture(scope="module")
def spark(start_spark):
    return start_spark("local[4]", **{DIRECT: "true"})


def doubled(name, frame, method="map"):
    """A frame's numbers, doubled by this sidecar."""
    if method == "map":
        done = frame.withColumnRenamed("id", "x").mapInArrow(through(name), "x long")
    else:
        done = frame.select(arrow_udf(name, "long")("id").alias("x"))
    assert is_direct(done, name)
    return done


def total(frame):
    return frame.agg(functions.sum("x")).first()[0]


def test_threads_of_one_driver_run_their_queries_at_a_time(spark, served, thread):
    name = served("double", workers=2)
    frames = [
        doubled(name, spark.range(ROWS * i, ROWS * (i + 1), numPartitions=4)) for i in range(4)
    ]
    jobs = [thread(lambda frame=frame: [total(frame) for _ in range(3)]) for frame in frames]
    for i, job in enumerate(jobs):
        assert job.outcome() == [2 * (TOTAL + i * ROWS * ROWS)] * 3


def test_one_failing_query_leaves_the_other_alone(spark, served, thread):
    name = served("fail_on_seven", workers=2)
    bad = spark.range(8, numPartitions=4).select(arrow_udf(name, "long")("id"))
    good = spark.range(8, ROWS, numPartitions=4).mapInArrow(through(name), "id long")
    jobs = [thread(lambda: good.agg(functions.sum("id")).first()[0]) for _ in range(3)]
    for _ in range(3):
        with pytest.raises(Exception, match="seven is not allowed"):
            bad.collect()
    assert [job.outcome() for job in jobs] == [TOTAL - sum(range(8))] * 3


@pytest.mark.parametrize(("method", "adaptive"), [("map", "true"), ("udf", "false")])
def test_exchange_above_a_sidecar_is_used_again(spark, served, set_option, method, adaptive):
    set_option("spark.sql.adaptive.enabled", adaptive)
    set_option("spark.sql.autoBroadcastJoinThreshold", -1)
    name = served("double", workers=2)
    frame = doubled(name, spark.range(ROWS, numPartitions=4), method)
    sums = frame.groupBy(expr("x % 100").alias("k")).agg(functions.sum("x").alias("x"))
    joined = sums.alias("a").join(sums.alias("b"), expr("a.k = b.k")).selectExpr("a.x", "b.x y")
    joined.collect()
    assert "ReusedExchange" in plan_of(joined)
    assert total(joined) == 2 * TOTAL


class Usage:
    """Resources of a host that the executor's JVM and a sidecar's workers use."""

    def __init__(self, jvm, workers):
        self._jvm = jvm
        self._pid = jvm.ProcessHandle.current().pid()
        self._workers = workers

    def now(self):
        """How many descriptors each has, and how many threads."""
        descriptors = [len(os.listdir(f"/proc/{p}/fd")) for p in (self._pid, *self._workers)]
        threads = [len(os.listdir(f"/proc/{pid}/task")) for pid in self._workers]
        return [*descriptors, *threads, self._count_threads()]

    def _count_threads(self):
        """Count the JVM's threads without Spark's threads that free blocks after a collection."""
        threads = self._jvm.Thread.getAllStackTraces().keySet().toArray()
        return sum(not thread.getName().startswith("block-manager-") for thread in threads)

    def mappings(self, name):
        """Count the JVM's mappings of rings with this name."""
        return Path(f"/proc/{self._pid}/maps").read_text().count(name)

    def has_grown(self, before):
        """Whether there is more of anything, by one for ten jobs."""
        return any(b >= a + 8 for a, b in zip(before, self.now(), strict=True))


@pytest.mark.long
def test_a_hundred_jobs_of_a_session_leave_no_more_than_twenty(
    spark, serve, name, reply_rings, until
):
    sidecar = serve("fail_on_seven", workers=2)
    allocator = spark._jvm.org.apache.spark.sql.util.ArrowUtils.rootAllocator()
    allocated = allocator.getAllocatedMemory()
    usage = Usage(spark._jvm, sidecar.pids)

    def mapped(first, rows, tasks=4):
        return spark.range(first, first + rows, 1, tasks).mapInArrow(through(name), "id long")

    def run(job):  # none has an exchange, for which Spark has threads that stay for a minute
        if job % 10 == 0:
            with pytest.raises(Exception, match="seven is not allowed"):
                mapped(0, 100).collect()
        elif job % 10 == 5:
            assert len(mapped(8, 1_000_000).limit(3).collect()) == 3
        elif job % 2:
            assert len(mapped(8, ROWS).collect()) == ROWS
        else:
            frame = spark.range(8, 108, numPartitions=4)
            assert len(frame.select(arrow_udf(name, "long")("id")).collect()) == 100

    assert mapped(8, 10, tasks=1).count() == 10
    assert len(reply_rings()) == 1
    of_a_client = usage.mappings(name)
    for job in range(20):
        run(job)
    before = usage.now()
    for job in range(20, 100):
        run(job)
    until(lambda: not usage.has_grown(before), "as few descriptors and threads as there were")
    until(lambda: len(reply_rings()) <= 4, "no more reply rings than tasks at a time")
    until(lambda: usage.mappings(name) <= 4 * of_a_client, "the end of the other mappings")
    until(lambda: allocator.getAllocatedMemory() <= allocated, "the end of the buffers")
    assert sidecar.restarts == 0
