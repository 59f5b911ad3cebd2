"""Collects the answers of many groups, and lets Spark convert them together.

Answers wait only if the conversion of each value is independent of the other values. Spark converts
any other answer alone, after the answers that wait.
"""

from __future__ import annotations

import datetime
import decimal
import warnings
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain, groupby
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyspark.sql.types as types
from pyspark.sql.conversion import ArrowBatchTransformer, PandasToArrowConversion
from pyspark.worker import verify_pandas_result

from shmring.spark.conversions.columns import INTEGERS, NONE, are, in_arrow
from shmring.spark.conversions.frames import BlockManager, has_usual_options
from shmring.spark.conversions.waiting import MOST_VALUES, Waiting

_pa: Any = pa  # typed as Any, because its stubs lack names

# CHANGE: edit this for a new type between Spark and Arrow
# Kinds of dtypes (letters of dtype.kind) that the columns of a waiting answer may have, by the
# column's declared type. An answer with another dtype does not wait: Spark converts it alone.
_KINDS: dict[type, str] = {
    **dict.fromkeys((*INTEGERS, types.FloatType, types.DoubleType), "if"),
    **dict.fromkeys((types.StringType, types.BinaryType, types.DateType, types.DecimalType), "O"),
    **dict.fromkeys((types.TimestampType, types.TimestampNTZType), "M"),
    types.BooleanType: "b",
}
# Types that the values of a waiting answer may have. Values of these types cannot be changed, so
# the user's function cannot change them while the answer waits. For values of one of these types,
# pandas mostly chooses the dtype by the type alone, so the values of several answers together get
# the dtype that the values of each answer would get.
_VALUES = {
    *(bool, int, float, str, bytes, datetime.date, decimal.Decimal),
    *(np.bool_, np.int32, np.int64, np.float32, np.float64),
}
_UNCHANGING = _VALUES | {NONE, type(pd.NA), type(pd.NaT)}


class _Answers(Waiting):
    """Answers that wait to be converted together, each as a list of its columns."""

    def __init__(self, schema: types.StructType, settings: Any) -> None:
        super().__init__()
        self._names: list[str] = schema.names
        self._columns = [types.StructType([field]) for field in schema.fields]
        self._large: bool = settings.use_large_var_types
        self._convert: Callable[..., Any] = partial(
            PandasToArrowConversion.convert,
            timezone=settings.timezone,
            safecheck=settings.safecheck,
            prefers_large_types=settings.use_large_var_types,
            assign_cols_by_name=settings.assign_cols_by_name,
            int_to_decimal_coercion_enabled=settings.int_to_decimal_coercion_enabled,
        )

    def _together(self, answers: list[Sequence[Any]]) -> list[Any]:
        # Forbid the cast that Spark tries after an error: it would also cast the values of the
        # other answers, which cause no error.
        return [self._batch(answers, arrow_cast=False)]

    def _alone(self, answer: Sequence[Any]) -> list[Any]:
        return [self._batch([answer], arrow_cast=True)]

    def _batch(self, answers: list[Sequence[Any]], arrow_cast: bool) -> Any:
        """Let Spark convert the columns of some answers."""
        arrays = [
            self._array(column, chunks, arrow_cast)
            for column, chunks in zip(self._columns, zip(*answers, strict=True), strict=True)
        ]
        return _pa.RecordBatch.from_arrays(arrays, self._names)

    def _array(self, column: types.StructType, chunks: Sequence[Any], arrow_cast: bool) -> Any:
        """Convert a column; successive chunks that pandas stores in the same way go together."""
        arrays: list[Any] = []
        is_usual = has_usual_options()
        for _, run in groupby(chunks, self._storage):
            values = self._merged(column, [*run])
            array = in_arrow(values, column[0].dataType, self._large) if is_usual else None
            if array is None:
                series = pd.Series(values, dtype=values.dtype, copy=False)
                array = self._convert([series], column, arrow_cast=arrow_cast).column(0)
            arrays.append(array)
        return arrays[0] if len(arrays) == 1 else _pa.concat_arrays(arrays)

    def flush(self) -> list[Any]:
        """Convert the answers that wait.

        The answers came while pandas had its usual options. If the user's function has set the
        option use_inf_as_na since, switch the option off for the conversion: if the option is set,
        pandas takes infinity for null.
        """
        if has_usual_options():
            return super().flush()
        # Ignore the warning of pandas that this option will be removed.
        with (
            warnings.catch_warnings(action="ignore"),
            pd.option_context("mode.use_inf_as_na", False),
        ):
            return super().flush()

    @abstractmethod
    def _storage(self, chunk: Any) -> Any:
        """Return a key, equal for chunks whose values pandas stores in the same way."""

    @abstractmethod
    def _merged(self, column: types.StructType, chunks: list[Any]) -> Any:
        """Join chunks that pandas stores in the same way to one numpy array."""


