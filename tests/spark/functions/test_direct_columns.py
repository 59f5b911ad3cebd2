"""Columns that go to a sidecar without becoming rows: of files, of rings, and of caches."""

from __future__ import annotations

import pyarrow as pa
import pytest
from direct import FLAT, RING, ROWS, TYPES, columns_of, metrics_of, plan_of
from pyspark.sql import functions
from pyspark.sql.functions import col

import shmring
from shmring.spark import arrow_udf, through

OFF_HEAP = "spark.sql.columnVector.offheap.enabled"


def made(spark, types, nulls, rows=3000):
    columns = columns_of(types, "some" if nulls else "none")
    return spark.range(rows, numPartitions=2).selectExpr("id", *columns)


def written(spark, frame, folder, **options):
    frame.write.options(**options).parquet(str(folder))
    return spark.read.parquet(str(folder))


def sends_columns(frame, name):
    """Whether the sidecar's node has columns below it; the frame was collected."""
    lines = plan_of(frame).splitlines()
    at = next(i for i, line in enumerate(lines) if f"Sidecar {name}" in line)
    return "ColumnarToRow" not in lines[at + 1]


def check(frame, name):
    """Each row comes back as it went, and without rows between."""
    result = frame.mapInArrow(through(name), frame.schema)
    rows = result.collect()
    assert sends_columns(result, name)
    assert sorted(rows) == sorted(frame.collect())
    return result


# "dictionaries" is whether files and caches have codes instead of the values.
@pytest.mark.parametrize(
    ("rows", "nulls", "dictionaries"),
    [
        (10, True, False),
        (5000, False, True),
        pytest.param(5000, True, True, marks=pytest.mark.long),
    ],
)
def test_files_columns_of_each_type(spark, served, set_option, tmp_path, rows, nulls, dictionaries):
    name = served("identity", workers=2)
    set_option(ROWS, rows)
    set_option(OFF_HEAP, not dictionaries)
    frame = made(spark, FLAT, nulls, 300 if rows == 10 else 6000)
    options = {"parquet.enable.dictionary": dictionaries}
    check(written(spark, frame, tmp_path / "rows", **options), name)


@pytest.mark.parametrize(("nulls", "dictionaries"), [(False, False), (True, True)])
def test_caches_columns_of_each_type(spark, served, set_option, nulls, dictionaries):
    name = served("identity", workers=2)
    set_option("spark.sql.inMemoryColumnarStorage.compressed", dictionaries)
    narrow = ("flag", "tiny", "small", "number", "big", "single", "half")
    types = {column: FLAT[column] for column in narrow}  # types that Spark gives as columns
    frame = made(spark, types, nulls).selectExpr("*", "id % 5 few").cache()
    try:
        check(frame, name)
    finally:
        frame.unpersist()


@pytest.mark.parametrize(
    ("nulls", "copy"), [pytest.param(False, True, marks=pytest.mark.long), (True, False)]
)
def test_rings_columns_of_each_type(spark, serve, name, set_option, nulls, copy):
    serve("identity", workers=2)
    set_option(ROWS, 1000)
    frame = made(spark, {column: FLAT[column] for column in RING}, nulls)
    schema = pa.schema([("id", pa.int64()), *RING.items()])
    with shmring.create(f"{name}-rows", slots=1 << 16, schema=schema, temporary=True) as ring:
        writer = frame.write.format("shmring").option("ring", ring.name).mode("append")
        writer.option("batchRows", 700).save()
        reader = spark.read.format("shmring").option("ring", ring.name).option("copy", copy)
        result = check(reader.load(), name)
    found = metrics_of(result)
    assert found["numInputRows"] == found["numOutputRows"] == 3000
    assert found["requests"] < 8  # requests of 1000 rows, though batches have 700


def test_columns_that_a_file_does_not_have_or_has_once(spark, served, tmp_path):
    """Partitions' values are constant in a file, and columns that were added later are null."""
    name = served("identity")
    for part in range(3):
        made(spark, {"text": FLAT["text"]}, nulls=True).write.parquet(f"{tmp_path}/at/p={part}")
    schema = "id long, text string, later long, words string, day date, p int"
    check(spark.read.schema(schema).parquet(f"{tmp_path}/at"), name)


# CHANGE: edit this for a new type between Spark and Arrow
@pytest.mark.long
def test_files_of_orc(spark, served, tmp_path):
    name = served("identity")
    types = {c: t for c, t in FLAT.items() if c not in ("span", "local", "time")}
    made(spark, types, nulls=True).write.orc(f"{tmp_path}/rows")
    check(spark.read.orc(f"{tmp_path}/rows"), name)


