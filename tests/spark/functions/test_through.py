"""mapInArrow through a sidecar, on a real Spark."""

from __future__ import annotations

import os
import pickle
import signal

import pytest
from pyspark.errors import PythonException
from pyspark.sql import functions

from shmring.spark import through


def test_rows_go_through_the_sidecar_and_back(spark, served):
    name = served("double", workers=2)
    frame = spark.range(100_000, numPartitions=4).withColumnRenamed("id", "x")
    result = frame.mapInArrow(through(name), "x long")
    assert result.agg(functions.count("*"), functions.sum("x")).first() == (
        100_000,
        2 * sum(range(100_000)),
    )


def test_order_within_a_partition_is_kept(spark, serve, name):
    sidecar = serve("with_pid", workers=3)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 100)
    try:
        frame = spark.range(20_000, numPartitions=2)
        rows = frame.mapInArrow(through(name, in_flight=5), "id long, pid long").collect()
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert [row.id for row in rows] == list(range(20_000))
    pids = {row.pid for row in rows}
    assert len(pids) > 1
    assert pids <= set(sidecar.pids)


def test_every_type_that_spark_has_survives(spark, served):
    name = served("identity")
    frame = spark.sql(
        """
        select id, cast(id as string) s, cast(cast(id as string) as binary) b, id % 2 = 0 flag,
            cast(id as decimal(20, 3)) d, date'2024-02-29' day,
            timestamp'2024-02-29 12:00:00' at, array(id, null) list,
            map('k', id) m, struct(id, array(cast(id as string)) inner) st,
            if(id % 3 = 0, null, id) n
        from range(1000)
        """
    )
    result = frame.mapInArrow(through(name), frame.schema)
    assert result.collect() == frame.collect()


def test_empty_partitions_and_empty_answers(spark, served):
    name = served("identity")
    frame = spark.range(10, numPartitions=8).where("id > 100")
    assert frame.mapInArrow(through(name), "id long").collect() == []


def test_function_may_drop_or_multiply_rows(spark, served):
    name = served("twice")
    result = spark.range(1000).mapInArrow(through(name), "id long")
    assert result.count() == 2000


def test_limit_leaves_nothing(spark, serve, name, reply_rings, until):
    serve("identity")
    frame = spark.range(10_000_000, numPartitions=2).mapInArrow(through(name), "id long")
    assert len(frame.limit(1).collect()) == 1
    until(lambda: not reply_rings(), "the end of the reply rings")


def test_what_is_shipped_to_the_workers_is_small():
    assert len(pickle.dumps(through("scorer"))) < 500


# --- when something goes wrong ------------------------------------------------------------------


def test_exception_of_the_sidecars_function_is_the_tasks(spark, serve, name, reply_rings, until):
    serve("fail_on_seven")
    frame = spark.range(100, numPartitions=2).mapInArrow(through(name), "id long")
    with pytest.raises(PythonException) as caught:
        frame.collect()
    text = str(caught.value)
    assert "SidecarError" in text
    assert "seven is not allowed" in text
    assert "in fail_on_seven" in text
    until(lambda: not reply_rings(), "the end of the reply rings")


def test_function_that_returns_none_fails_the_job_and_loses_no_rows(spark, served):
    name = served("nothing")
    frame = spark.range(100, numPartitions=2).mapInArrow(through(name), "id long")
    with pytest.raises(PythonException, match="functions:nothing returned None"):
        frame.collect()


@pytest.mark.parametrize(
    ("function", "schema", "why", "got"),
    [
        ("double", "x long, y string", "y is missing", "x int64"),
        ("with_pid", "id long", "it has 2 columns, not 1", "id int64, pid int64"),
        ("double", "x int", "x is int64, not int", "x int64"),
        ("as_text", "x long", "x is string, not bigint", "x string"),
    ],
)
def test_answer_that_spark_does_not_expect_is_told_with_both(
    spark, served, function, schema, why, got
):
    name = served(function)
    frame = spark.range(10, numPartitions=1).mapInArrow(through(name), schema)
    with pytest.raises(PythonException) as caught:
        frame.collect()
    text = str(caught.value)
    declared = schema.replace("long", "bigint")
    assert f'functions:{function} of sidecar "{name}" answered with other columns' in text
    assert f"{why} (expected {declared}; got {got})" in text


