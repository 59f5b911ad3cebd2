"""Spark's types as the Arrow types that Spark itself gives to Python functions.

Spark's own function for it takes other arguments in each version. SparkTypes.java says the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

__all__ = ["arrow_types"]

_pa: Any = pa

# By name: the types are not the same in all versions of Spark.
_ATOMIC: dict[str, pa.DataType] = {
    "BooleanType": pa.bool_(),
    "ByteType": pa.int8(),
    "ShortType": pa.int16(),
    "IntegerType": pa.int32(),
    "LongType": pa.int64(),
    "FloatType": pa.float32(),
    "DoubleType": pa.float64(),
    "DateType": pa.date32(),
    "TimestampNTZType": pa.timestamp("us"),
    "DayTimeIntervalType": pa.duration("us"),
}
_TEXTS = ("StringType", "CharType", "VarcharType")


def arrow_types(schema: StructType, zone: str, *, large: bool) -> list[pa.DataType | None]:
    """Those of the columns; None for a type that is not known here.

    Parameters
    ----------
    zone : of timestamps
    large : whether texts and binaries have 64-bit offsets
    """
    types: list[pa.DataType | None] = []
    for field in schema.fields:
        try:
            types.append(_arrow_type(field.dataType, zone, large))
        except KeyError:
            types.append(None)
    return types


def _arrow_type(spark_type: Any, zone: str, large: bool) -> pa.DataType:
    def field(name: str, kind: DataType, nullable: bool) -> pa.Field[Any]:
        return pa.field(name, _arrow_type(kind, zone, large), nullable=nullable)

    kind = type(spark_type).__name__
    if kind == "DecimalType":
        return pa.decimal128(spark_type.precision, spark_type.scale)
    if kind == "TimestampType":
        return pa.timestamp("us", zone)
    if kind in _TEXTS:
        return pa.large_string() if large else pa.string()
    if kind == "BinaryType":
        return pa.large_binary() if large else pa.binary()
    if kind == "ArrayType":
        return pa.list_(field("element", spark_type.elementType, spark_type.containsNull))
    if kind == "MapType":
        key = field("key", spark_type.keyType, False)
        return _pa.map_(key, field("value", spark_type.valueType, spark_type.valueContainsNull))
    if kind == "StructType":
        return pa.struct([field(f.name, f.dataType, f.nullable) for f in spark_type.fields])
    if hasattr(spark_type, "sqlType"):  # a user's own type
        return _arrow_type(spark_type.sqlType(), zone, large)
    return _ATOMIC[kind]
