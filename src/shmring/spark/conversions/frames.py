"""Frames and series of many groups: all rows are converted together, and each group gets a copy.

A group's frame cannot be told from the frame that Spark makes of the group's rows alone: it has the
same dtypes, blocks, index, names and flags, and memory of its own. An integer or boolean column has
another dtype if one of its values is null. If only some groups have nulls in such a column, the
column is converted twice, and each group takes the dtype that its own rows give.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.compute as pc
import pyspark.sql.types as types
from pyspark.sql.conversion import ArrowBatchTransformer
from pyspark.sql.pandas.types import from_arrow_schema

from shmring.spark.conversions.columns import INTEGERS, in_pandas

# Modules and classes, typed as Any because their stubs lack names.
_pc: Any = pc
_Frame: Any = pd.DataFrame
_Series: Any = pd.Series
_RangeIndex: Any = pd.RangeIndex
# Sets an attribute directly; the __setattr__ of pandas first looks the attribute up.
_set = object.__setattr__
_options: Any = import_module("pandas._config.config")._global_config
_internals: Any = import_module("pandas.core.internals")
BlockManager: Any = _internals.BlockManager
_Placement: Any = import_module("pandas._libs.internals").BlockPlacement

# CHANGE: edit this for a new type between Spark and Arrow
# Types whose columns have the same dtype with and without nulls. Each value is converted alone:
# values of other groups do not change its result.
_STEADY = (
    *(types.FloatType, types.DoubleType, types.StringType, types.BinaryType, types.DateType),
    *(types.TimestampType, types.TimestampNTZType, types.DecimalType, types.DayTimeIntervalType),
)
# Maximum number of frames that JoinedRows makes of a request's rows. Groups with nulls in different
# columns need different dtypes, and so different frames. Spark converts a request that needs more
# frames.
_MOST_VARIANTS = 16
# Maximum number of entries of _layouts. A full _layouts is emptied before another entry is added.
_MOST_LAYOUTS = 64
# Layouts of frames as Spark makes them: the column names, and the kind, dtype and columns of each
# block of pandas. A key has the column names (or the schema) and the columns' dtypes. A layout
# stays for all tasks of the worker: without a layout, a frame of ten columns takes pandas a
# millisecond.
_layouts: dict[Any, tuple[Any, list[Any]]] = {}

# Allocate 8 MB and free them at once: glibc then raises a limit of its own, and from now on keeps
# up to 16 MB of freed memory. Otherwise glibc returns the memory of each batch to the kernel, and
# page faults take a fifth of a conversion's time.
bytearray(8 << 20)


def has_usual_options() -> bool:
    """Whether pandas has the options for which shmring's conversions were written.

    With other options, Spark's own code makes other frames, dtypes or nulls than the conversions of
    this package. Spark then converts everything itself.
    """
    mode = _options["mode"]
    return (
        mode["data_manager"] == "block"
        and not mode["copy_on_write"]
        and not mode["use_inf_as_na"]
        and not _options["future"]["infer_string"]
    )


class Unjoinable(Exception):
    """Raised if groups cannot be converted together; Spark then converts them one by one."""


class JoinedRows:
    """The rows of several groups, converted together."""

    def __init__(self, batch: Any, rows: Sequence[int], settings: Any) -> None:
        self.rows = rows
        self._names: list[str] = batch.schema.names
        ends: Any = np.cumsum(rows)
        self._ends: list[int] = ends.tolist()
        self._values = _converted(batch, settings)
        # Columns with nulls whose dtype depends on the nulls, by the column's place. _nulls says
        # for each group whether the group has nulls in the column. _filled has the column with 0 or
        # False instead of each null; groups without nulls are cut from this column.
        self._nulls: dict[int, list[bool]] = {}
        self._filled: dict[int, Any] = {}
        # Functions that copy a group's rows out of a frame or a series of all rows. The key of a
        # frame says for each column in _nulls whether the group has nulls there. The key of a
        # series is the column's place, and whether the group has nulls there.
        self._cutters: dict[Any, Callable[[int, int], Any]] = {}
        for place, field in enumerate(from_arrow_schema(batch.schema).fields):
            kind, column = type(field.dataType), batch.column(place)
            if kind in _STEADY:
                continue
            if kind not in INTEGERS and kind is not types.BooleanType:
                raise Unjoinable
            if not column.null_count:
                continue
            if kind in INTEGERS and settings.prefer_int_ext_dtype:
                # Leave longs with nulls to Spark. Spark may round large values if the column of a
                # group has a null; here, a null of one group would round the values of others.
                if kind is types.LongType:
                    raise Unjoinable
                continue
            is_null = column.is_null().to_numpy(zero_copy_only=False)
            sums: Any = np.concatenate(([0], np.cumsum(is_null)))
            self._nulls[place] = (sums[ends] > sums[ends - rows]).tolist()
            filled = _pc.fill_null(column, False if kind is types.BooleanType else 0)
            self._filled[place] = filled.to_numpy(zero_copy_only=False)

    def _column(self, place: int, group: int) -> Any:
        """Return a column whose values in the group's rows are those that Spark would make."""
        is_filled = place in self._nulls and not self._nulls[place][group]
        return self._filled[place] if is_filled else self._values[place]

    def _series(self, place: int, group: int) -> Any:
        values = self._column(place, group)
        return _Series(values, dtype=values.dtype, copy=False, name=self._names[place])

    def frame(self, group: int, places: Sequence[int]) -> Any:
        """Make the group's frame of the columns at `places`, which are the same in each call."""
        variant = tuple([nulls[group] for at, nulls in self._nulls.items() if at in places])
        cut = self._cutters.get(variant)
        if cut is None:
            if len(self._cutters) == _MOST_VARIANTS:
                raise Unjoinable
            columns = [self._column(place, group) for place in places]
            names = tuple([self._names[place] for place in places])
            whole = framed(
                names,
                columns,
                lambda: pd.concat([self._series(place, group) for place in places], axis=1),
            )
            cut = self._cutters[variant] = _frame_cutter(whole)
        return self._cut(cut, group)

    def key(self, group: int, places: Sequence[int]) -> tuple[Any, ...]:
        """Return the group's key: the values of some columns in its first row."""
        first = self._ends[group] - self.rows[group]
        return tuple([self._column(place, group)[first] for place in places])

    def series(self, group: int, place: int) -> Any:
        """Make the group's series of a column."""
        variant = place, place in self._nulls and self._nulls[place][group]
        cut = self._cutters.get(variant)
        if cut is None:
            cut = self._cutters[variant] = _series_cutter(self._series(place, group))
        return self._cut(cut, group)

    def _cut(self, cut: Callable[[int, int], Any], group: int) -> Any:
        end = self._ends[group]
        return cut(end - self.rows[group], end)


