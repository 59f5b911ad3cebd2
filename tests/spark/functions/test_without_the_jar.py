"""What Spark's Python workers do, and what they leave to the jar."""

from __future__ import annotations

import pytest
from direct import DIRECT

from shmring.spark import arrow_udf, metrics, through

NEEDED = "for other methods and for UDFs start the session with shmring.spark.configure"


def applied(frame, method, function):
    """The frame's rows through the function; the schema stays."""
    if method == "mapInPandas":
        return frame.mapInPandas(function, frame.schema)
    groups = frame.groupBy("id")
    if method == "cogroup":
        groups = groups.cogroup(frame.groupBy("id"))
        method = "applyInPandas"
    return getattr(groups, method)(function, frame.schema)


METHODS = ["mapInPandas", "applyInPandas", "applyInArrow", "cogroup"]


@pytest.mark.parametrize("method", METHODS)
def test_methods_say_that_they_need_the_jar(spark, served, set_option, method):
    set_option(DIRECT, "false")
    name = served("left_side" if method == "cogroup" else "identity")
    frame = spark.range(3, numPartitions=1)
    with pytest.raises(Exception, match=f'sidecar "{name}": without the jar .*{NEEDED}'):
        applied(frame, method, through(name)).collect()


def test_udfs_say_so(spark, served, set_option):
    set_option(DIRECT, "false")
    with pytest.raises(Exception, match=NEEDED):
        spark.range(3).select(arrow_udf(served("identity"), "long")("id")).collect()


@pytest.mark.parametrize("why", ["metrics", "wrapped"])
def test_so_they_do_with_the_jar_where_spark_runs_the_function(spark, served, set_option, why):
    set_option(DIRECT, "true")
    name = served("identity")
    run = through(name, metrics=metrics(spark.sparkContext) if why == "metrics" else None)
    frame = spark.range(3, numPartitions=1)

    def wrapped(frames):
        yield from run(frames)

    with pytest.raises(Exception, match=NEEDED):
        frame.mapInPandas(wrapped if why == "wrapped" else run, frame.schema).collect()


@pytest.mark.parametrize("method", METHODS)
def test_columns_that_no_sidecar_has_are_named(spark, served, set_option, method):
    set_option(DIRECT, "true")
    frame = spark.range(3).selectExpr("id", "parse_json('{}') v")
    refused = 'cannot have column "v" of the type variant; cast it'
    with pytest.raises(Exception, match=f"sidecar .*In(Pandas|Arrow) {refused}"):
        applied(frame, method, through(served("identity"))).collect()


def test_only_for_pandas_annotations_and_keys_a_function_needs_the_jar(spark, served, set_option):
    set_option(DIRECT, "false")
    run = through(served("annotated:frames"))
    with pytest.raises(Exception, match=r"call it by mapInPandas.*, with the jar: start the sess"):
        spark.range(3, numPartitions=1).mapInArrow(run, "id long").collect()
