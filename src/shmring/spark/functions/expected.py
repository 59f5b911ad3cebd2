"""Checks whether Spark can take a sidecar's answers for those of the declared function.

mapInArrow assigns columns by position. Spark's own errors about missing columns and other types are
less clear. ResultSchema.java does the same with the same texts.
"""

from __future__ import annotations

from inspect import currentframe
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from shmring.arrow.batches import fields_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql.types import DataType, StructType

_types: Any = pa.types


def declared_with(function: object) -> StructType | None:
    """The schema with which `function` is being pickled; None if it is pickled otherwise.

    PySpark never tells a function its schema. It ships the pair of function and schema to the
    workers, also with Spark Connect. While the pair is pickled, it is a local variable of the
    caller.
    """
    from pyspark.sql.types import StructType

    frame = currentframe()
    while frame is not None:
        for value in frame.f_locals.values():
            if type(value) is tuple:
                pair = cast("tuple[Any, ...]", value)
                if len(pair) == 2 and pair[0] is function and isinstance(pair[1], StructType):
                    return pair[1]
        frame = frame.f_back
    return None


def difference(got: pa.Schema, expected: StructType) -> str | None:
    """Return why Spark cannot take such a batch, or would mix up its columns; None if it can."""
    return _of_fields(fields_of(got), expected)


def in_words(schema: StructType) -> str:
    """A schema in Spark's notation."""
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema.fields)


def _of_fields(got: list[Any], expected: StructType) -> str | None:
    names, wanted = [field.name for field in got], expected.names
    why = _misplaced(names, wanted)
    if why is not None:
        return why
    for found, field in zip(got, expected.fields, strict=True):
        if not _is_taken_for(found.type, field.dataType):
            return f"{found.name} is {found.type}, not {field.dataType.simpleString()}"
    return None


def _misplaced(got: list[str], wanted: list[str]) -> str | None:
    for name in wanted:
        if name not in got and len(got) < len(wanted):
            return f"{name} is missing"
    if len(got) != len(wanted):
        return f"it has {len(got)} columns, not {len(wanted)}"
    for found, name in zip(got, wanted, strict=True):
        # Spark ignores another name, unless it is that of another column.
        if found != name and name in got:
            return f"{found} stands where {name} is expected"
    return None


# CHANGE: a new type between Spark and Arrow
def _is_taken_for(got: Any, expected: DataType) -> bool:
    """Whether Spark reads such an Arrow array as this type without loss."""
    of: Any = expected
    if _types.is_null(got):
        return True
    if isinstance(got, pa.BaseExtensionType):
        return _is_taken_for(got.storage_type, expected)
    kind = type(expected).__name__
    if kind in _ATOMIC:
        return _ATOMIC[kind](got)
    if kind == "DecimalType":
        return (
            _types.is_decimal128(got)
            and got.scale <= of.scale
            and got.precision - got.scale <= of.precision - of.scale
        )
    if kind == "ArrayType":
        return _types.is_list(got) and _is_taken_for(got.value_type, of.elementType)
    if kind == "MapType":
        return (
            _types.is_map(got)
            and _is_taken_for(got.key_type, of.keyType)
            and _is_taken_for(got.item_type, of.valueType)
        )
    if kind == "StructType":
        return _types.is_struct(got) and _of_fields(fields_of(got), of) is None
    if hasattr(expected, "sqlType"):  # a user's own type
        return _is_taken_for(got, of.sqlType())
    return True  # an unknown type: Spark has to check it


def _is_text(got: Any) -> bool:
    return _types.is_string(got) or _types.is_large_string(got) or _types.is_string_view(got)


def _is_binary(got: Any) -> bool:
    return _types.is_binary(got) or _types.is_large_binary(got) or _types.is_binary_view(got)


def _is_timestamp(got: Any) -> bool:
    return _types.is_timestamp(got) and got.unit == "us"


# By name: versions of Spark have different types.
_ATOMIC: dict[str, Callable[[Any], bool]] = {
    "BooleanType": _types.is_boolean,
    "ByteType": _types.is_int8,
    "ShortType": _types.is_int16,
    "IntegerType": _types.is_int32,
    "LongType": _types.is_int64,
    "FloatType": _types.is_float32,
    "DoubleType": _types.is_float64,
    "StringType": _is_text,
    "CharType": _is_text,
    "VarcharType": _is_text,
    "BinaryType": _is_binary,
    "DateType": _types.is_date32,
    "TimestampType": _is_timestamp,
    "TimestampNTZType": _is_timestamp,
    "DayTimeIntervalType": lambda got: _types.is_duration(got) and got.unit == "us",
}
