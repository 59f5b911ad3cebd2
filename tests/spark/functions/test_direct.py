"""mapInArrow through a sidecar straight from the executor's JVM, beside the way through Python."""

from __future__ import annotations

import contextlib
import functools as tools
import json
import os
import re
import signal
from pathlib import Path

import pyarrow as pa
import pytest
from direct import (
    ROWS,
    is_direct,
    metrics_of,
    plan_of,
    shown_of,
)
from programs import python
from pyspark.errors import IllegalArgumentException
from pyspark.resource import ResourceProfileBuilder, TaskResourceRequests
from pyspark.sql import functions
from pyspark.sql.types import ArrayType, LongType, MapType, StringType, StructField, StructType
from sessions import failure

import shmring
from shmring.sidecars import Sidecar
from shmring.spark import arrow_udf, through


def test_empty_partitions_columns_of_nulls_and_rows_that_are_not_unsafe(spark, served):
    name = served("identity")
    frame = spark.range(10, numPartitions=8).where("id > 100")
    assert frame.mapInArrow(through(name), "id long").collect() == []
    frame = spark.createDataFrame([(1, None), (2, None)], "a int, b string")
    assert frame.mapInArrow(through(name), frame.schema).collect() == frame.collect()


def test_answers_larger_than_the_reply_ring(spark, served):
    name = served("many", workers=2)
    frame = spark.range(60, numPartitions=1)
    result = frame.mapInArrow(through(name, reply_slots=1024), "x long")
    assert result.agg(functions.sum("x")).first()[0] == 12_500 * sum(range(60))


def test_rows_without_columns_are_cut_into_batches_too(spark, served, set_option):
    name = served("no_batches")
    set_option(ROWS, 0)
    frame = spark.range(2**24 + 1, numPartitions=1).select().mapInArrow(through(name), "x long")
    assert is_direct(frame, name)
    assert frame.collect() == []
    found = metrics_of(frame)
    assert (found["numInputRows"], found["requests"]) == (2**24 + 1, 2)


def test_job_that_fails_leaves_its_sidecar_to_the_next_ones(spark, serve, name):
    serve("RaisesEveryThird", slots=4096)  # the function turns its garbage collector off
    function = through(name, timeout=60)
    rows = spark.range(500_000, numPartitions=2)
    bad, good = (rows.selectExpr(f"3 * id + {rest} x") for rest in (0, 1))
    assert "every third is not allowed" in failure(bad.mapInArrow(function, "x long").count)
    for _ in range(2):  # many laps of the ring
        assert good.mapInArrow(function, "x long").count() == 500_000


def test_explain_says_why_mapinarrow_is_left_to_spark(spark, served):
    name = served("identity")
    frame = spark.range(10).selectExpr("id", "cast(id as string) collate UTF8_LCASE text")
    profile = ResourceProfileBuilder().require(TaskResourceRequests().cpus(1)).build

    def reasons(frame):
        return re.findall(r" \[Spark's own way: (.*?)\]", plan_of(frame))

    lower = 'column "text" of the type string collate UTF8_LCASE'
    left = frame.mapInArrow(through(name), frame.schema)
    assert reasons(left) == [lower]
    assert left.collect() == frame.collect()
    given = spark.range(10).mapInArrow(through(name), frame.schema[1:])
    assert reasons(given) == [lower]
    profiled = spark.range(10).mapInArrow(through(name), "id long", profile=profile)
    assert reasons(profiled) == ["it has a resource profile"]
    assert reasons(spark.range(10).mapInArrow(through(name), "id long")) == []


JOB = """
    import sys
    from pyspark.sql import SparkSession
    import shmring.spark

    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    spark = shmring.spark.configure(builder).getOrCreate()
    function = shmring.spark.through(sys.argv[1])
    variants = spark.range(10).selectExpr("parse_json('1') v")
    for _ in range(2):
        variants.mapInArrow(function, "v variant").explain()
    spark.stop()
"""


@pytest.mark.long
def test_log_says_once_what_is_left_to_spark(name, tmp_path):
    job = python(JOB, name, env={**os.environ, "SPARK_LOCAL_DIRS": str(tmp_path)}, check=True)
    reason = 'column "v" of the type variant'
    assert job.stderr.count(f'mapInArrow\'s batches to sidecar "{name}": {reason}') == 1
    assert job.stdout.count(f"[Spark's own way: {reason}]") == 2


