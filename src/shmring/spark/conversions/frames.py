"""Frames and series of many groups: Spark converts all rows at once, and each group gets a copy.

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
# Types with one dtype, with or without nulls, whose values are converted independently.
_STEADY = (
    *(types.FloatType, types.DoubleType, types.StringType, types.BinaryType, types.DateType),
    *(types.TimestampType, types.TimestampNTZType, types.DecimalType, types.DayTimeIntervalType),
)
_MOST_VARIANTS = 16  # most copies of a request: one for each set of columns with nulls


class Unjoinable(Exception):
    """Raised if groups cannot be converted together; Spark then converts them one by one."""


class JoinedRows:
    """The rows of several groups, converted at once."""

    def __init__(self, batch: Any, rows: Sequence[int], settings: Any) -> None:
        self.rows = rows
        self._settings = settings
        table = _pa.Table.from_batches([batch])
        ends: Any = np.cumsum(rows)
        self._ends: list[int] = ends.tolist()
        self._series = self._converted(table)
        # Columns whose dtype depends on nulls, by place. nulls: for each group, whether it has
        # nulls in the column; _filled: the column, with values in place of its nulls.
        self.nulls: dict[int, list[bool]] = {}
        self._filled: dict[int, Any] = {}
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
            self.nulls[place] = (sums[ends] > sums[ends - rows]).tolist()
            values = _pc.fill_null(column, False if kind is types.BooleanType else 0)
            schema = _pa.schema([batch.schema.field(place)])
            (self._filled[place],) = self._converted(_pa.Table.from_arrays([values], schema=schema))

    def _converted(self, table: Any) -> list[Any]:
        return ArrowBatchTransformer.to_pandas(
            table,
            timezone=self._settings.timezone,
            prefer_int_ext_dtype=self._settings.prefer_int_ext_dtype,
        )

    def bounds(self, group: int) -> tuple[int, int]:
        """Return the group's first row, and the row after its last."""
        end = self._ends[group]
        return end - self.rows[group], end

    def column(self, place: int, group: int) -> Any:
        """Return a column whose values in the group's rows are those that Spark would make."""
        nulls = self.nulls.get(place)
        return (
            self._filled[place] if nulls is not None and not nulls[group] else self._series[place]
        )


class JoinedFrames(JoinedRows):
    """Frames of groups, and their keys."""

    def __init__(self, values: Sequence[int], keys: Sequence[int], *given: Any) -> None:
        super().__init__(*given)
        self._values, self._keys = values, keys
        self._varying = [self.nulls[place] for place in values if place in self.nulls]
        self._variants: dict[tuple[bool, ...], Callable[[int, int], Any]] = {}

    def frame(self, group: int) -> Any:
        """Make the group's frame."""
        variant = tuple([nulls[group] for nulls in self._varying])
        cut = self._variants.get(variant)
        if cut is None:
            if len(self._variants) == _MOST_VARIANTS:
                raise Unjoinable
            whole = pd.concat([self.column(place, group) for place in self._values], axis=1)
            cut = self._variants[variant] = _frame_cutter(whole)
        return cut(*self.bounds(group))

    def key(self, group: int) -> tuple[Any, ...]:
        """Return the group's key: the values of the key columns in its first row."""
        begin, _ = self.bounds(group)
        return tuple([self.column(place, group).iloc[begin] for place in self._keys])


class JoinedSeries(JoinedRows):
    """Series of groups, each made once: all functions of a group may get the same series."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._cutters: dict[tuple[int, bool], Callable[[int, int], Any]] = {}

    def series(self, group: int, places: Sequence[int]) -> dict[int, Any]:
        """Make the group's series, by the places of their columns."""
        begin, end = self.bounds(group)
        return {place: self._cutter(place, group)(begin, end) for place in places}

    def _cutter(self, place: int, group: int) -> Callable[[int, int], Any]:
        nulls = self.nulls.get(place)
        variant = place, nulls is not None and nulls[group]
        cut = self._cutters.get(variant)
        if cut is None:
            cut = self._cutters[variant] = _series_cutter(self.column(place, group))
        return cut


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
        parts = tuple([kind(copy(begin, end), placement=at, ndim=2) for kind, copy, at in blocks])
        axes = [columns.view(), pd.RangeIndex(end - begin)]
        return _Frame._from_mgr(_internals.BlockManager(parts, axes, verify_integrity=False), axes)

    return cut


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
    axes = [names.view(), pd.RangeIndex(rows)]
    manager = _internals.BlockManager(tuple(parts), axes, verify_integrity=False)
    return _Frame._from_mgr(manager, axes)


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
