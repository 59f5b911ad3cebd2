"""Frames and series of many groups: Spark converts all rows together, and each group gets a copy.

A group's frame cannot be told from the frame that Spark makes of the group's rows alone: it has the
same dtypes, blocks, index, names and flags, and memory of its own. An integer or boolean column has
another dtype if one of its values is null. If only some groups have nulls in such a column, the
column is converted twice, and each group takes the dtype that its own rows give.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyspark.sql.types as types
from pyspark.sql.conversion import ArrowBatchTransformer
from pyspark.sql.pandas.types import from_arrow_schema

# Modules and classes as Any, because stubs lack names.
_pa: Any = pa
_pc: Any = pc
_Frame: Any = pd.DataFrame
_Series: Any = pd.Series
_internals: Any = import_module("pandas.core.internals")
_Placement: Any = import_module("pandas._libs.internals").BlockPlacement

INTEGERS = (types.ByteType, types.ShortType, types.IntegerType, types.LongType)
# CHANGE: edit this for a new type between Spark and Arrow
# Types with one dtype, with or without nulls, whose values are converted independently.
_STEADY = (
    *(types.FloatType, types.DoubleType, types.StringType, types.BinaryType, types.DateType),
    *(types.TimestampType, types.TimestampNTZType, types.DecimalType, types.DayTimeIntervalType),
)
_MOST_VARIANTS = 16  # most copies of a request: one for each set of columns with nulls


class Unjoinable(Exception):
    """Raised if groups cannot be converted together; Spark then converts them one by one."""


class JoinedRows:
    """The rows of several groups, converted together."""

    def __init__(self, batch: Any, rows: Sequence[int], settings: Any) -> None:
        self.rows = rows
        table = _pa.Table.from_batches([batch])
        ends: Any = np.cumsum(rows)
        self._ends: list[int] = ends.tolist()
        self._series = ArrowBatchTransformer.to_pandas(
            table,
            timezone=settings.timezone,
            prefer_int_ext_dtype=settings.prefer_int_ext_dtype,
        )
        # Columns whose dtype depends on nulls, by place. _nulls: for each group, whether it has
        # nulls in the column; _filled: the column, with values in place of its nulls.
        self._nulls: dict[int, list[bool]] = {}
        self._filled: dict[int, Any] = {}
        # Functions that copy rows of a column, or of a frame, for each set of columns with nulls.
        self._cutters: dict[Any, Callable[[int, int], Any]] = {}
        for place, field in enumerate(from_arrow_schema(batch.schema).fields):
            kind, column = type(field.dataType), table.column(place)
            if kind in _STEADY:
                continue
            if kind not in INTEGERS and kind is not types.BooleanType:
                raise Unjoinable
            if not column.null_count:
                continue
            if kind in INTEGERS and settings.prefer_int_ext_dtype:
                if kind is types.LongType:  # Spark's rounding depends on the largest of all rows
                    raise Unjoinable
                continue
            sums: Any = np.concatenate(([0], np.cumsum(column.is_null().to_numpy())))
            self._nulls[place] = (sums[ends] > sums[ends - rows]).tolist()
            values = _pc.fill_null(column, False if kind is types.BooleanType else 0).to_numpy()
            self._filled[place] = pd.Series(values, name=field.name)

    def _column(self, place: int, group: int) -> Any:
        """Return a column whose values in the group's rows are those that Spark would make."""
        is_filled = place in self._nulls and not self._nulls[place][group]
        return self._filled[place] if is_filled else self._series[place]

    def frame(self, group: int, places: Sequence[int]) -> Any:
        """Make the group's frame of some columns: the same columns in each call."""
        variant = tuple([nulls[group] for at, nulls in self._nulls.items() if at in places])
        cut = self._cutters.get(variant)
        if cut is None:
            if len(self._cutters) == _MOST_VARIANTS:
                raise Unjoinable
            whole = pd.concat([self._column(place, group) for place in places], axis=1)
            cut = self._cutters[variant] = _frame_cutter(whole)
        return self._cut(cut, group)

    def key(self, group: int, places: Sequence[int]) -> tuple[Any, ...]:
        """Return the group's key: the values of some columns in its first row."""
        first = self._ends[group] - self.rows[group]
        return tuple([self._column(place, group).iloc[first] for place in places])

    def series(self, group: int, place: int) -> Any:
        """Make the group's series of a column."""
        variant = place, place in self._nulls and self._nulls[place][group]
        cut = self._cutters.get(variant)
        if cut is None:
            cut = self._cutters[variant] = _series_cutter(self._column(place, group))
        return self._cut(cut, group)

    def _cut(self, cut: Callable[[int, int], Any], group: int) -> Any:
        end = self._ends[group]
        return cut(end - self.rows[group], end)


