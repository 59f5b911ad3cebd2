"""Functions that Spark's Python workers run, and calls that need the jar."""

from __future__ import annotations

import pytest
from direct import DIRECT

from shmring.spark import arrow_udf, through

NEEDED = r"For applyInArrow and arrow_udf start the session with shmring\.spark\.configure"
FOR_ARROW = r"Instead of a method for pandas call the one for Arrow"


def applied(frame, method, function):
    """The frame's rows through the function; the schema stays."""
    groups = frame.groupBy("id")
    if method == "cogroup":
        groups = groups.cogroup(frame.groupBy("id"))
    return groups.applyInArrow(function, frame.schema)


@pytest.mark.parametrize("method", ["applyInArrow", "cogroup"])
def test_methods_say_that_they_need_the_jar(spark, served, set_option, method):
    set_option(DIRECT, "false")
    name = served("left_side" if method == "cogroup" else "identity")
    frame = spark.range(3, numPartitions=1)
    with pytest.raises(Exception, match=rf'sidecar "{name}": .* mapInArrow alone.*{NEEDED}'):
        applied(frame, method, through(name)).collect()


def test_udfs_say_so(spark, served, set_option):
    set_option(DIRECT, "false")
    with pytest.raises(Exception, match=NEEDED):
        spark.range(3).select(arrow_udf(served("identity"), "long")("id")).collect()


def test_so_they_do_with_the_jar_where_spark_runs_the_function(spark, served, set_option):
    name = served("identity")
    run = through(name)
    frame = spark.range(3, numPartitions=1)

    def wrapped(group):
        return run(group)

    with pytest.raises(Exception, match=NEEDED):
        applied(frame, "applyInArrow", wrapped).collect()


def test_methods_for_pandas_say_which_to_call(spark, served, set_option):
    run = through(served("identity"))
    frame = spark.range(3, numPartitions=1)
    for refused in (
        frame.mapInPandas(run, frame.schema),
        frame.groupBy("id").applyInPandas(run, frame.schema),
    ):
        with pytest.raises(Exception, match=FOR_ARROW):
            refused.collect()


@pytest.mark.parametrize("method", ["applyInArrow", "cogroup"])
def test_columns_that_no_sidecar_has_are_named(spark, served, set_option, method):
    frame = spark.range(3).selectExpr("id", "parse_json('{}') v")
    refused = 'cannot have column "v" of the type variant; cast it'
    with pytest.raises(Exception, match=f"sidecar .*applyInArrow {refused}"):
        applied(frame, method, through(served("identity"))).collect()
