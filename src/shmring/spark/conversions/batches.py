"""Functions of pandas that get a batch at a time: mapInPandas, and pandas_udf of columns.

Spark's own function runs, with two of its names replaced: the classes by which it converts. Frames
get the blocks that Spark's frames of the same dtypes have, each filled at once. Numbers, dates and
texts that are as declared become arrays without a mask. Spark converts everything else.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from types import FunctionType
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyspark.sql.types as types
from pyspark.sql.conversion import ArrowBatchTransformer, PandasToArrowConversion
from pyspark.sql.pandas.types import to_arrow_type

from shmring.spark.conversions.frames import made_of
from shmring.spark.conversions.rows import NONE, in_numpy
from shmring.spark.sparks_code import copied

# Modules and classes as Any, because stubs lack names.
_pa: Any = pa
_arrays: Any = PandasToArrowConversion
_batches: Any = ArrowBatchTransformer

_MOST_LAYOUTS = 16  # most layouts that are remembered; nulls change the dtypes of columns
# CHANGE: edit this for a new type between Spark and Arrow
# The dtype whose values are exactly those of a declared type.
_EXACT: dict[type, np.dtype[Any]] = {
    types.ByteType: np.dtype("int8"),
    types.ShortType: np.dtype("int16"),
    types.IntegerType: np.dtype("int32"),
    types.LongType: np.dtype("int64"),
    types.FloatType: np.dtype("float32"),
    types.DoubleType: np.dtype("float64"),
    types.BooleanType: np.dtype("bool"),
}
_OBJECTS: dict[type, set[type]] = {
    types.DateType: {datetime.date, NONE},
    types.StringType: {str, NONE},
}


def by_blocks(sparks: FunctionType, variables: Mapping[str, Any]) -> FunctionType:
    """Return a copy of Spark's function that converts by the classes below."""
    return copied(
        sparks, {"ArrowBatchTransformer": _ToPandas(), "PandasToArrowConversion": _ToArrow}
    )


class _ToPandas:
    """Makes frames; remembers the blocks that Spark's frames have for some sets of dtypes."""

    def __init__(self) -> None:
        self._layouts: dict[tuple[Any, ...], tuple[Any, list[Any]]] = {}

    def to_pandas(self, batch: Any, **options: Any) -> list[Any]:
        """Convert a batch as ArrowBatchTransformer does."""
        if (
            options.get("df_for_struct")
            and not options.get("prefer_int_ext_dtype")
            and batch.num_rows
            and batch.num_columns == 1
            and pa.types.is_struct(batch.schema.field(0).type)
        ):
            return [self._frame(batch, options)]
        return _batches.to_pandas(batch, **options)

    def _frame(self, batch: Any, options: Mapping[str, Any]) -> Any:
        struct = batch.column(0)
        arrays: list[Any] = struct.flatten()
        columns = [_values(array) for array in arrays]
        others = [place for place, values in enumerate(columns) if values is None]
        if others:
            fields = [struct.type.field(place) for place in others]
            part = _pa.StructArray.from_arrays([arrays[place] for place in others], fields=fields)
            rest = _pa.RecordBatch.from_arrays([part], ["_0"])
            (frame,) = _batches.to_pandas(rest, **options)
            for number, place in enumerate(others):
                columns[place] = frame._mgr.iget_values(number)
        dtypes = tuple([values.dtype for values in columns])
        layout = self._layouts.get((batch.schema, dtypes))
        if layout is not None:
            return made_of(*layout, columns)
        (frame,) = _batches.to_pandas(batch, **options)
        if len(self._layouts) < _MOST_LAYOUTS:
            blocks: list[Any] = [
                (type(each), each.dtype, each.mgr_locs) for each in frame._mgr.blocks
            ]
            self._layouts[batch.schema, dtypes] = frame.columns.view(), blocks
        return frame


def _values(array: Any) -> Any:
    """Return the values that Spark's frame has for a column; None if Spark has to make them."""
    kind = array.type
    if pa.types.is_floating(kind):
        return array.to_numpy(zero_copy_only=False)
    if (pa.types.is_signed_integer(kind) or pa.types.is_boolean(kind)) and not array.null_count:
        return array.to_numpy(zero_copy_only=False)
    if pa.types.is_date32(kind):
        return in_numpy(array)  # each becomes a datetime.date when a block of objects takes it
    return None


class _ToArrow:
    """Makes arrays from the results of functions."""

    @staticmethod
    def convert(data: Sequence[Any], schema: types.StructType, **settings: Any) -> Any:
        """Convert results as PandasToArrowConversion does."""
        arrays = [
            _array(column, field, settings)
            for column, field in zip(data, schema.fields, strict=False)
        ]
        return _pa.RecordBatch.from_arrays(arrays, schema.names)


def _array(column: Any, field: types.StructField, settings: Mapping[str, Any]) -> Any:
    kind: Any = field.dataType
    array: Any = None
    if type(column) is pd.Series:
        series: Any = column
        array = _exact(series._values, kind, settings)
    elif type(column) is pd.DataFrame and _is_as_declared(column, kind):
        frame: Any = column
        parts: list[Any] = []
        for place, part in enumerate(kind.fields):
            exact = _exact(frame._mgr.iget_values(place), part.dataType, settings)
            parts.append(_array(frame.iloc[:, place], part, settings) if exact is None else exact)
        return _batches.wrap_struct(_pa.RecordBatch.from_arrays(parts, kind.names)).column(0)
    if array is None:
        array = _arrays.convert([column], types.StructType([field]), **settings).column(0)
    return array


def _is_as_declared(frame: Any, kind: types.DataType) -> bool:
    """Whether Spark would take a frame's columns as they stand."""
    names = list(frame.columns)
    if (
        not isinstance(kind, types.StructType)
        or not names
        or names != kind.names
        or len(set(names)) < len(names)
    ):
        return False
    # pandas cannot select columns of a frame that has some in another byte order.
    return all(getattr(block.dtype, "isnative", True) for block in frame._mgr.blocks)


def _exact(column: Any, kind: types.DataType, settings: Mapping[str, Any]) -> Any:
    """Return an array of values that are as declared; None if Spark has to make it."""
    if type(column) is not np.ndarray:
        return None
    values: Any = column
    exact = _EXACT.get(type(kind))
    if exact is not None and values.dtype == exact:  # numpy's float64 equals None
        return _pa.array(values, from_pandas=True)
    objects = _OBJECTS.get(type(kind))
    if objects is None or values.dtype != object or not set(map(type, values)) <= objects:
        return None
    large = settings["prefers_large_types"]
    try:
        return _pa.array(
            values, type=to_arrow_type(kind, prefers_large_types=large), from_pandas=True
        )
    except Exception:  # for example half a surrogate pair; Spark raises an error of its own
        return None
