"""Where Spark has little memory for a task.

What goes to a sidecar counts as the task's memory, as what Spark's own operators hold does; Spark's
own way to its Python workers counts no batches, and nor does that over rings.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from direct import DIRECT, FUNCTIONS, ROWS, metrics_of
from pyspark.sql.functions import broadcast, col, expr
from unchanged import ADAPTIVE, arrays, arrays_iterator, compare, outcome, series, values

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
    field = kind.getDeclaredField("_memoryManager")  # the object's methods need a missing class
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
    allocated = root.getAllocatedMemory()
    wide = spark.range(64, numPartitions=1).selectExpr("1 k", "array(repeat('x', 2000000)) s")
    with pytest.raises(Exception, match=r"64 rows need at least \d+ bytes"):
        wide.groupBy("k").applyInArrow(through(name), wide.schema).collect()
    assert root.getPeakMemoryAllocation() <= max(before, allocated + (32 << 20))
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


@pytest.mark.long
@pytest.mark.parametrize("rows", [COUNT, 5_000])
def test_batches_that_the_task_has_no_memory_for_go_all_the_same(frame, set_option, rows):
    set_option(ROWS, rows)

    def before_last(batches):  # the function reads ahead
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


@pytest.mark.parametrize("columnar", [pytest.param(False, marks=pytest.mark.long), True])
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


@pytest.fixture
def vectors(spark):
    """Bytes that Arrow's vectors take in the executor."""
    return spark._jvm.org.apache.spark.sql.util.ArrowUtils.rootAllocator()


@pytest.mark.parametrize("below", ["rows", "file", "partners"])
@pytest.mark.parametrize("size", [20, pytest.param(3_000, marks=pytest.mark.long)])
def test_rows_wait_where_their_columns_would_take_too_much_memory(
    spark, set_option, held, until, vectors, tmp_path, below, size
):
    """The task has little memory, and Spark's batches have 5,000 rows."""
    set_option(ADAPTIVE, False)
    set_option(FUNCTIONS, "on")
    set_option(ROWS, 5_000)
    frame = spark.range(6_000, numPartitions=1).selectExpr("id", f"rpad(id, {size}, 'x') text")
    if below == "rows":
        frame = frame.repartition(1)  # else Spark makes the text above the function
    if below == "file":
        # With this on, each batch of the file becomes one request, and its rows always wait.
        set_option("spark.sql.execution.arrow.pythonUDF.columnarInput.enabled", False)
        frame.write.parquet(f"{tmp_path}/frame")
        frame = spark.read.parquet(f"{tmp_path}/frame")
    if below == "partners":  # one row makes many, without a stop of the code between them
        kinds = spark.range(1_500).selectExpr("id % 2 kind", "id other")
        few = frame.where("id < 8").withColumn("kind", expr("id % 2"))
        frame = few.join(broadcast(kinds), "kind").selectExpr("id * 1500 + other id", "text")
    plus, twice = arrays("long", lambda x: pc.add(x, 1)), values("long", lambda x: x and 2 * x)
    beside = frame.withColumn("z", plus("id")).withColumn("y", plus(col("id") * 2))
    before, allocated = vectors.getPeakMemoryAllocation(), vectors.getAllocatedMemory()
    for result in (beside, beside.withColumn("x", twice("z"))):
        sums = result.selectExpr(*(f"bit_xor(xxhash64({name}, id))" for name in result.columns))
        rows = sums.collect()
        assert metrics_of(sums, "ArrowEvalPython")["rowTasks"] == (size > 1000)
        set_option(FUNCTIONS, "off")
        assert sums.select("*").collect() == rows
        set_option(FUNCTIONS, "on")
    assert vectors.getPeakMemoryAllocation() <= max(before, allocated + (32 << 20))
    # Reads of rings that ended before this test may keep memory until a collection.
    until(lambda: held() == 0 and vectors.getAllocatedMemory() <= allocated, "the tasks' end")


def test_sorts_above_and_below_a_function_spill_and_do_not_fail(
    spark, set_option, held, until, live
):
    set_option(ADAPTIVE, False)
    rows = spark.range(COUNT, numPartitions=2).selectExpr(
        "id", "hash(id) h", "rpad(id, 300, 'x') t"
    )
    plus = arrays("long", lambda x: pc.add(x, 1))
    sides = [
        rows.sortWithinPartitions("h").withColumn("z", plus("h")).sortWithinPartitions("t"),
        rows.join(rows.selectExpr("id", "h other").hint("merge"), "id").withColumn("z", plus("h")),
        rows.withColumn("z", plus("h")).withColumn("n", expr("count(h) over (partition by z % 9)")),
    ]
    for number, frame in enumerate(sides):

        def totals(switch, frame=frame):
            set_option(FUNCTIONS, switch)
            found = outcome(frame.selectExpr("count(*)", "bit_xor(xxhash64(*))"))
            assert found[0].startswith("Row(count(1)=")
            return found

        compare(f"sorts that spill {number}", totals, live=live)
    until(lambda: held() == 0, "the end of the tasks")
