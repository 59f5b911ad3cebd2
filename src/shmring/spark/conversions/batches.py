"""Functions of pandas that get a batch at a time: mapInPandas, and pandas_udf of columns.

Spark's own function runs, but calls the two classes below instead of Spark's converters. A frame
gets the same blocks (arrays of pandas, each with columns of one dtype) as the frame that Spark
makes; each block is allocated once, and then filled. Series of numbers, booleans and dates are made
directly of their values. Numbers, dates and texts that have exactly the declared type become Arrow
arrays directly, while Spark first makes a mask of nulls. Spark converts everything else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import FunctionType
from typing import Any

import pandas as pd
import pyarrow as pa
import pyspark.sql.types as types
from pyspark.sql.conversion import ArrowBatchTransformer, PandasToArrowConversion

from shmring.spark.conversions.columns import in_arrow, in_pandas, simple
from shmring.spark.conversions.frames import BlockManager, framed, has_usual_options, series_of
from shmring.spark.sparks_code import copied

# Modules and classes, typed as Any because their stubs lack names.
_pa: Any = pa
_arrays: Any = PandasToArrowConversion
_batches: Any = ArrowBatchTransformer


def by_blocks(sparks: FunctionType, variables: Mapping[str, Any]) -> FunctionType:
    """Return a copy of Spark's function that calls the classes below to convert."""
    return copied(
        sparks, {"ArrowBatchTransformer": _ToPandas(), "PandasToArrowConversion": _ToArrow}
    )


class _ToPandas:
    """Makes frames and series."""

    def to_pandas(self, batch: Any, **options: Any) -> list[Any]:
        """Convert a batch as ArrowBatchTransformer does."""
        has_values = batch.num_rows and batch.num_columns
        # Leave a batch with one of these options to Spark: Spark sets them for other kinds of
        # functions, and makes other values with them than this module.
        asked = options.get("prefer_int_ext_dtype") or options.get("schema") is not None
        if asked or not has_values or not has_usual_options():
            return _batches.to_pandas(batch, **options)
        if (
            options.get("df_for_struct")
            and batch.num_columns == 1
            and pa.types.is_struct(batch.schema.field(0).type)
        ):
            return [self._frame(batch, options)]
        values = [simple(array) for array in batch.columns]
        others = [place for place, made in enumerate(values) if made is None]
        converted = iter(_batches.to_pandas(batch.select(others), **options) if others else ())
        return [
            next(converted) if made is None else series_of(made, name)
            for made, name in zip(values, batch.schema.names, strict=True)
        ]

    def _frame(self, batch: Any, options: Mapping[str, Any]) -> Any:
        struct = batch.column(0)
        arrays: list[Any] = struct.flatten()

        def sparks(places: Sequence[int]) -> list[Any]:
            fields = [struct.type.field(place) for place in places]
            part = _pa.StructArray.from_arrays([arrays[place] for place in places], fields=fields)
            whole = _pa.RecordBatch.from_arrays([part], ["_0"])
            (frame,) = _batches.to_pandas(whole, **options)
            return [frame._mgr.iget_values(number) for number in range(len(places))]

        return framed(
            batch.schema,
            in_pandas(arrays, sparks),
            lambda: _batches.to_pandas(batch, **options)[0],
        )


class _ToArrow:
    """Makes arrays from the results of functions."""

    @staticmethod
    def convert(data: Sequence[Any], schema: types.StructType, **settings: Any) -> Any:
        """Convert results as PandasToArrowConversion does."""
        if has_usual_options():
            with suppress(Exception):  # let Spark convert the data again, and raise its own error
                arrays = [
                    _array(column, field, settings)
                    for column, field in zip(data, schema.fields, strict=False)
                ]
                return _pa.RecordBatch.from_arrays(arrays, schema.names)
        return _arrays.convert(data, schema, **settings)


def _array(column: Any, field: types.StructField, settings: Mapping[str, Any]) -> Any:
    kind: Any = field.dataType
    array: Any = None
    large: bool = settings["prefers_large_types"]
    if type(column) is pd.Series:
        series: Any = column
        array = in_arrow(series._values, kind, large)
    elif type(column) is pd.DataFrame and _is_as_declared(column, kind):
        frame: Any = column
        parts: list[Any] = []
        for place, part in enumerate(kind.fields):
            exact = in_arrow(frame._mgr.iget_values(place), part.dataType, large)
            parts.append(_array(frame.iloc[:, place], part, settings) if exact is None else exact)
        return _batches.wrap_struct(_pa.RecordBatch.from_arrays(parts, kind.names)).column(0)
    if array is None:
        array = _arrays.convert([column], types.StructType([field]), **settings).column(0)
    return array


def _is_as_declared(frame: Any, kind: types.DataType) -> bool:
    """Whether a frame has exactly the declared columns, in order, so that Spark need not check."""
    names = list(frame.columns)
    if (
        not isinstance(kind, types.StructType)
        or type(frame._mgr) is not BlockManager
        or not names
        or names != kind.names
        or len(set(names)) < len(names)
    ):
        return False
    # Leave a frame to Spark if a column is not in the machine's byte order: pandas cannot select
    # columns from such a frame.
    return all(getattr(block.dtype, "isnative", True) for block in frame._mgr.blocks)
