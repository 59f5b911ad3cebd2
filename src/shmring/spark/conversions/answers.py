"""Answers of many groups: they wait, and Spark converts them at once.

Answers wait only if each of their values is converted by itself, whatever stands beside it. Any
other answer is converted alone, by Spark, behind those that wait. If the conversion of several
answers raises an error, Spark converts them one by one: the error is that of the right group.
"""

from __future__ import annotations

import datetime
import decimal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd
import pyspark.sql.types as types
from pyspark.sql.conversion import ArrowBatchTransformer, PandasToArrowConversion
from pyspark.worker import verify_pandas_result

from shmring.spark.conversions.frames import INTEGERS

_MOST_VALUES = 1 << 16  # values of all answers that wait: half a megabyte
_PATIENCE = 0.05  # seconds that an answer waits

# The dtypes of columns that may wait, by the type that they are declared with.
_KINDS: dict[type, str] = {
    **dict.fromkeys((*INTEGERS, types.FloatType, types.DoubleType), "if"),
    **dict.fromkeys((types.StringType, types.BinaryType, types.DateType, types.DecimalType), "O"),
    **dict.fromkeys((types.TimestampType, types.TimestampNTZType), "M"),
    types.BooleanType: "b",
}
# Types of values of which pandas makes one dtype, however many there are.
_VALUES = {
    *(bool, int, float, str, bytes, datetime.date, decimal.Decimal),
    *(np.bool_, np.int32, np.int64, np.float32, np.float64),
}
_IMMUTABLE = {bytes, type(None)}


class _Answers:
    """Answers that wait: all of one layout, which says how pandas stores their values."""

    def __init__(self, schema: types.StructType, settings: Any) -> None:
        self._convert: Callable[..., Any] = partial(
            PandasToArrowConversion.convert,
            timezone=settings.timezone,
            safecheck=settings.safecheck,
            prefers_large_types=settings.use_large_var_types,
            assign_cols_by_name=settings.assign_cols_by_name,
            int_to_decimal_coercion_enabled=settings.int_to_decimal_coercion_enabled,
        )
        self._schema = schema
        self._layout: Any = None
        self._held: list[Any] = []
        self._values = 0  # number of values in the answers that wait
        self._since = 0.0  # time at which the oldest of these answers came

    @property
    def are_waiting(self) -> bool:
        """Whether there are some."""
        return bool(self._held)

    def _add(self, layout: Any, answer: Any, values: int) -> list[Any]:
        flushed = self.flush() if layout != self._layout else []
        self._layout = layout
        now = time.monotonic()
        if not self._held:
            self._since = now
        self._held.append(answer)
        self._values += values
        if self._values > _MOST_VALUES or now - self._since > _PATIENCE:
            flushed += self.flush()
        return flushed

    def flush(self) -> list[Any]:
        """Return the batches of all answers that wait."""
        held, self._held, self._values = self._held, [], 0
        if not held:
            return []
        if len(held) > 1:
            with suppress(Exception):  # one of the answers is at fault
                # Forbid the cast that Spark tries after an error: it changes other answers, too.
                return [self._batch(held, arrow_cast=False)]
        return [self._batch([answer], arrow_cast=True) for answer in held]

    def _batch(self, answers: list[Any], arrow_cast: bool) -> Any:
        """Let Spark convert some answers."""
        raise NotImplementedError