class FrameAnswers(_Answers):
    """Frames that functions return; values are copied, because a function may reuse a frame."""

    def __init__(self, returned: types.StructType, schema: types.StructType, settings: Any) -> None:
        super().__init__(returned, settings)
        self._schema = schema
        self._layout: list[Any] = []  # dtypes of the last answer that was allowed to wait
        self._objects: list[int] = []  # places of the columns with dtype object in _layout
        self._types = [type(field.dataType) for field in returned.fields]
        self._are_unique = len(set(self._names)) == len(self._names)
        self._by_name: bool = settings.assign_cols_by_name
        self._verify = partial(
            verify_pandas_result,
            return_type=returned,
            assign_cols_by_name=settings.assign_cols_by_name,
            truncate_return_schema=False,
        )

    def add(self, result: Any) -> list[Any]:
        """Take an answer; return the batches to send now."""
        if type(result) is pd.DataFrame and type(manager := result._mgr) is BlockManager:
            size = len(result) * len(self._names)
            order = self._order(result.columns)
            if order is not None and size < MOST_VALUES and has_usual_options():
                blocks: Sequence[Any] = manager.blocks
                numbers, rows = manager.blknos.tolist(), manager.blklocs.tolist()
                layout = [blocks[numbers[place]].dtype for place in order]
                if layout == self._layout or self._may_wait(layout):
                    copies = [_copied(block.values) for block in blocks]
                    chunks = [copies[numbers[at]][rows[at]] for at in order]
                    if all(_is_unchanging(chunks[place]) for place in self._objects):
                        return self.hold(chunks, size)
        flushed = self.flush()
        self._verify(result)
        return [*flushed, self._convert([result], self._schema, arrow_cast=True)]

    def _order(self, columns: Any) -> Sequence[int] | None:
        """Return the places of the declared columns; None if Spark may object to the columns."""
        names: list[Any] = columns.tolist()
        is_plain = type(columns) in (pd.Index, pd.RangeIndex)
        if not is_plain or not names or len(names) != len(self._names):
            return None
        if names == self._names and self._are_unique:
            return range(len(names))
        if not (self._by_name and any(isinstance(name, str) for name in names)):
            return range(len(names))
        places = {name: place for place, name in enumerate(names)}
        is_whole = len(places) == len(names) and places.keys() == set(self._names)
        return [places[name] for name in self._names] if is_whole else None

    def _may_wait(self, layout: list[Any]) -> bool:
        if not all(
            isinstance(dtype, np.dtype) and dtype.isnative and dtype.kind in _KINDS.get(kind, "")
            for kind, dtype in zip(self._types, layout, strict=True)
        ):
            return False
        self._layout = layout
        self._objects = [place for place, dtype in enumerate(layout) if dtype.kind == "O"]
        return True

    def _batch(self, answers: list[Sequence[Any]], arrow_cast: bool) -> Any:
        return ArrowBatchTransformer.wrap_struct(super()._batch(answers, arrow_cast))

    def _storage(self, chunk: Any) -> Any:
        return chunk.dtype

    def _merged(self, column: types.StructType, chunks: list[Any]) -> Any:
        values = np.concatenate(chunks)
        if len(chunks) > 1:
            _check_range(type(column[0].dataType), values)
        return values


def _copied(values: Any) -> Any:
    """Copy the values of a block, so that the values of each column lie side by side."""
    return np.array(getattr(values, "_ndarray", values), order="C")


def _is_unchanging(column: Any) -> bool:
    """Whether a column has no object that a function could change later, such as a bytearray."""
    values: list[Any] = column.tolist()
    return are(values, str) or {*map(type, values)} <= _UNCHANGING


def _check_range(kind: type, column: Any) -> None:
    """Raise OverflowError if a float does not fit the integer type: C defines no result."""
    if kind in INTEGERS and column.dtype.kind == "f":
        bits = 8 << INTEGERS.index(kind)
        if np.abs(column[~np.isnan(column)]).max(initial=0) >= 2.0 ** (bits - 1):
            raise OverflowError


class ValueAnswers(_Answers):
    """Answers of aggregates: the values for each group, and how often they are repeated."""

    def __init__(self, schema: types.StructType, settings: Any) -> None:
        super().__init__(schema, settings)
        self._are_known = all(type(field.dataType) in _KINDS for field in schema.fields)

    def add(self, answer: Sequence[tuple[list[Any], int]]) -> list[Any]:
        """Take the values of one group; return the batches to send now."""
        kinds = [set(map(type, values)) for values, _ in answer]
        if (
            self._are_known
            and has_usual_options()
            and all(len(each) == 1 and each <= _VALUES for each in kinds)
        ):
            values, times = answer[0]
            return self.hold(answer, len(answer) * len(values) * times)
        return [*self.flush(), *self._alone(answer)]

    def _storage(self, chunk: tuple[list[Any], int]) -> Any:
        return chunk[0][0].__class__

    def _merged(self, column: types.StructType, chunks: list[tuple[list[Any], int]]) -> Any:
        series = pd.Series(list(chain.from_iterable(values for values, _ in chunks)))
        if len(chunks) > 1 and series.dtype != pd.Series(chunks[0][0]).dtype:
            raise TypeError
        times = [repeated for values, repeated in chunks for _ in values]
        return series._values if max(times) == 1 else series._values.repeat(times)
