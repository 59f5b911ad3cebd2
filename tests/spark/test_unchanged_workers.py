"""Workers have over rings the settings, the context and the ends that they have in Spark's way."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import mapped
import pyarrow as pa
from direct import ROWS
from pyspark.sql import DataFrame
from unchanged import (
    ADAPTIVE,
    WHOLE_STAGE,
    Cases,
    Given,
    adds_to,
    arrays,
    compare,
    for_each,
    said,
    series,
    values,
    way_of,
)

CASES: Cases = {}
case = adds_to(CASES)


# --- Spark's settings for its workers, and their ends ---------------------------------------------


@case()
def context_broadcast_and_accumulator(s):
    context = s.spark.sparkContext
    told, seen = context.broadcast({"k": 5}), context.accumulator(0)
    (s.folder / "side.txt").write_text("of a file")
    context.addFile(str(s.folder / "side.txt"))
    context.setLocalProperty("shmring.property", "seen")

    def tells(batches):
        from pyspark import SparkFiles, TaskContext

        task = TaskContext.get()
        for batch in batches:
            seen.add(batch.num_rows)
        text = Path(SparkFiles.get("side.txt")).read_text()
        of_task = f"{task.partitionId()} {task.attemptNumber()} {task.cpus()} {task.resources()}"
        yield pa.record_batch(
            {"n": [f"{text} {of_task} {task.getLocalProperty('shmring.property')}"]}
        )

    def query():
        rows = s.t.mapInArrow(tells, "n string").collect()
        s.t.select(series("long", lambda x: x + told.value["k"])("id")).collect()
        return rows, seen.value

    return query


@case()
def environment_of_a_function(s):
    def tells(batches):
        names = ("OMP_NUM_THREADS", "SPARK_REUSE_WORKER", "SPARK_AUTH_SOCKET_TIMEOUT", "PYTHONPATH")
        of_names = [str(os.environ.get(name)) for name in names]
        yield pa.record_batch({"n": [os.getcwd(), *of_names, str(sys.path), str(sys.stdin.read())]})

    return s.one.mapInArrow(tells, "n string")


@case()
def barrier(s):
    def gathers(batches):
        from pyspark import BarrierTaskContext

        context = BarrierTaskContext.get()
        context.barrier()
        for _ in batches:
            pass
        yield pa.record_batch({"n": [str(sorted(context.allGather(str(context.partitionId()))))]})

    return [
        s.t.mapInArrow(gathers, "n string", barrier=True),
        s.t.mapInPandas(mapped.of_frames(gathers), "n string", barrier=True),
    ]


@case()
def output_and_deep_recursion(s):
    def prints(batches):
        for batch in batches:
            print("to stdout", batch.num_rows, flush=True)
            yield batch

    def recurses(batches):
        return recurses(batches)

    return [s.t.mapInArrow(prints, s.t.schema), s.one.mapInArrow(recurses, s.t.schema)]


def kinds_of_all_sorts(s: Given) -> list[DataFrame]:
    """Few of each kind, for options."""
    few = s.t.limit(30).selectExpr("id % 3 k", "*")
    mean = series("double", lambda x: x.mean(), float)
    return [
        few.mapInPandas(lambda frames: frames, few.schema),
        few.select(
            "*", series("double", lambda x: x / 2)("half"), arrays("long", lambda x: x)("id")
        ),
        few.groupBy("k").applyInPandas(lambda frame: frame[["k"]], "k long"),
        few.groupBy("k").agg(mean("half")).orderBy("k"),
        few.select(values("int", lambda x: 7 // (x - 40))("id")),
    ]


for name, options in {
    "without_whole_stage_code": {WHOLE_STAGE: False, ADAPTIVE: False},
    "without_ansi": {"spark.sql.ansi.enabled": False},
    "with_safe_conversion": {"spark.sql.execution.pandas.convertToArrowArraySafely": True},
    "with_legacy_conversion": {
        "spark.sql.legacy.execution.pythonUDF.pandas.conversion.enabled": True
    },
    "with_int_extensions": {"spark.sql.execution.pythonUDF.pandas.preferIntExtensionDtype": True},
}.items():
    CASES[f"kinds_{name}"] = kinds_of_all_sorts, options


@case({"spark.sql.execution.pythonUDF.mapInBatch.legacy.acceptAnyIterable.enabled": False})
def iterables_that_are_no_iterators(s):
    return s.one.mapInArrow(lambda batches: list(batches), s.t.schema)


@case({"spark.sql.execution.pyspark.udf.hideTraceback.enabled": True})
def settings_that_an_rdd_keeps(s):
    """Its tasks are of no query of Spark's, and have the settings only while they begin."""

    def query():
        s.spark.conf.set(ROWS, 20)
        try:
            lengths = s.one.mapInArrow(mapped.counts, "n long").rdd
            failing = s.one.mapInArrow(mapped.raises, s.t.schema).rdd
        finally:
            s.spark.conf.set(ROWS, 50)
        try:
            failing.collect()
        except Exception as error:
            return lengths.collect(), said(error)

    return query


@case({"spark.sql.pyspark.udf.profiler": "perf"})
def profiled(s):
    def query():
        s.spark.profile.clear()
        rows = s.t.select(series("long", lambda x: x + 1)("id")).collect()
        results = s.spark._profiler_collector._perf_profile_results
        return rows, [stats.total_calls > 0 for stats in results.values()]

    return query


@case()
def workers_that_are_not_used_again(s):
    def query():
        conf = s.spark.sparkContext._jsc.sc().conf()
        conf.set("spark.python.worker.reuse", "false")
        try:
            return s.t.mapInArrow(mapped.counts, "n long").collect()
        finally:
            conf.set("spark.python.worker.reuse", "true")

    return query


# --- both ways ----------------------------------------------------------------------------------


RARE = ("kinds_with_", "profiled")


@for_each(CASES, rare=RARE)
def test_case(spark, set_option, tmp_path, name, live):
    compare(name, way_of(spark, set_option, tmp_path, *CASES[name]), live=live)
