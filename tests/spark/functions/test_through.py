"""mapInArrow through a sidecar, on a real Spark."""

from __future__ import annotations

import os
import pickle

import pytest
from direct import DIRECT, ROWS, TYPES, columns_of
from pyspark.errors import PythonException

from shmring.spark import through


@pytest.fixture(scope="module")
def spark(start_spark):
    """Its Python workers ask the sidecars."""
    return start_spark("local[2]", **{DIRECT: "false"})


def test_every_type_comes_back_in_order_also_from_empty_partitions(spark, serve, name, set_option):
    serve("identity", workers=3)
    set_option(ROWS, 100)
    columns = columns_of(TYPES, "some")
    frame = spark.range(4000, numPartitions=4).where("id < 3000").selectExpr("id", *columns)
    result = frame.mapInArrow(through(name, in_flight=5), frame.schema)
    assert result.collect() == frame.collect()


def test_limit_leaves_nothing(spark, serve, name, reply_rings, until):
    serve("identity")
    frame = spark.range(10_000_000, numPartitions=2).mapInArrow(through(name), "id long")
    assert len(frame.limit(1).collect()) == 1
    until(lambda: not reply_rings(), "the end of the reply rings")


@pytest.mark.parametrize("direct", ["true", "false"])
def test_rows_of_two_tasks_reach_the_function_as_one_batch(spark, serve, name, set_option, direct):
    set_option(DIRECT, direct)
    serve("with_rows", max_batch_rows=20, max_wait_ms=3_600_000.0)
    frame = spark.range(20, numPartitions=2).mapInArrow(through(name), "id long, rows long")
    assert [tuple(row) for row in frame.orderBy("id").collect()] == [(i, 20) for i in range(20)]


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


def test_answer_of_another_type_is_refused_by_spark(spark, served):
    frame = spark.range(10, numPartitions=1).mapInArrow(through(served("as_text")), "x long")
    with pytest.raises(Exception, match="getLong"):
        frame.collect()


def test_through_is_refused_by_name_where_it_cannot_work(spark, served):
    name = served("identity")
    with pytest.raises(Exception, match="mapInArrow") as caught:
        spark.range(10, numPartitions=1).rdd.mapPartitions(through(name)).collect()
    text = str(caught.value)
    assert f'sidecar "{name}": Spark\'s Python workers send it the batches of mapInArrow' in text
    assert "this is pyspark.sql.types.Row" in text


@pytest.mark.kill
def test_cancelled_job_leaves_no_file_and_no_process(
    spark, serve, name, marker, until, reply_rings, start_job
):
    """The tasks wait in the client: Spark kills their workers, whose `finally` never runs."""
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
