"""Requests of several tasks that a sidecar joins into one batch."""

from __future__ import annotations

import pytest

from shmring.spark import through

HOUR = 3_600_000.0  # ms: only the rows decide when the function is called


@pytest.fixture(scope="module")
def spark(start_spark):
    return start_spark("local[2]", **{"spark.sql.session.timeZone": "Europe/Berlin"})


@pytest.fixture(params=["true", "false"], ids=["direct", "python"])
def way(request, spark):
    """The way that the rows take."""
    spark.conf.set("spark.shmring.direct", request.param)
    yield
    spark.conf.unset("spark.shmring.direct")


def test_rows_of_two_tasks_reach_the_function_as_one_batch(spark, serve, name, way):
    serve("with_rows", max_batch_rows=20, max_wait_ms=HOUR)
    frame = spark.range(20, numPartitions=2).mapInArrow(through(name), "id long, rows long")
    assert [tuple(row) for row in frame.orderBy("id").collect()] == [(i, 20) for i in range(20)]