class FrameAnswers(_Answers):
    """Frames that functions return; values are copied, as a function may use a frame again."""

    def __init__(self, returned: types.StructType, schema: types.StructType, settings: Any) -> None:
        super().__init__(schema, settings)
        self._returned = returned
        self._types = [type(field.dataType) for field in returned.fields]
        self._names: list[str] = returned.names
        self._bytes = [i for i, kind in enumerate(self._types) if kind is types.BinaryType]
        self._by_name: bool = settings.assign_cols_by_name
        self._verify = partial(
            verify_pandas_result,
            return_type=returned,
            assign_cols_by_name=settings.assign_cols_by_name,
            truncate_return_schema=False,
        )

    def add(self, result: Any) -> list[Any]:
        """Take an answer; return the batches that go now."""
        if type(result) is pd.DataFrame and result.size < _MOST_VALUES:
            order = self._order(result.columns)
            if order is not None:
                get = result._mgr.iget_values
                arrays = [get(place) for place in order]
                layout = [array.dtype for array in arrays]
                if (layout == self._layout or self._may_wait(layout)) and all(
                    set(map(type, arrays[place])) <= _IMMUTABLE for place in self._bytes
                ):
                    copies = [np.array(getattr(array, "_ndarray", array)) for array in arrays]
                    return self._add(layout, copies, result.size)
        flushed = self.flush()
        self._verify(result)
        return [*flushed, self._convert([result], self._schema, arrow_cast=True)]

    def _order(self, columns: Any) -> Sequence[int] | None:
        """Return the places of the declared columns; None if Spark may object to the columns."""
        names = list(columns)
        if type(columns) not in (pd.Index, pd.RangeIndex) or not names:
            return None
        if len(names) != len(self._names):
            return None
        if names == self._names:
            return range(len(names)) if len(set(names)) == len(names) else None
        if not (self._by_name and any(isinstance(name, str) for name in names)):
            return range(len(names))
        places = {name: place for place, name in enumerate(names)}
        return [places[name] for name in self._names] if places.keys() == set(self._names) else None

    def _may_wait(self, layout: list[Any]) -> bool:
        return all(
            isinstance(dtype, np.dtype) and dtype.isnative and dtype.kind in _KINDS.get(kind, "")
            for kind, dtype in zip(self._types, layout, strict=True)
        )

    def _batch(self, answers: list[Any], arrow_cast: bool) -> Any:
        columns = [np.concatenate(arrays) for arrays in zip(*answers, strict=True)]
        if len(answers) > 1:
            for kind, column in zip(self._types, columns, strict=True):
                _check_range(kind, column)
        series = [pd.Series(column, dtype=column.dtype, copy=False) for column in columns]
        batch = self._convert(series, self._returned, arrow_cast=arrow_cast)
        return ArrowBatchTransformer.wrap_struct(batch)


def _check_range(kind: type, column: Any) -> None:
    """Raise an error if a float fits no integer: C leaves open what it becomes."""
    if kind in INTEGERS and column.dtype.kind == "f":
        bits = 8 << INTEGERS.index(kind)
        if np.abs(column[~np.isnan(column)]).max(initial=0) >= 2.0 ** (bits - 1):
            raise OverflowError


class ValueAnswers(_Answers):
    """Values of aggregates: for each group and function, values, and how often each is repeated."""

    def __init__(self, returned: Sequence[Any], schema: types.StructType, settings: Any) -> None:
        super().__init__(schema, settings)
        self._are_known = all(type(kind) in _KINDS for kind in returned)

    def add(self, answer: Sequence[tuple[list[Any], int]]) -> list[Any]:
        """Take the values of one group; return the batches that go now."""
        layout = [set(map(type, values)) for values, _ in answer]
        if self._are_known and all(len(each) == 1 and each <= _VALUES for each in layout):
            values, times = answer[0]
            return self._add(layout, answer, len(answer) * len(values) * times)
        return [*self.flush(), self._batch([answer], arrow_cast=True)]

    def _batch(self, answers: list[Any], arrow_cast: bool) -> Any:
        columns = [self._column(function) for function in zip(*answers, strict=True)]
        return self._convert(columns, self._schema, arrow_cast=arrow_cast)

    def _column(self, groups: Sequence[tuple[list[Any], int]]) -> Any:
        column = pd.Series(list(chain.from_iterable(values for values, _ in groups)))
        if len(groups) > 1 and column.dtype != pd.Series(groups[0][0]).dtype:
            raise TypeError
        times = [repeated for values, repeated in groups for _ in values]
        return column if max(times) == 1 else column.repeat(times)