def test_texts_whose_usual_collation_is_named_go_straight(spark, served):
    name = served("identity")
    text = "string collate UTF8_BINARY"  # Spark Connect's name for text since 4.2
    columns = ("id", f"cast(id as {text}) text", f"array(cast(id as {text})) texts")
    frame = spark.range(10).selectExpr(*columns)
    schema = f"id long, text {text}, texts array<{text}>"
    result = frame.mapInArrow(through(name), schema)
    assert is_direct(result, name)
    assert result.collect() == frame.collect()
    texts = frame.select(arrow_udf(name, text)("text")).collect()
    assert [row[0] for row in texts] == list(map(str, range(10)))


def test_functions_of_others_are_left_to_spark(spark, served):
    """A wrapper does something else than what it wraps."""
    name = served("identity")
    inner = through(name)

    @tools.wraps(inner)
    def run(batches):
        for batch in inner(batches):
            yield batch.slice(0, 1)

    frame = spark.range(100, numPartitions=1).mapInArrow(run, "id long")
    assert not is_direct(frame, name)
    assert frame.count() == 1


def test_operators_in_a_row_joins_caches_and_barriers(spark, served):
    name = served("identity", workers=2)
    through_it = through(name)
    frame = spark.range(5000, numPartitions=3).mapInArrow(through_it, "id long")
    twice = frame.mapInArrow(through_it, "id long")
    assert twice.agg(functions.sum("id")).first()[0] == sum(range(5000))
    joined = twice.join(frame.withColumnRenamed("id", "other"), functions.expr("id = other + 1"))
    assert joined.count() == 4999
    cached = frame.cache()
    assert cached.count() == cached.where("id >= 0").count() == 5000
    cached.unpersist()
    barrier = spark.range(100, numPartitions=2).mapInArrow(through_it, "id long", barrier=True)
    assert barrier.count() == 100


def test_rows_go_on_into_a_python_function_which_ends_early(spark, served):
    """Spark may read the rows from another thread than the task's, which ends the task first."""
    name = served("identity")

    def first(batches):
        yield next(batches).slice(0, 1)

    frame = spark.range(300_000, numPartitions=2).mapInArrow(through(name), "id long")
    assert frame.mapInArrow(first, "id long").count() == 2


def test_explain_and_the_sql_tab_say_what_the_operator_did(spark, served):
    name = served("double")
    frame = spark.range(30_000, numPartitions=3).mapInArrow(through(name, in_flight=2), "x long")
    assert f"Sidecar {name} mapInArrow, through({name}, in_flight=2" in plan_of(frame)
    frame.collect()
    found = metrics_of(frame)
    assert found["numInputRows"] == found["numOutputRows"] == 30_000
    assert found["batches"] == found["requests"] == found["answers"] == 3
    assert found["answerBytes"] > 30_000 * 8
    (shown,) = shown_of(frame, name)
    assert all(shown.values())
    assert shown["number of output rows"] == "30,000"
    assert shown["requests sent again"] == "0"


def test_explain_tells_inputs_and_arguments_as_of_sparks_own_nodes(spark, serve, name):
    frame = spark.range(3).selectExpr("id k", "-id v")
    mapped = frame.mapInArrow(through(name), "k long")
    groups = frame.groupBy("k")
    grouped = groups.applyInArrow(through(name), "k long")
    other = spark.range(3).groupBy("id")
    cogrouped = groups.cogroup(other).applyInArrow(through(name), "k long")
    for result, method, inputs in (
        (mapped, "mapInArrow", [r"Input \[2\]: \[k#"]),
        (grouped, "applyInArrow", [r"Input \[3\]: \[k#"]),
        (cogrouped, "applyInArrow", [r"Left output \[3\]: \[k#", r"Right output \[2\]: \[id#"]),
        (frame.select(arrow_udf(name, "long")("v")), "udf", [r"Input \[1\]: \[id#"]),
    ):
        text = result._jdf.queryExecution().explainString(
            spark._jvm.org.apache.spark.sql.execution.ExplainMode.fromString("formatted")
        )
        lines = [f"Sidecar {name}", *inputs, f"Arguments: {method}, through\\({name}, "]
        assert re.search(r"\(\d+\) " + r".*\n".join(lines), text), text


