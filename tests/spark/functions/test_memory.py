"""Where Spark has little memory for a task.

What goes to a sidecar counts as the task's memory, as what Spark's own operators hold does; Spark's
own way to its Python workers counts no batches, and nor does that over rings.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from direct import DIRECT, FUNCTIONS, ROWS
from unchanged import arrays_iterator, outcome, series

from shmring.spark import through

COUNT = 40_000


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
    spark, serve, name, held, marker, thread, until
):
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
    frame = spark.range(COUNT, numPartitions=1).selectExpr("id", "repeat('x', 1000) text")
    mapped = frame.mapInArrow(through(name), frame.schema)
    set_option(ROWS, COUNT)
    with pytest.raises(Exception, match="UNABLE_TO_ACQUIRE_MEMORY"):
        mapped.write.format("noop").mode("overwrite").save()
    until(lambda: held() == 0, "the end of the task")
    set_option(ROWS, 500)
    assert frame.mapInArrow(through(name), frame.schema).count() == COUNT
    until(lambda: held() == 0, "the end of the task")


def test_group_that_no_request_takes_is_counted_and_not_held(spark, serve, name, held, until):
    serve("left_side", slots=1024)
    columns = "1 k", "array(repeat('x', 1000)) s"
    left = spark.range(COUNT, numPartitions=1).selectExpr(*columns)
    right = spark.range(30, numPartitions=1).selectExpr(*columns)
    groups = left.groupBy("k").cogroup(right.groupBy("k"))
    result = groups.applyInArrow(through(name), left.schema)
    with pytest.raises(Exception, match=r"40030 rows need at least \d+ bytes.*make it larger"):
        result.collect()
    root = spark._jvm.org.apache.spark.sql.util.ArrowUtils.rootAllocator()
    before = root.getPeakMemoryAllocation()
    wide = spark.range(64, numPartitions=1).selectExpr("1 k", "array(repeat('x', 2000000)) s")
    with pytest.raises(Exception, match=r"64 rows need at least \d+ bytes"):
        wide.groupBy("k").applyInArrow(through(name), wide.schema).collect()
    assert root.getPeakMemoryAllocation() <= max(before, 32 << 20)
    until(lambda: held() == 0, "the end of the task")
    few = left.limit(100).groupBy("k").cogroup(right.where("false").groupBy("k"))
    assert few.applyInArrow(through(name), left.schema).count() == 100


# --- functions over rings -------------------------------------------------------------------------


@pytest.fixture
def frame(spark, set_option):
    set_option(FUNCTIONS, "on")
    return spark.range(COUNT, numPartitions=1).selectExpr("id", "rpad(id, 1000, 'x') text")


def totals(frame):
    return outcome(frame.selectExpr("count(*)", "sum(length(text))"), over_rings=True)


@pytest.mark.parametrize("rows", [COUNT, 5_000])
def test_batches_that_the_task_has_no_memory_for_go_all_the_same(frame, set_option, rows):
    set_option(ROWS, rows)

    def before_last(batches):  # it reads ahead
        last = next(batches)
        for batch in batches:
            yield last
            last = batch
        yield last

    same = series("string", lambda x: x)
    all_rows = [f"Row(count(1)={COUNT}, sum(length(text))={1000 * COUNT})"]
    assert totals(frame.mapInArrow(before_last, frame.schema)) == all_rows
    assert totals(frame.select(same("text").alias("text"))) == all_rows
    assert totals(frame.groupBy().applyInArrow(lambda table: table, frame.schema)) == all_rows


@pytest.mark.parametrize("columnar", [False, True])
def test_rows_that_wait_for_an_iterator_go_to_a_file(spark, frame, set_option, tmp_path, columnar):
    set_option("spark.sql.parquet.enableVectorizedReader", columnar)
    frame.write.parquet(f"{tmp_path}/frame")
    frame = spark.read.parquet(f"{tmp_path}/frame")
    folder = spark._jvm.org.apache.spark.util.Utils.getLocalDir(spark.sparkContext._jsc.sc().conf())

    def takes_all(batches):
        for batch in list(batches):
            spilled = any(Path(folder).rglob("buffer*"))
            yield pa.array([spilled] * len(batch))

    keeps = arrays_iterator("boolean", lambda batches: takes_all(batches))
    kept = frame.select("text", keeps("id").alias("spilled"))
    assert totals(kept.where("spilled")) == [
        f"Row(count(1)={COUNT}, sum(length(text))={1000 * COUNT})"
    ]
