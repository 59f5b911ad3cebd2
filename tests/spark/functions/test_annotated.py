"""Functions with Spark's annotations in a sidecar, beside themselves in Spark's own workers."""

from __future__ import annotations

import annotated
import pytest
from direct import ROWS, TYPES, ZONED, columns_of, is_direct
from pyspark.sql import functions
from pyspark.sql.functions import col, expr

from shmring.spark import arrow_udf, pandas_udf, through

KEYED = "total long, key string"


@pytest.fixture(scope="module")
def spark(start_spark):
    return start_spark("local[2]", **ZONED)


@pytest.fixture
def few_rows(set_option):
    """Several batches in a task."""
    set_option(ROWS, 20)


def own(function, kind, maker=functions.pandas_udf):
    """Spark's own UDF of it."""
    return maker(getattr(annotated, function), kind)


def typed(spark, nulls="some"):
    columns = columns_of(TYPES, nulls)
    return spark.range(60, numPartitions=2).selectExpr("id", "id % 3 k", *columns)


def same(ours, own, name, *order):
    """Whether both come to the same rows, ours straight from the JVM."""
    assert is_direct(ours, name)
    rows = ours.orderBy(*order).collect() if order else ours.collect()
    return rows == (own.orderBy(*order).collect() if order else own.collect())


# --- UDFs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("nulls", ["some", "none", "all"])
@pytest.mark.parametrize("function", ["series", "series_iterator", "kinds"])
def test_series_of_every_type_come_and_go_as_in_sparks_own_udf(
    spark, served, few_rows, function, nulls
):
    name = served(f"annotated:{function}", workers=2)
    frame = typed(spark, nulls)
    # In words, all fields of a struct may be null: Spark itself refuses others.
    kinds = {c: frame.schema[c].dataType.simpleString() for c in TYPES}
    if function == "kinds":
        kinds = dict.fromkeys(TYPES, "string")
    ours = [pandas_udf(name, kind)(c).alias(f"{c}_") for c, kind in kinds.items()]
    theirs = [own(function, kind)(c).alias(f"{c}_") for c, kind in kinds.items()]
    for first in range(0, len(kinds), 10):
        columns = slice(first, first + 10)
        assert same(frame.select("id", *ours[columns]), frame.select("id", *theirs[columns]), name)


@pytest.mark.parametrize(
    ("function", "kind", "columns", "named"),
    [
        ("sums", "long", ("id", "big"), {}),
        ("difference", "long", ("id", "big"), {}),
        ("difference", "long", ("big",), {"right": "k"}),
        ("difference", "long", (), {"right": "id", "left": "big"}),
        ("difference", "long", ("right",), {"right": "id"}),
        ("by_keyword", "long", ("id",), {"right": "id"}),
        ("structs", "id long, t string", ("pair",), {}),
        ("indexed", "long", ("id",), {}),
        ("index", "long", ("id",), {}),
        ("objects", "long", ("number",), {}),
        ("objects", "string", ("text",), {}),
        ("categories", "string", ("text",), {}),
        ("naive", "timestamp", ("id",), {}),
        ("naive", "timestamp_ntz", ("id",), {}),
        ("naive", "date", ("id",), {}),
        ("series", "tinyint", ("id",), {}),
        ("series", "double", ("exact",), {}),
        ("series", "boolean", ("id",), {}),
    ],
)
def test_udf_of_pandas_is_as_sparks_own(spark, served, few_rows, function, kind, columns, named):
    name = served(f"annotated:{function}")
    frame = typed(spark).selectExpr("*", "struct(id, text t) pair", "k right")
    ours = frame.select("id", pandas_udf(name, kind)(*columns, **named).alias("r"))
    assert same(ours, frame.select("id", own(function, kind)(*columns, **named).alias("r")), name)


@pytest.mark.parametrize(
    ("function", "kind", "columns", "named"),
    [
        ("array", "timestamp", ("time",), {}),
        ("array", "int", ("id",), {}),
        ("arrays", "string", ("text",), {}),
        ("array_sums", "long", ("id", "big"), {}),
        ("array_difference", "long", (), {"right": "id", "left": "big"}),
        ("array_difference", "long", ("k",), {"right": "id"}),
        ("array_difference", "long", ("right",), {"right": "id"}),
    ],
)
def test_udf_of_arrow_is_as_sparks_own(spark, served, function, kind, columns, named):
    name = served(f"annotated:{function}")
    frame = typed(spark).withColumn("right", col("k"))
    ours = frame.select("id", arrow_udf(name, kind)(*columns, **named).alias("r"))
    theirs = own(function, kind, functions.arrow_udf)
    assert is_direct(ours, name)
    assert ours.collect() == frame.select("id", theirs(*columns, **named).alias("r")).collect()


@pytest.mark.parametrize("function", ["Model", "partly", "decorated"])
def test_function_may_be_an_object_or_partial_or_decorated(spark, served, function):
    name = served(f"annotated:{function}")
    frame = spark.range(100).select(pandas_udf(name, "long")("id").alias("x"))
    assert [row.x for row in frame.collect()] == [3 * i for i in range(100)]


@pytest.mark.parametrize(
    ("function", "kind", "text"),
    [
        ("shorter", "long", "expected 60, got 59"),
        ("scalar", "long", r"gave a builtins\.int where Spark wants a pandas\.Series"),
        ("a_list", "long", r"gave a builtins\.list where Spark wants"),
        ("raising", "long", "KeyError: 'no such thing'"),
        ("series", "string", "(?i)convert"),
        ("series", "a long", r"where Spark wants a pandas\.DataFrame"),
        ("totals", "long", "was called as a UDF: call it by applyInPandas"),
    ],
)
def test_what_fails_in_spark_fails(spark, served, function, kind, text):
    name = served(f"annotated:{function}")
    frame = spark.range(60, numPartitions=1)
    with pytest.raises(Exception, match=text):
        frame.select(pandas_udf(name, kind)("id")).collect()
    if function != "totals":
        with pytest.raises(Exception, match=r".+"):
            frame.select(own(function, kind)("id")).collect()


