"""Options of the session that change while a query is made, and what Spark does not tell of it."""

from __future__ import annotations

import pytest

from shmring.spark import through
from shmring.spark.functions import frames

ZONE = "spark.sql.session.timeZone"
LARGE = "spark.sql.execution.arrow.useLargeVarTypes"


def applied(frame, method, function):
    """The frame's rows through the function; the schema stays."""
    if method == "mapInPandas":
        return frame.mapInPandas(function, frame.schema)
    groups = frame.groupBy("k")
    if method == "cogroup":
        groups = groups.cogroup(frame.where("id < 0").groupBy("k"))
        method = "applyInPandas"
    return getattr(groups, method)(function, frame.schema)


def rows(frame):
    return sorted(map(tuple, frame.collect()))


@pytest.fixture
def sources_unknown(monkeypatch):
    """As with Spark Connect, which pickles the function apart from the frame."""
    monkeypatch.setattr(frames, "sources_of", lambda function: ())


@pytest.mark.parametrize("method", ["mapInPandas", "applyInPandas", "cogroup"])
def test_instants_stay_when_the_zone_changes(spark, served, set_option, method):
    name = served("left_side" if method == "cogroup" else "identity")
    set_option(ZONE, "Europe/Berlin")
    frame = spark.range(10, numPartitions=1).selectExpr(
        "id % 2 k", "id", "timestamp_seconds(id * 3600000) time"
    )
    result = applied(frame, method, through(name))
    expected = rows(frame)
    set_option(ZONE, "Asia/Tokyo")
    assert rows(result) == expected
    set_option(ZONE, "America/New_York")  # the query is planned already
    assert rows(result) == expected


# Spark 4.2 refuses large texts that its own applyInArrow has given the function.
LARGE_IN_ARROW = pytest.param("applyInArrow", marks=pytest.mark.spark_version(since="4.3"))


@pytest.mark.parametrize("method", ["mapInPandas", "applyInPandas", LARGE_IN_ARROW])
def test_texts_may_be_large_where_the_source_is_not_known(
    spark, served, set_option, sources_unknown, method
):
    name = served("identity")
    set_option(LARGE, "true")
    frame = spark.range(10, numPartitions=1).selectExpr(
        "id % 2 k", "id", "cast(id as string) text", "array(cast(id as string)) texts"
    )
    assert rows(applied(frame, method, through(name))) == rows(frame)


@pytest.mark.parametrize("method", ["mapInPandas", "applyInPandas", "cogroup"])
def test_times_stay_where_the_source_is_not_known(
    spark, served, set_option, sources_unknown, method
):
    name = served("left_side" if method == "cogroup" else "identity")
    set_option(ZONE, "America/New_York")
    frame = spark.range(10, numPartitions=1).selectExpr(
        "id % 2 k",
        "id",
        "if(id = 3, null, timestamp_seconds(id * 3600000)) time",
        "if(id = 4, null, cast(timestamp_seconds(id * 3600000) as timestamp_ntz)) local",
    )
    assert rows(applied(frame, method, through(name))) == rows(frame)


@pytest.mark.parametrize("method", ["mapInPandas", "applyInPandas", "cogroup"])
def test_integers_beside_nulls_stay_where_the_source_is_not_known(
    spark, served, sources_unknown, method
):
    name = served("left_side" if method == "cogroup" else "identity")
    frame = spark.range(10, numPartitions=1).selectExpr(
        "id % 2 k", "id", "if(id % 3 = 0, null, id) gaps", "if(id > 2, null, cast(id as int)) few"
    )
    assert rows(applied(frame, method, through(name))) == rows(frame)


def test_halves_are_no_integers_where_the_source_is_not_known(spark, served, sources_unknown):
    name = served("identity")
    frame = spark.range(10, numPartitions=1).selectExpr("id / 2 half")
    with pytest.raises(Exception, match="half is double, not bigint"):
        frame.mapInPandas(through(name), "half long").collect()


def test_sidecar_sees_instants_where_the_source_is_not_known(
    spark, served, set_option, sources_unknown
):
    name = served("types")
    set_option(ZONE, "Asia/Tokyo")
    frame = spark.range(1, numPartitions=1).selectExpr("timestamp_seconds(id) time")
    (row,) = frame.mapInPandas(through(name), "types string").collect()
    assert row.types.startswith("time timestamp[us, tz=Asia/Tokyo]")