def test_nested_columns_are_sent_as_rows(spark, served, tmp_path):
    name = served("identity")
    frame = written(spark, made(spark, TYPES, nulls=True, rows=500), tmp_path / "rows")
    result = frame.mapInArrow(through(name), frame.schema)
    assert result.collect() == frame.collect()
    assert not sends_columns(result, name)


def test_large_offsets_where_the_session_wants_them(spark, served, set_option, tmp_path):
    name = served("identity")
    set_option("spark.sql.execution.arrow.useLargeVarTypes", True)
    check(written(spark, made(spark, FLAT, nulls=True), tmp_path / "rows"), name)


def test_rows_of_many_sizes_fit_a_small_ring(spark, served, tmp_path):
    """A row that is larger than a batch may be goes alone, and the next ones together again."""
    name = served("identity", slots=1024)
    frame = spark.range(800, numPartitions=2)
    frame = frame.selectExpr("id", "repeat('x', if(id % 50 = 0, 100000, 10)) text")
    rows = written(spark, frame, tmp_path / "rows")
    result = rows.mapInArrow(through(name, reply_slots=2048), rows.schema)
    assert sorted(result.collect()) == sorted(frame.collect())
    assert sends_columns(result, name)


def test_limits_and_empty_files(spark, served, tmp_path):
    name = served("identity", workers=2)
    rows = written(spark, spark.range(20_000, numPartitions=3), tmp_path / "rows")
    mapped = rows.mapInArrow(through(name), "id long")
    assert len(mapped.limit(5).collect()) == 5
    none = rows.where("id < 0").mapInArrow(through(name), "id long")
    assert none.collect() == []
    empty = written(spark, spark.range(0), tmp_path / "none").mapInArrow(through(name), "id long")
    assert empty.collect() == []


# --- UDFs: what is no argument stays with its row -------------------------------------------------


def test_columns_beside_a_udfs_arguments_stay_with_their_rows(spark, served, set_option, tmp_path):
    name = served("total", workers=2)
    set_option(ROWS, 10)
    total = arrow_udf(name, "long")
    frame = written(spark, made(spark, FLAT, nulls=True, rows=300), tmp_path / "rows")
    result = frame.withColumn("t", total("id", "number", "big"))
    found = result.collect()
    assert sends_columns(result, name)
    sums = functions.expr("id + coalesce(number, 0) + coalesce(big, 0)")
    assert found == frame.withColumn("t", sums).collect()
    chosen = frame.select("text", total("big"), total("number", "id")).collect()
    wanted = ("text", "coalesce(big, 0)", "id + coalesce(number, 0)")
    assert chosen == frame.selectExpr(*wanted).collect()


def test_udfs_of_columns_of_each_other_of_what_is_computed_and_in_conditions(
    spark, served, tmp_path
):
    name = served("double", workers=2)
    double = arrow_udf(name, "long")
    rows = spark.range(5000, numPartitions=2).selectExpr("id", "10 * id tens", "array(id) list")
    flat = written(spark, rows.drop("list"), tmp_path / "flat")
    nested = written(spark, rows, tmp_path / "nested")
    result = flat.select(double("id"), double(double("tens")), double("tens"), "id")
    expected = [(2 * i, 40 * i, 20 * i, i) for i in range(5000)]
    assert sorted(tuple(row) for row in result.collect()) == expected
    found = flat.where(double("id") > 9990).select(double("tens"))
    assert sorted(row[0] for row in found.collect()) == [20 * i for i in range(4996, 5000)]
    for frame, argument, more, columns in (
        (flat, col("id"), 0, True),
        (flat, col("id") + 1, 2, True),
        (nested, col("id"), 0, False),
    ):
        result = frame.select("*", double(argument).alias("d"))
        found = sorted((row.id, row.tens, row.d) for row in result.collect())
        assert found == [(i, 10 * i, 2 * i + more) for i in range(5000)]
        assert sends_columns(result, name) == columns


@pytest.mark.parametrize("generated", [True, pytest.param(False, marks=pytest.mark.long)])
def test_udfs_answer_in_pieces_and_with_another_number_of_rows(
    spark, serve, name, set_option, tmp_path, generated
):
    """Beside each piece are the columns of its rows, whatever their types."""
    sidecar = serve("row_by_row")
    set_option(ROWS, 300)
    set_option("spark.sql.codegen.wholeStage", generated)
    frame = written(spark, made(spark, FLAT, nulls=True, rows=1000), tmp_path / "rows")
    result = frame.select("*", arrow_udf(name, "long")("id").alias("i"))
    rows = result.collect()
    assert sends_columns(result, name)
    assert [row.i for row in rows] == [row.id for row in rows]
    assert [row[:-1] for row in rows] == frame.collect()
    sidecar.stop()
    serve("twice")
    with pytest.raises(Exception, match=r"expected 300, got 600"):
        result.collect()