# --- frames and groups --------------------------------------------------------------------------


@pytest.mark.parametrize("nulls", ["some", "none", "all"])
def test_frames_of_every_type_come_and_go_as_in_sparks_own_map(spark, served, few_rows, nulls):
    frame = typed(spark, nulls)
    name = served("annotated:frames", workers=2)
    ours = frame.mapInPandas(through(name), frame.schema)
    assert same(ours, frame.mapInPandas(annotated.frames, frame.schema), name)
    name = served("annotated:frame_kinds")
    for seen in (
        frame,
        frame.select("id", "tiny", "flag", "time"),
    ):  # Spark converts each otherwise
        ours = seen.mapInPandas(through(name), "kinds string")
        assert same(ours, seen.mapInPandas(annotated.frame_kinds, "kinds string"), name)


def test_columns_of_frames_find_their_places_as_sparks_do(spark, served, few_rows):
    frame = typed(spark).selectExpr("id", "text s")
    for function, schema in (("swapped", "id long, s string"), ("frames", "id int, s string")):
        name = served(f"annotated:{function}")
        ours = frame.mapInPandas(through(name), schema)
        assert same(ours, frame.mapInPandas(getattr(annotated, function), schema), name)
    missing = frame.mapInPandas(through(served("annotated:frames")), "id long, m int, s string")
    with pytest.raises(Exception, match=r"mapInPandas was declared with: m is missing"):
        missing.collect()


def test_iterator_may_give_rows_when_it_has_seen_all(spark, served):
    name = served("annotated:behind")
    frame = spark.range(100, numPartitions=2)
    ours = frame.mapInPandas(through(name), "rows long")
    assert same(ours, frame.mapInPandas(annotated.behind, "rows long"), name)
    assert frame.where("id < 0").mapInPandas(through(name), "rows long").collect() == []


def test_groups_are_as_in_sparks_own(spark, served):
    frame = typed(spark)
    groups = frame.groupBy("k")
    name = served("annotated:frame")
    ours = groups.applyInPandas(through(name), frame.schema)
    assert same(ours, groups.applyInPandas(annotated.frame, frame.schema), name, "id")
    name = served("annotated:group_kinds")
    ours = groups.applyInPandas(through(name), "kinds string")
    assert same(ours, groups.applyInPandas(annotated.group_kinds, "kinds string"), name, "kinds")
    for keys in (["k", "flag", "time"], []):
        name, grouped = served("annotated:totals"), frame.groupBy(*keys)
        ours = grouped.applyInPandas(through(name), KEYED)
        assert same(ours, grouped.applyInPandas(annotated.totals, KEYED), name, "total", "key")
    by_expression = frame.groupBy(expr("id % 2")).applyInPandas(through(name), KEYED)
    with pytest.raises(Exception, match="a part is no column of the frame"):
        by_expression.collect()


def test_groups_of_arrow_are_as_in_sparks_own(spark, served):
    frame = typed(spark).select("id", "k", "text", "flag")
    groups = frame.groupBy("k", "flag")
    name = served("annotated:table")
    ours = groups.applyInArrow(through(name), frame.schema)
    assert same(ours, groups.applyInArrow(annotated.table, frame.schema), name, "id")
    name = served("annotated:table_totals")
    ours = groups.applyInArrow(through(name), KEYED)
    assert same(ours, groups.applyInArrow(annotated.table_totals, KEYED), name, "total")


@pytest.mark.parametrize(
    ("function", "method", "schema"),
    [
        ("sides", "applyInPandas", "k double, id double, other double"),
        ("keyed_sides", "applyInPandas", "k long, rows long"),
        ("table_sides", "applyInArrow", "rows long"),
    ],
)
def test_cogroups_are_as_in_sparks_own(spark, served, function, method, schema):
    frame = typed(spark)
    groups = frame.select("k", "id").groupBy("k")
    groups = groups.cogroup(frame.selectExpr("k + 1 k", "id other").groupBy("k"))
    name = served(f"annotated:{function}")
    ours, theirs = (
        getattr(groups, method)(each, schema)
        for each in (through(name), getattr(annotated, function))
    )
    assert same(ours, theirs, name, *ours.columns)


def test_iterator_of_batches_needs_no_jar(spark, served, path):
    name = served("annotated:batches")
    frame = typed(spark)
    ours = frame.mapInArrow(through(name), frame.schema)
    assert is_direct(ours, name) == (path == "direct")
    assert ours.collect() == frame.collect()


@pytest.mark.parametrize(
    ("function", "method", "text"),
    [
        ("series", "mapInPandas", r"was called by mapInPandas: call it by a UDF"),
        ("array", "mapInArrow", r"of pyarrow, as mapInArrow calls: call it by a UDF.*with the jar"),
        ("frames", "mapInArrow", r"as mapInArrow calls: call it by mapInPandas.*with the jar"),
        ("totals", "mapInPandas", r"by mapInPandas: call it by applyInPandas"),
    ],
)
def test_method_that_the_annotations_do_not_fit_is_named(spark, served, function, method, text):
    name = served(f"annotated:{function}")
    frame = spark.range(10)
    with pytest.raises(Exception, match=rf"annotated:{function} is annotated \(.*{text}"):
        getattr(frame, method)(through(name), "id long").collect()
