"""What Spark's Python workers do, and what they leave to the jar."""

from __future__ import annotations

import pytest
from direct import DIRECT

from shmring.spark import metrics, pandas_udf, through

LARGE = "spark.sql.execution.arrow.useLargeVarTypes"
NEEDED = "functions for pandas need the jar: start the session with shmring.spark.configure"


def applied(frame, method, function):
    """The frame's rows through the function; the schema stays."""
    if method == "mapInPandas":
        return frame.mapInPandas(function, frame.schema)
    groups = frame.groupBy("id")
    if method == "cogroup":
        groups = groups.cogroup(frame.groupBy("id"))
        method = "applyInPandas"
    return getattr(groups, method)(function, frame.schema)


@pytest.mark.parametrize("method", ["mapInPandas", "applyInPandas", "cogroup"])
def test_methods_for_pandas_say_that_they_need_the_jar(spark, served, set_option, method):
    set_option(DIRECT, "false")
    name = served("left_side" if method == "cogroup" else "identity")
    frame = spark.range(3, numPartitions=1)
    with pytest.raises(Exception, match=f'sidecar "{name}": {NEEDED}'):
        applied(frame, method, through(name)).collect()


@pytest.mark.parametrize("why", ["metrics", "type", "wrapped"])
def test_so_they_do_with_the_jar_where_spark_runs_the_function(spark, served, set_option, why):
    set_option(DIRECT, "true")
    name = served("identity")
    run = through(name, metrics=metrics(spark.sparkContext) if why == "metrics" else None)
    column = "parse_json('{\"a\": 1}') c" if why == "type" else "id c"
    frame = spark.range(3, numPartitions=1).selectExpr(column)

    def wrapped(frames):
        yield from run(frames)

    with pytest.raises(Exception, match=NEEDED):
        frame.mapInPandas(wrapped if why == "wrapped" else run, frame.schema).collect()


@pytest.mark.parametrize("why", ["session", "metrics"])
@pytest.mark.parametrize("function", ["table_totals", "keyed_table_sides"])
def test_functions_of_arrow_say_so_if_they_take_the_key(spark, served, set_option, function, why):
    set_option(DIRECT, str(why == "metrics").lower())
    name = served(f"annotated:{function}")
    groups = spark.range(3, numPartitions=1).groupBy("id")
    if function == "keyed_table_sides":
        groups = groups.cogroup(groups)
    run = through(name, metrics=metrics(spark.sparkContext) if why == "metrics" else None)
    text = "without the jar: call it by .*applyInArrow, with the jar: start the session"
    with pytest.raises(Exception, match=text):
        groups.applyInArrow(run, "total long, key string").collect()


@pytest.mark.parametrize("why", ["session", "type"])
@pytest.mark.parametrize("function", ["series", "structs"])
def test_udfs_of_pandas_say_that_they_need_the_jar(spark, served, set_option, function, why):
    set_option(DIRECT, str(why == "type").lower())
    udf = pandas_udf(served(f"annotated:{function}"), "variant" if why == "type" else "long")
    text = "called as a UDF without the jar: call it by .* and columns of types that the jar leaves"
    with pytest.raises(Exception, match=text):
        spark.range(3).select(udf("id")).collect()


# Spark 4.2 refuses large texts that its own applyInArrow has given the function.
@pytest.mark.spark_version(since="4.3")
def test_texts_of_groups_may_be_large(spark, served, set_option):
    set_option(DIRECT, "false")
    name = served("identity")
    set_option(LARGE, "true")
    frame = spark.range(10, numPartitions=1).selectExpr(
        "id % 2 k", "id", "cast(id as string) text", "array(cast(id as string)) texts"
    )
    result = frame.groupBy("k").applyInArrow(through(name), frame.schema)
    assert sorted(map(tuple, result.collect())) == sorted(map(tuple, frame.collect()))