def _values_cutter(values: Any) -> Callable[[int, int], Any]:
    """Return a function that copies some rows of a block's values."""
    if type(values) is np.ndarray:
        array: Any = values
        return lambda begin, end: array[..., begin:end].copy()
    if hasattr(values, "_ndarray"):  # arrays of instants or durations
        copied, made = _values_cutter(values._ndarray), values._from_backing_data
        return lambda begin, end: made(copied(begin, end))
    return lambda begin, end: values[begin:end].copy()


def _frame_cutter(frame: Any) -> Callable[[int, int], Any]:
    """Return a function that copies some rows of a frame; pandas takes four times as long."""
    columns = frame.columns
    blocks: list[Any] = [
        (type(block), _values_cutter(block.values), block.mgr_locs) for block in frame._mgr.blocks
    ]

    def cut(begin: int, end: int) -> Any:
        parts = [kind(copy(begin, end), placement=at, ndim=2) for kind, copy, at in blocks]
        return _made_of(columns, parts, end - begin)

    return cut


def _made_of(names: Any, blocks: Sequence[Any], rows: int) -> Any:
    axes = [names.view(), pd.RangeIndex(rows)]
    manager = _internals.BlockManager(tuple(blocks), axes, verify_integrity=False)
    return _Frame._from_mgr(manager, axes)


def made_of(names: Any, blocks: Sequence[Any], columns: Sequence[Any]) -> Any:
    """Make a frame with the given names and blocks; fill each block with its columns."""
    rows = len(columns[0])
    parts: list[Any] = []
    for kind, dtype, at in blocks:
        given = [columns[place] for place in at]
        values: Any = given[0]
        if isinstance(getattr(values, "_ndarray", values), np.ndarray):
            values = np.empty((len(given), rows), dtype)
            for row, column in zip(values, given, strict=True):
                row[:] = getattr(column, "_ndarray", column)
            if not isinstance(given[0], np.ndarray):
                values = given[0]._from_backing_data(values)
        parts.append(kind(values, placement=at, ndim=2))
    return _made_of(names, parts, rows)


def _series_cutter(series: Any) -> Callable[[int, int], Any]:
    """Return a function that copies some rows of a series."""
    (block,) = series._mgr.blocks
    kind: Any = block.__class__
    copy, name = _values_cutter(block.values), series.name

    def cut(begin: int, end: int) -> Any:
        place = _Placement(slice(0, end - begin))
        manager = _internals.SingleBlockManager(
            kind(copy(begin, end), placement=place, ndim=1), pd.RangeIndex(end - begin)
        )
        part = _Series._from_mgr(manager, manager.axes)
        part._name = name
        return part

    return cut


def window_cutter(series: Any) -> Callable[[int, int], Any]:
    """Return a function for some rows that share the series' memory, as with `iloc`, but faster."""
    if series.attrs or not series.flags.allows_duplicate_labels:
        return lambda begin, end: series.iloc[begin:end]
    rows, made, name = series._mgr.get_slice, _Series._from_mgr, series.name

    def cut(begin: int, end: int) -> Any:
        manager = rows(slice(begin, end))
        part = made(manager, manager.axes)
        part._name = name
        return part

    return cut
