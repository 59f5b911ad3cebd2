"""Options of the session that change while a query is made."""

from __future__ import annotations

import pytest
from direct import DIRECT

from shmring.spark import through

ZONE = "spark.sql.session.timeZone"


def applied(frame, method, function):
    if method == "mapInArrow":
        return frame.mapInArrow(function, frame.schema)
    groups = frame.groupBy("k")
    if method == "cogroup":
        groups = groups.cogroup(frame.where("id < 0").groupBy("k"))
    return groups.applyInArrow(function, frame.schema)


def rows(frame):
    return sorted(map(tuple, frame.collect()))


@pytest.mark.parametrize("method", ["mapInArrow", "applyInArrow", "cogroup"])
def test_instants_stay_when_the_zone_changes(spark, served, set_option, method):
    name = served("left_side" if method == "cogroup" else "identity")
    set_option(DIRECT, "true")
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