def test_time_that_the_sidecar_was_at_work_is_told(spark, serve, name):
    serve("slow")
    frame = spark.range(30_000, numPartitions=3).mapInArrow(through(name), "id long")
    frame.collect()
    assert metrics_of(frame)["workedTime"] >= 3 * 50_000_000  # ns: it sleeps as long


@pytest.mark.long
def test_clients_are_kept_from_task_to_task_and_go_with_their_sidecar(
    spark, serve, name, reply_rings, until
):
    sidecar = serve("identity")
    java = spark._jvm.java.lang.ProcessHandle.current().pid()
    allocator = spark._jvm.org.apache.spark.sql.util.ArrowUtils.rootAllocator()
    allocated = allocator.getAllocatedMemory()
    seen = set()
    for _ in range(20):
        assert spark.range(100, numPartitions=4).mapInArrow(through(name), "id long").count() == 100
        seen |= set(reply_rings())
    assert 1 <= len(seen) <= 2  # local[2] runs two tasks at a time
    until(lambda: allocator.getAllocatedMemory() <= allocated, "the end of the buffers")
    sidecar.stop()
    until(lambda: not reply_rings(), "the end of the reply rings")
    maps = Path(f"/proc/{java}/maps")
    until(lambda: name not in maps.read_text(), "the end of the mappings")


def test_limit_ends_early_and_leaves_nothing(spark, serve, name, reply_rings, until):
    sidecar = serve("identity")
    frame = spark.range(10_000_000, numPartitions=2).mapInArrow(through(name), "id long")
    assert len(frame.limit(1).collect()) == 1
    sidecar.stop()
    until(lambda: not reply_rings(), "the end of the reply rings")


# --- when something goes wrong ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "schema", "why", "got"),
    [
        ("with_pid", "id long", "other names, or another number", "id bigint, pid bigint"),
        ("as_text", "x long", "x is string, not bigint", "x string"),
        ("double", "x struct<a: long>", "x is bigint, not struct<a:bigint>", "x bigint"),
    ],
)
def test_answer_that_spark_does_not_expect_is_told_with_both(
    spark, served, function, schema, why, got
):
    name = served(function)
    text = failure(spark.range(10, numPartitions=1).mapInArrow(through(name), schema).collect)
    assert f'functions:{function} of sidecar "{name}" answered with other columns' in text
    assert why in text
    assert f"got {got})" in text


def test_row_that_fits_no_ring_is_told_with_what_to_set(spark, served):
    name = served("identity", slots=1024)
    frame = spark.range(1).selectExpr("repeat('x', 1000000) text")
    text = failure(frame.mapInArrow(through(name), "text string").collect)
    assert "make it larger with `shmring sidecar --slots 8192`" in text


def test_sidecar_that_is_not_there_fails_the_job_in_words(spark, name):
    frame = spark.range(10).mapInArrow(through(name, connect_timeout=0.1), "id long")
    assert f'no sidecar "{name}" on this host (waited 0.1 s' in failure(frame.collect)


def test_sidecar_that_hangs_is_given_up_and_said_what_it_is_at(
    spark, serve, name, marker, thread, until
):
    serve("wait_for_marker")
    rows = spark.range(10, numPartitions=1)
    first = thread(rows.mapInArrow(through(name), "id long").count)
    until(marker.with_suffix(".begun").exists)
    text = failure(rows.mapInArrow(through(name, timeout=1), "id long").collect)
    marker.touch()
    assert first.outcome() == 10
    assert f'sidecar "{name}" lives but has not answered process' in text
    assert "serves functions:wait_for_marker, and is at message 0" in text


