"""Converts columns between Arrow and pandas faster than Spark, to exactly the same values."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyspark.sql.types as types

_pa: Any = pa  # typed as Any, because its stubs lack names

NONE = type(None)
INTEGERS = (types.ByteType, types.ShortType, types.IntegerType, types.LongType)
# CHANGE: edit this for a new type between Spark and Arrow
# Maps a declared type of Spark to the numpy dtype that has exactly the same values.
_EXACT: dict[type, np.dtype[Any]] = {
    **{kind: np.dtype(f"int{8 << size}") for size, kind in enumerate(INTEGERS)},
    types.FloatType: np.dtype("float32"),
    types.DoubleType: np.dtype("float64"),
    types.BooleanType: np.dtype("bool"),
}
# Maps a declared type of Spark to the Python class whose objects have exactly the same values, to
# Arrow's usual type, and to Arrow's large type. Dates have no large type, and repeat the usual one.
_OBJECTS: dict[type, tuple[type, Any, Any]] = {
    types.DateType: (datetime.date, pa.date32(), pa.date32()),
    types.StringType: (str, pa.string(), pa.large_string()),
    types.BinaryType: (bytes, pa.binary(), pa.large_binary()),
}


def in_pandas(arrays: Sequence[Any], sparks: Callable[[list[int]], list[Any]]) -> list[Any]:
    """Return the columns' values as Spark makes them; `sparks` lets Spark convert some columns."""
    values = [simple(array) for array in arrays]
    others = [at for at, made in enumerate(values) if made is None]
    # If Spark has to convert any column, let it convert the texts, too: Spark has two ways to
    # convert a frame, and chooses one of them if the frame has a column of text.
    is_needed = not all(_is_text(arrays[at]) for at in others)
    converted = sparks(others) if is_needed else [arrays[at].to_pandas()._values for at in others]
    for place, made in zip(others, converted, strict=True):
        values[place] = made
    return values


def simple(array: Any) -> Any:
    """Return the values of a column of a simple type; None for texts and for all other types."""
    kind = array.type
    if pa.types.is_date32(kind):
        return _dates(array)
    is_steady = pa.types.is_signed_integer(kind) or pa.types.is_boolean(kind)
    if pa.types.is_floating(kind) or (is_steady and not array.null_count):
        return array.to_numpy(zero_copy_only=False)
    return None


def _is_text(array: Any) -> bool:
    return pa.types.is_string(array.type) or pa.types.is_large_string(array.type)


def _dates(array: Any) -> Any:
    """Return dates as Python objects.

    Dates from 1900 to 2099 are taken from an array that is made once, because making the objects
    anew takes 0.2 ms for each 10,000 dates.
    """
    if len(array) and not array.null_count:
        first, dates = _usual_dates()
        places = array.view(_pa.int32()).to_numpy() - first
        if places.min() >= 0 and places.max() < len(dates):
            return dates[places]
    return array.to_pandas(date_as_object=True)._values


@cache
def _usual_dates() -> tuple[int, Any]:
    """Return the days from 1970 to 1 January 1900 (negative), and all dates from 1900 to 2099."""
    days = np.arange("1900-01-01", "2100-01-01", dtype="datetime64[D]")
    return int(days[0].astype(int)), days.astype(object)


def in_arrow(column: Any, kind: types.DataType, large: bool) -> Any:
    """Return values as an Arrow array; None if they are not exactly of the declared type.

    `large`: whether texts become large strings.
    """
    if type(column) is not np.ndarray:
        return None
    values: Any = column
    exact = _EXACT.get(type(kind))
    # Test `exact` for None first: numpy's dtype float64 is equal to None.
    if exact is not None and values.dtype == exact:
        # Find NaN, which becomes null, with numpy: pyarrow takes six times as long.
        has_nulls = exact.kind == "f" and np.isnan(values).any()
        return _pa.array(values, from_pandas=has_nulls)
    objects = _OBJECTS.get(type(kind))
    if objects is None or values.dtype != object:
        return None
    try:
        array = _pa.array(values, type=objects[1 + large], from_pandas=True)
    except Exception:  # for example half a surrogate pair; Spark raises an error of its own
        return None
    # Leave a column to Spark if it has nulls other than None, because pandas and pyarrow do not
    # take the same objects for null.
    return array if not array.null_count or are(values.tolist(), objects[0]) else None


def are(values: list[Any], kind: type) -> bool:
    """Whether each value is None, or of exactly this type."""
    found = [*map(type, values)]
    return found.count(kind) == len(found) or set(found) <= {kind, NONE}
