"""Functions over rings where Spark has little memory for a task: its own way counts no batches."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from direct import FUNCTIONS, ROWS
from unchanged import arrays_iterator, outcome, series

COUNT = 40_000


@pytest.fixture(scope="module")
def spark(start_spark):
    """Operators may have some megabytes."""
    return start_spark("local[2]", **{"spark.memory.fraction": "0.02"})


@pytest.fixture
def frame(spark, set_option):
    set_option(FUNCTIONS, "on")
    return spark.range(COUNT, numPartitions=1).selectExpr("id", "rpad(id, 1000, 'x') text")


def _totals(frame):
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
    assert _totals(frame.mapInArrow(before_last, frame.schema)) == all_rows
    assert _totals(frame.select(same("text").alias("text"))) == all_rows
    assert _totals(frame.groupBy().applyInArrow(lambda table: table, frame.schema)) == all_rows


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
    assert _totals(kept.where("spilled")) == [
        f"Row(count(1)={COUNT}, sum(length(text))={1000 * COUNT})"
    ]