@pytest.mark.kill
@pytest.mark.parametrize("method", ["map", pytest.param("udf", marks=pytest.mark.long)])
def test_workers_that_are_killed_under_load_cost_nothing(
    spark, serve, name, set_option, thread, until, method
):
    """Two workers of three: no batch has more deaths, for which a third one would be its end."""
    sidecar = serve("slow", workers=3)
    set_option(ROWS, 500)
    numbers = spark.range(60_000, numPartitions=2)
    if method == "map":
        frame = numbers.mapInArrow(through(name, connect_timeout=60), "id long")
    else:
        same = arrow_udf(name, "long", connect_timeout=60)
        frame = numbers.select("id", same("id").alias("same")).where("same = id")
    job = thread(lambda: tuple(frame.selectExpr("count(*)", "sum(id)").first()))
    for worker in range(2):
        before = sidecar.restarts
        os.kill(sidecar.pids[worker], signal.SIGKILL)
        until(lambda before=before: sidecar.restarts > before or not job.is_alive())
    assert job.outcome() == (60_000, sum(range(60_000)))


@pytest.mark.kill
def test_sidecar_that_ends_during_the_job_fails_it_in_words(
    spark, serve, name, marker, thread, until, reply_rings
):
    sidecar = serve("wait_for_marker", workers=2)
    frame = spark.range(1000, numPartitions=1).mapInArrow(
        through(name, connect_timeout=0.5), "id long"
    )
    collecting = thread(lambda: failure(frame.collect))
    until(marker.with_suffix(".begun").exists)
    for pid in sidecar.pids:
        os.kill(pid, signal.SIGKILL)
    sidecar.stop()
    assert "has no living worker" in collecting.outcome()
    until(lambda: not reply_rings(), "the end of the reply rings")


@pytest.mark.kill
def test_sidecar_that_is_started_anew_gets_what_was_under_way(
    spark, serve, name, marker, thread, until
):
    first = serve("wait_for_marker")
    frame = spark.range(50_000, numPartitions=1).mapInArrow(
        through(name, connect_timeout=60), "id long"
    )
    collecting = thread(lambda: frame.agg(functions.sum("id")).first()[0])
    until(marker.with_suffix(".begun").exists)
    for pid in first.pids:
        os.kill(pid, signal.SIGKILL)
    first.stop()
    with Sidecar("functions:identity", name=name):
        assert collecting.outcome() == sum(range(50_000))


@pytest.mark.kill
def test_cancelled_job_gives_its_requests_up_and_leaves_nothing(
    spark, serve, name, marker, until, reply_rings, start_job
):
    sidecar = serve("wait_for_marker", workers=2)
    frame = spark.range(1000, numPartitions=2).mapInArrow(through(name), "id long")
    cancel = start_job(frame)
    until(lambda: marker.with_suffix(".begun").exists() and len(reply_rings()) == 2)
    cancel()
    marker.touch()
    until(lambda: not reply_rings(), "the end of the reply rings")
    assert frame.count() == 1000
    assert sidecar.restarts == 0


# --- the reply rings of an executor's clients -----------------------------------------------------


@pytest.mark.long
def test_reply_ring_grows_for_a_row_that_it_does_not_take(spark, serve, name, set_option):
    serve("a_megabyte", workers=2)
    set_option(ROWS, 10)
    frame = spark.range(60, numPartitions=2).selectExpr("id x")
    result = frame.mapInArrow(through(name), "text string")
    assert is_direct(result, name)
    for _ in range(2):
        texts = [row.text for row in result.collect()]
        assert sorted(t for t in texts if len(t) < 5) == sorted(map(str, range(60)))
        assert 2 <= sum(t == "y" * 1_000_000 for t in texts) == len(texts) - 60


def test_reply_ring_has_room_for_what_is_under_way(spark, serve, name, reply_rings):
    serve("identity")
    frame = spark.range(0, 50_000, 1, 1).selectExpr("id", "repeat('x', 92) text")
    result = frame.mapInArrow(through(name), frame.schema)
    assert is_direct(result, name)
    assert result.selectExpr("sum(id)", "sum(length(text))").first()[:] == (
        sum(range(50_000)),
        92 * 50_000,
    )
    (ring,) = reply_rings()
    with shmring.attach(ring, read_only=True) as found:
        assert found.slots == 16384  # four of 10,000 rows


