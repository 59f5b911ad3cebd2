"""mapInPandas through a sidecar, beside Spark's own."""

from __future__ import annotations

import pytest
from direct import ROWS, TYPES, ZONED, columns_of, is_direct, own_identity
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions

from shmring.spark import through


@pytest.fixture(scope="module")
def spark(start_spark):
    return start_spark("local[2]", **ZONED)


@pytest.mark.parametrize("nulls", ["some", "none", "all"])
def test_every_type_comes_back_as_from_sparks_own_function(
    spark, served, own_rows, set_option, nulls
):
    name = served("identity", workers=2)
    set_option(ROWS, 70)
    frame = spark.range(300, numPartitions=2).selectExpr(*columns_of(TYPES, nulls))
    result = frame.mapInPandas(through(name), frame.schema)
    assert is_direct(result, name)
    own = own_rows(nulls, lambda: frame.mapInPandas(own_identity(), frame.schema))
    assert result.collect() == own


def test_function_sees_the_types_that_spark_has(spark, served):
    """In a frame decimals and texts are objects, and an integer beside nulls is none."""
    name = served("types")
    kinds = {
        "if(id % 2 = 0, null, id)": "int64",
        "if(id < 0, id, null)": "int64",
        "cast(id as decimal(10, 2))": "decimal128(10, 2)",
        "timestamp_seconds(id)": "timestamp[us, tz=Europe/Berlin]",
        "cast(timestamp_seconds(id) as timestamp_ntz)": "timestamp[us]",
        "if(id % 2 = 0, null, 'a')": "string",
        "map('k', array(id))": "map<string, list<element: int64 not null>>",
    }
    frame = spark.range(10, numPartitions=1).selectExpr(
        *(f"{text} c{i}" for i, text in enumerate(kinds))
    )
    seen = frame.mapInPandas(through(name), "types string").distinct().collect()
    text = ", ".join(f"c{i} {kind}" for i, kind in enumerate(kinds.values()))
    assert [row.types for row in seen] == [text]


def test_timestamps_within_other_types_keep_their_instants(spark, served):
    name = served("identity")
    frame = spark.range(100, numPartitions=2).selectExpr(
        "array(timestamp_seconds(id * 3600000), null) list",
        "map(id, struct(timestamp_seconds(id) at, cast('2024-02-29' as timestamp_ntz) b)) m",
    )
    result = frame.mapInPandas(through(name), frame.schema)
    assert result.collect() == frame.collect()


def test_empty_partitions_and_answers_of_other_sizes(spark, serve, name):
    sidecar = serve("twice")
    frame = spark.range(10, numPartitions=8).where("id > 100")
    assert frame.mapInPandas(through(name), "id long").collect() == []
    assert spark.range(1000).mapInPandas(through(name), "id long").count() == 2000
    sidecar.stop()
    serve("no_batches")
    assert spark.range(1000).mapInPandas(through(name), "id long").count() == 0


def test_columns_of_other_names_are_refused_as_spark_does(spark, served):
    name = served("double")
    frame = spark.range(3, numPartitions=1).mapInPandas(through(name), "twice long")
    with pytest.raises(
        (PySparkException, Py4JJavaError), match="twice is missing, x is not declared"
    ):
        frame.collect()


def test_structs_fields_of_other_names_are_refused(spark, served):
    name = served("identity")
    frame = spark.range(3, numPartitions=1).selectExpr("struct(id a) s", "array(struct(id a)) l")
    result = frame.mapInPandas(through(name), "s struct<b: long>, l array<struct<b: long>>")
    with pytest.raises((PySparkException, Py4JJavaError), match="s is struct<a: int64"):
        result.collect()


def test_a_barrier(spark, served):
    name = served("identity")
    barrier = spark.range(100, numPartitions=2).mapInPandas(through(name), "id long", barrier=True)
    assert barrier.agg(functions.sum("id")).first()[0] == sum(range(100))


# --- when something goes wrong ------------------------------------------------------------------


def test_exception_of_the_sidecars_function_is_the_tasks(spark, served):
    name = served("fail_on_seven")
    frame = spark.range(100, numPartitions=2).mapInPandas(through(name), "id long")
    with pytest.raises(Exception, match=f'(?s)sidecar "{name}" raised:.*seven is not allowed'):
        frame.collect()


def test_answer_that_spark_does_not_expect_is_told_with_both(spark, served):
    name = served("double")
    frame = spark.range(10, numPartitions=1).mapInPandas(through(name), "x long, y string")
    with pytest.raises(Exception, match="y is missing") as caught:
        frame.collect()
    text = str(caught.value)
    assert f'functions:double of sidecar "{name}" answered with other columns' in text
    assert "than mapInPandas was declared with" in text
    assert "(expected x bigint, y string; got x int64)" in text