def _converted(batch: Any, settings: Any) -> list[Any]:
    """Return the values of the series that Spark makes of a batch."""
    extends: bool = settings.prefer_int_ext_dtype

    def sparks(places: Sequence[int]) -> list[Any]:
        series = ArrowBatchTransformer.to_pandas(
            batch.select(places), timezone=settings.timezone, prefer_int_ext_dtype=extends
        )
        return [each._values for each in series]

    return sparks(range(batch.num_columns)) if extends else in_pandas(batch.columns, sparks)


def framed(names: Any, columns: Sequence[Any], make: Callable[[], Any]) -> Any:
    """Make a frame of some columns by its layout in _layouts.

    If the layout is missing, make the frame by calling `make`, and add the layout.
    """
    key = names, *[values.dtype for values in columns]
    layout = _layouts.get(key)
    if layout is not None:
        return _filled(*layout, columns)
    frame = make()
    if len(_layouts) == _MOST_LAYOUTS:
        _layouts.clear()
    blocks: list[Any] = [(type(each), each.dtype, each.mgr_locs) for each in frame._mgr.blocks]
    _layouts[key] = _copied(frame.columns), blocks
    return frame


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


def _copied(names: Any) -> Any:
    """Copy an index, because `frame.columns.values[0] = "name"` in a function changes it."""
    kind: Any = names.__class__
    return kind._simple_new(names._values.copy(), names._name)


def _made_of(names: Any, blocks: Sequence[Any], rows: int) -> Any:
    axes = [_copied(names), _RangeIndex.from_range(range(rows))]
    manager = BlockManager(tuple(blocks), axes, verify_integrity=False)
    return _Frame._from_mgr(manager, axes)


def _filled(names: Any, blocks: Sequence[Any], columns: Sequence[Any]) -> Any:
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
    return lambda begin, end: _series_of_block(kind, copy(begin, end), name)


def _series_of_block(kind: Any, values: Any, name: Any) -> Any:
    rows = len(values)
    manager = _internals.SingleBlockManager(
        kind(values, placement=_Placement(slice(0, rows)), ndim=1),
        _RangeIndex.from_range(range(rows)),
    )
    series = _Series._from_mgr(manager, manager.axes)
    _set(series, "_name", name)
    return series


def series_of(values: Any, name: str) -> Any:
    """Make a series of numpy's values; pandas takes ten times as long."""
    if not values.flags.owndata:  # copy, because the values may be in a request's memory
        values = values.copy()
    return _series_of_block(_kind_of_block(values.dtype), values, name)


@cache
def _kind_of_block(dtype: Any) -> Any:
    (block,) = _Series(np.empty(0, dtype))._mgr.blocks
    return block.__class__


def window_cutter(series: Any) -> Callable[[int, int], Any]:
    """Return a function that slices the series without a copy, as `iloc` does, but faster."""
    if series.attrs or not series.flags.allows_duplicate_labels:
        return lambda begin, end: series.iloc[begin:end]
    rows, made, name = series._mgr.get_slice, _Series._from_mgr, series.name

    def cut(begin: int, end: int) -> Any:
        manager = rows(slice(begin, end))
        part = made(manager, manager.axes)
        _set(part, "_name", name)
        return part

    return cut