def test_columns_in_another_order_are_not_taken_for_each_other(spark, served):
    name = served("swapped")
    frame = spark.range(10).selectExpr("id a", "-id b").mapInArrow(through(name), "a long, b long")
    with pytest.raises(PythonException, match="b stands where a is expected"):
        frame.collect()


def test_columns_may_have_other_names(spark, served):
    name = served("double")
    frame = spark.range(3, numPartitions=1).mapInArrow(through(name), "twice long")
    assert [row.twice for row in frame.collect()] == [0, 2, 4]


def test_through_is_refused_by_name_where_it_cannot_work(spark, served):
    name = served("identity")
    with pytest.raises(Exception, match="mapInArrow") as caught:
        spark.range(10, numPartitions=1).rdd.mapPartitions(through(name)).collect()
    text = str(caught.value)
    assert f'sidecar "{name}": Spark\'s Python workers send it the batches of mapInArrow' in text
    assert "this is pyspark.sql.types.Row" in text


def test_sidecar_that_is_not_there_fails_the_job_in_words(spark, name):
    frame = spark.range(10).mapInArrow(through(name, connect_timeout=0.1), "id long")
    with pytest.raises(PythonException, match=f'no sidecar "{name}" on this host'):
        frame.collect()


@pytest.mark.kill
def test_worker_of_the_sidecar_that_is_killed_costs_nothing(
    spark, serve, name, monkeypatch, tmp_path
):
    monkeypatch.setenv("SHMRING_TEST_MARKER", str(tmp_path / "marker"))
    serve("die_once", workers=2)
    frame = spark.range(100_000, numPartitions=4).mapInArrow(
        through(name, connect_timeout=60), "id long"
    )
    assert frame.agg(functions.sum("id")).first()[0] == sum(range(100_000))
    assert (tmp_path / "marker").exists()


@pytest.mark.kill
def test_sidecar_that_ends_during_the_job_fails_it_in_words(
    spark, serve, name, monkeypatch, tmp_path, thread, until, reply_rings
):
    marker = tmp_path / "marker"
    monkeypatch.setenv("SHMRING_TEST_MARKER", str(marker))
    sidecar = serve("wait_for_marker", workers=2)
    frame = spark.range(1000, numPartitions=1).mapInArrow(
        through(name, connect_timeout=0.5), "id long"
    )
    collecting = thread(frame.collect)
    until(marker.with_suffix(".begun").exists)
    for pid in sidecar.pids:
        os.kill(pid, signal.SIGKILL)
    sidecar.stop()
    with pytest.raises(PythonException, match="has no living worker"):
        collecting.outcome()
    until(lambda: not reply_rings(), "the end of the reply rings")


@pytest.mark.kill
def test_cancelled_job_leaves_no_file_and_no_process(
    spark, serve, name, monkeypatch, tmp_path, until, reply_rings, start_job
):
    """The tasks wait in the client: Spark kills their workers, whose `finally` never runs."""
    marker = tmp_path / "marker"
    monkeypatch.setenv("SHMRING_TEST_MARKER", str(marker))
    sidecar = serve("wait_for_marker", workers=2)
    frame = spark.range(1000, numPartitions=2).mapInArrow(through(name), "id long")
    cancel = start_job(frame)
    until(lambda: marker.with_suffix(".begun").exists() and len(reply_rings()) == 2)
    clients = [int(ring.split(".")[-1].partition("-")[0]) for ring in reply_rings()]
    cancel()
    until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in clients), "the clients' end")
    marker.touch()
    until(lambda: not reply_rings(), "the sweep")
    # Sidecar and session go on as if nothing had been.
    assert frame.count() == 1000
    assert sidecar.restarts == 0
