"""What a task sends to a sidecar counts as its memory, as what Spark's own operators hold does."""

from __future__ import annotations

import pytest
from direct import DIRECT, ROWS

from shmring.spark import through


@pytest.fixture(scope="module")
def spark(start_spark):
    """Operators may have some megabytes."""
    return start_spark("local[2]", **{DIRECT: "true", "spark.memory.fraction": "0.02"})


@pytest.fixture
def held(spark):
    """Bytes that the executor's tasks hold."""
    kind = spark._jvm.java.lang.Class.forName("org.apache.spark.SparkEnv")
    field = kind.getDeclaredField("_memoryManager")  # its methods need a class that is not there
    field.setAccessible(True)
    return field.get(spark.sparkContext._jsc.sc().env()).executionMemoryUsed


def test_tasks_hold_memory_until_their_answers_have_come(
    spark, serve, name, held, monkeypatch, tmp_path, thread, until
):
    marker = tmp_path / "marker"
    monkeypatch.setenv("SHMRING_TEST_MARKER", str(marker))
    serve("wait_for_marker", workers=2)
    frame = spark.range(10_000, numPartitions=2).mapInArrow(through(name), "id long")
    counting = thread(frame.count)
    until(marker.with_suffix(".begun").exists)
    until(lambda: held() >= 5_000 * 8, "the memory of a batch")
    marker.touch()
    assert counting.outcome() == 10_000
    until(lambda: held() == 0, "the end of the tasks")


def test_batches_that_are_too_large_for_the_task_fail_it_in_words(
    spark, serve, name, held, set_option, until
):
    serve("identity")
    frame = spark.range(40_000, numPartitions=1).selectExpr("id", "repeat('x', 1000) text")
    mapped = frame.mapInArrow(through(name), frame.schema)
    set_option(ROWS, 40_000)
    with pytest.raises(Exception, match="UNABLE_TO_ACQUIRE_MEMORY"):
        mapped.write.format("noop").mode("overwrite").save()
    until(lambda: held() == 0, "the end of the task")
    set_option(ROWS, 500)
    assert frame.mapInArrow(through(name), frame.schema).count() == 40_000
    until(lambda: held() == 0, "the end of the task")


def test_cogroup_that_no_request_takes_is_counted_and_not_held(spark, serve, name, held, until):
    serve("left_side", slots=1024)
    columns = "1 k", "array(repeat('x', 1000)) s"
    left = spark.range(40_000, numPartitions=1).selectExpr(*columns)
    right = spark.range(30, numPartitions=1).selectExpr(*columns)
    groups = left.groupBy("k").cogroup(right.groupBy("k"))
    result = groups.applyInArrow(through(name), left.schema)
    with pytest.raises(Exception, match=r"40030 rows need at least \d+ bytes.*make it larger"):
        result.collect()
    until(lambda: held() == 0, "the end of the task")
    few = left.limit(100).groupBy("k").cogroup(right.where("false").groupBy("k"))
    assert few.applyInArrow(through(name), left.schema).count() == 100