@pytest.mark.long
def test_client_that_there_is_no_room_for_takes_no_place(spark, serve, name):
    serve("identity")
    with contextlib.ExitStack() as stack, shmring.attach(f"sidecar.{name}") as ring:
        while len(ring.participants()) < ring.info.participants - 10:
            stack.enter_context(shmring.attach(ring.name))
        with pytest.raises(Exception, match="no room for another client"):
            spark.range(1).mapInArrow(through(name, timeout=0.1), "id long").collect()
        assert len(ring.participants()) == ring.info.participants - 10


# --- answers that Spark cannot take ---------------------------------------------------------------


if hasattr(pa, "decimal32"):  # from pyarrow 19 on

    def test_type_that_arrow_has_no_vectors_for_is_an_error(spark, serve, name):
        serve("as_small_decimals")
        frame = spark.range(3).selectExpr("id x")
        with pytest.raises(Exception, match=r"decimal values|x is Decimal\(9, 2, 32\)"):
            frame.mapInArrow(through(name), "x decimal(9, 2)").collect()


LONGS = ArrayType(LongType(), containsNull=False)
NESTED = ArrayType(StructType([StructField("a", LONGS, False)]))
DEEP = "array(if(id = 2, null, struct(array(if(id = 3, null, id)) a)))"


@pytest.mark.parametrize(
    ("method", "values", "kind", "nullable"),
    [
        ("mapInArrow", "if(id = 3, null, id)", LongType(), False),
        ("mapInArrow", "if(id = 3, null, cast(id as string))", StringType(), False),
        ("mapInArrow", "if(id = 2, null, array(id, if(id = 3, null, id)))", LONGS, True),
        (
            "mapInArrow",
            "map('k', if(id = 3, null, id))",
            MapType(StringType(), LongType(), False),
            True,
        ),
        ("mapInArrow", DEEP, NESTED, True),
        ("applyInArrow", DEEP, NESTED, True),
    ],
    ids=["long", "string", "array", "map", "nested", "groups"],
)
def test_null_where_none_was_declared_is_an_error(spark, served, method, values, kind, nullable):
    name = served("identity")
    frame = spark.range(6, numPartitions=2).selectExpr("id", f"{values} x")
    declared = StructType([StructField("id", LongType()), StructField("x", kind, nullable)])

    def answered(frame, function):
        data = frame if method.startswith("map") else frame.groupBy("id")
        return getattr(data, method)(function, declared)

    with pytest.raises(Exception, match=r"a null in .*x,? (which|that) was declared without nulls"):
        answered(frame, through(name)).collect()
    whole = frame.where("id != 3")
    ours = answered(whole, through(name))
    assert is_direct(ours, name)
    assert sorted(ours.collect()) == sorted(whole.collect())


def test_null_inside_a_udfs_result_is_an_error_where_none_was_declared(spark, served):
    udf = arrow_udf(served("identity"), LONGS)
    frame = spark.range(6).selectExpr("id", "array(if(id = 3, null, id)) x")
    with pytest.raises(Exception, match="a null in a part of _0 that was declared without nulls"):
        frame.select(udf("x")).collect()
    whole = frame.where("id != 3")
    assert [row.y for row in whole.select(udf("x").alias("y")).collect()] == [
        row.x for row in whole.collect()
    ]


# CHANGE: edit this for a new option of a client
@pytest.mark.parametrize(
    ("option", "value"),
    [
        *[("in_flight", value) for value in (0, -1, 2**31, "3", None, True, 1.5)],
        *[("timeout", value) for value in (-1.0, float("nan"), "5", None)],
        *[("reply_slots", value) for value in (0, -1, "4096")],
        *[("name", value) for value in (5, None)],
    ],
)
def test_option_that_python_does_not_send_is_an_error_in_java(spark, option, value):
    """A pickle of another version may have invalid options; Python checks a user's options."""
    good = through("nobody")
    said = json.loads(good.described.removeprefix("shmring.through"))
    kind = type(f"shmring.through{json.dumps({**said, option: value})}", (type(good),), {})
    frame = spark.range(3).mapInArrow(kind("nobody", 3, 1.0, 0.0, None), "id long")
    with pytest.raises(IllegalArgumentException, match=f"{option} cannot be"):
        frame.collect()
