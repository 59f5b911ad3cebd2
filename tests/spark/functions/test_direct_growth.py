"""The reply rings of an executor's clients: what does not fit them, and what they are made for."""

from __future__ import annotations

import pytest
from direct import DIRECT, is_direct

import shmring
from shmring.spark import through


@pytest.fixture(scope="module")
def spark(start_spark):
    return start_spark("local[2]", **{DIRECT: "true"})


def test_reply_ring_grows_for_a_row_that_it_does_not_take(spark, serve, name):
    serve("a_megabyte", workers=2)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 10)
    try:
        frame = spark.range(60, numPartitions=2).selectExpr("id x")
        result = frame.mapInArrow(through(name), "text string")
        assert is_direct(result, name)
        for _ in range(2):
            texts = [row.text for row in result.collect()]
            assert sorted(t for t in texts if len(t) < 5) == sorted(map(str, range(60)))
            assert 2 <= sum(t == "y" * 1_000_000 for t in texts) == len(texts) - 60
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


def test_size_that_the_user_named_is_an_error_as_before(spark, serve, name):
    serve("a_megabyte")
    frame = spark.range(1, numPartitions=1).selectExpr("id x")
    result = frame.mapInArrow(through(name, reply_slots=1024), "text string")
    with pytest.raises(Exception, match=r"reply_slots=8192 of through\(\)"):
        result.collect()


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
