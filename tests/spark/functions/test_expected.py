"""Which Arrow types Spark reads as which of its own: said here, and asked of Spark itself."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    CharType,
    DecimalType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)

from shmring.spark.functions.expected import difference


def differs(array_type, spark_type):
    schema = StructType([StructField("a", spark_type)])
    return difference(pa.schema([("a", array_type)]), schema)


LONGS = StructType([StructField("p", LongType()), StructField("q", LongType())])


@pytest.mark.parametrize(
    ("arrow", "spark_type"),
    [
        (pa.null(), LongType()),
        (pa.large_string(), StringType()),
        (pa.string_view(), StringType()),
        (pa.string(), CharType(3)),
        (pa.string(), VarcharType(3)),
        (pa.timestamp("us"), TimestampType()),
        (pa.timestamp("us", "Europe/Berlin"), TimestampType()),
        (pa.timestamp("us", "UTC"), TimestampNTZType()),
        (pa.decimal128(10, 2), DecimalType(12, 3)),
        (pa.list_(pa.int64()), ArrayType(LongType())),
        (pa.map_(pa.string(), pa.int64()), MapType(StringType(), LongType())),
        (pa.struct([("p", pa.int64()), ("other", pa.int64())]), LONGS),
    ],
)
def test_types_that_spark_reads_without_loss(arrow, spark_type):
    assert differs(arrow, spark_type) is None


@pytest.mark.parametrize(
    ("arrow", "spark_type"),
    [
        (pa.int32(), LongType()),
        (pa.float64(), LongType()),
        (pa.dictionary(pa.int32(), pa.string()), StringType()),
        (pa.timestamp("ns", "UTC"), TimestampType()),
        (pa.decimal128(12, 3), DecimalType(12, 2)),
        (pa.decimal128(12, 2), DecimalType(10, 2)),
        (pa.decimal256(10, 2), DecimalType(10, 2)),
        (pa.large_list(pa.int64()), ArrayType(LongType())),
        (pa.list_(pa.int32()), ArrayType(LongType())),
        (pa.map_(pa.string(), pa.int32()), MapType(StringType(), LongType())),
        (pa.struct([("p", pa.int64())]), LONGS),
        (pa.struct([("q", pa.int64()), ("p", pa.int64())]), LONGS),
    ],
)
def test_types_that_spark_cannot_read_or_would_read_as_something_else(arrow, spark_type):
    assert f"a is {arrow}, not {spark_type.simpleString()}" == differs(arrow, spark_type)


def test_what_counts_as_readable_is_what_spark_reads(spark):
    columns = {
        "a": (pa.array(["x"], pa.large_string()), "string", "x"),
        "b": (pa.nulls(1), "bigint", None),
        "c": (pa.array([Decimal("7.25")], pa.decimal128(10, 2)), "decimal(12,3)", Decimal("7.250")),
        "d": (pa.array([{"p": 1, "other": 2}]), "struct<p:bigint,q:bigint>", (1, 2)),
    }

    def answer(batches):
        for _ in batches:
            yield pa.record_batch({name: array for name, (array, _, _) in columns.items()})

    declared = ", ".join(f"{name} {kind}" for name, (_, kind, _) in columns.items())
    frame = spark.range(1, numPartitions=1).mapInArrow(answer, declared)
    batch = next(answer([None]))
    assert difference(batch.schema, frame.schema) is None
    assert tuple(frame.first()) == tuple(value for _, _, value in columns.values())
