"""A function with Spark's annotations, as the function of batches that a worker calls.

An iterator gives it the batch of one call, and then ends: to the function each batch is a partition
of its own. So nothing is lost that it yields behind its loop, or keeps from batch to batch.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any

import pyarrow as pa

from shmring.errors import SchemaMismatch, ShmringError
from shmring.sidecars.calls import Call
from shmring.sidecars.frames import Frames, frames
from shmring.sidecars.functions import Function
from shmring.sidecars.hints import Hints, hints_of, without_decorator
from shmring.sidecars.told import WITH_THE_JAR, Told, told_of

__all__ = ["Annotated", "annotated"]

_arrow: Any = pa

_SLOW = 0.1  # seconds before its first batch, of which the user is told

_UDFS = "a UDF (shmring.spark.arrow_udf or pandas_udf)"
_CALLERS = {
    "Series": _UDFS,
    "Array": _UDFS,
    "DataFrame": f"mapInPandas, applyInPandas or {_UDFS}",
    "RecordBatch": "mapInArrow, mapInPandas or applyInArrow",
    "Table": "applyInArrow or mapInArrow",
}


def annotated(function: Function, target: str) -> Function:
    """The function as a worker calls it: as it is, if it takes batches.

    Raises
    ------
    ValueError : its annotations cannot be served
    """
    function = without_decorator(function, target)
    hints = hints_of(function, target)
    return function if hints is None else Annotated(function, hints, target)


class Annotated:
    """Called with batches of rows, or by :meth:`of_udf`.

    Parameters
    ----------
    function : with these annotations
    target : what it is called in errors
    """

    def __init__(self, function: Function, hints: Hints, target: str) -> None:
        self._function = function
        self._hints = hints
        self._target = target
        self._has_warned = False

    def __call__(self, *sides: pa.RecordBatch) -> Any:
        """What it makes of a batch, of a group, or of the sides of a cogroup."""
        told = told_of(sides[0])
        what = self._hints.what
        if what in ("Series", "Array") or (what == "DataFrame" and told.declared is None):
            raise self._misused(told.method)
        given = [self._rows(side, told) for side in sides]
        if self._hints.has_key:
            given.insert(0, self._key(sides, told))
        answer = functools.partial(self._frame, told) if what == "DataFrame" else _unchanged
        if self._hints.are_iterated:
            return map(answer, self._iterated(given))
        return answer(self._function(*given))

    def of_udf(self, batch: pa.RecordBatch, call: Call) -> Any:
        """What it makes of a UDF's arguments: batches of the result alone."""
        if self._hints.what in ("RecordBatch", "Table"):
            return self(batch)
        if self._hints.has_key:
            raise self._misused("udf")
        if self._hints.what == "Array":
            return self._of_columns(_columns(batch), call.names, call.positional, _as_batch)
        converters = _frames(told_of(batch))
        finish = functools.partial(self._column, converters, call.type)
        columns = converters.columns(batch, nested=True)
        return self._of_columns(columns, call.names, call.positional, finish)

    def _of_columns(
        self,
        columns: Sequence[Any],
        names: Sequence[str],
        positional: int,
        finish: Callable[[Any], pa.RecordBatch],
    ) -> Iterator[pa.RecordBatch]:
        if self._hints.are_iterated:
            results = self._iterated([columns[0] if len(columns) == 1 else tuple(columns)])
        else:
            named = dict(zip(names[positional:], columns[positional:], strict=True))
            results = iter((self._function(*columns[:positional], **named),))
        return map(finish, results)

    def _iterated(self, given: Sequence[Any]) -> Iterator[Any]:
        """What it yields for an iterator over the last of these alone."""
        *key, item = given
        begun = time.monotonic()

        def items() -> Iterator[Any]:
            self._warn_of(time.monotonic() - begun)
            yield item

        results = self._function(*key, items())
        try:
            return iter(results)
        except TypeError:
            raise self._wrong(results, f"an iterator of {self._hints.what}") from None

    def _warn_of(self, seconds: float) -> None:
        """Tell the user of work that he may think is done once."""
        if seconds > _SLOW and not self._has_warned:
            self._has_warned = True
            print(
                f"shmring: {self._target} worked for {seconds:.1f} s before it took its first "
                f"batch, and does so for each: in a sidecar an iterator has one batch. Load a "
                f"model when the module is imported, or in the __init__ of a class",
                file=sys.stderr,
                flush=True,
            )

    def _rows(self, batch: pa.RecordBatch, told: Told) -> Any:
        match self._hints.what:
            case "RecordBatch":
                return batch
            case "Table":
                return pa.Table.from_batches([batch])
            case _:
                return _frame_of(batch, told)

    def _key(self, sides: Sequence[pa.RecordBatch], told: Told) -> tuple[Any, ...]:
        """The key of a group, of the first side that has rows."""
        if len(told.keys) != len(sides):
            raise self._misused(told.method)
        side, places = next(
            (each for each in zip(sides, told.keys, strict=True) if each[0].num_rows),
            (sides[0], told.keys[0]),
        )
        if any(place < 0 for place in places):
            raise ShmringError(
                f"{self._target} takes the group's key, of which a part is no column of the frame: "
                f"add it as one with withColumn() and group by that"
            )
        first: Any = _arrow.RecordBatch.from_arrays(
            [_columns(side)[place].slice(0, 1) for place in places],
            [f"_{i}" for i in range(len(places))],
        )
        if self._hints.what != "DataFrame":
            return tuple(column[0] for column in first.columns)
        if not places:
            return ()
        return tuple(each.iloc[0] for each in _frames(told).columns(first, nested=False))

    def _column(self, converters: Frames, kind: pa.DataType, result: Any) -> pa.RecordBatch:
        """A UDF's result, of the type that it was declared with."""
        pandas: Any = import_module("pandas")
        wanted = pandas.DataFrame if pa.types.is_struct(kind) else pandas.Series
        is_like = hasattr(result, "__len__") and hasattr(result, "dtype")
        if not isinstance(result, wanted) and (
            wanted is pandas.DataFrame or self._hints.are_iterated or not is_like
        ):
            raise self._wrong(result, f"a pandas.{wanted.__name__}")
        return _as_batch(converters.array(result, kind))

    def _frame(self, told: Told, result: Any) -> pa.RecordBatch:
        """A frame's rows, with the columns that Spark's method was declared with."""
        pandas: Any = import_module("pandas")
        if not isinstance(result, pandas.DataFrame):
            raise self._wrong(result, "a pandas.DataFrame")
        converters = _frames(told)
        declared: Any = told.declared
        wanted = [field.name for field in declared]
        got = list(result.columns)
        is_map = told.method == "mapInPandas"
        if got or len(result):
            taken = got[: len(wanted)] if is_map else got
            by_name = (is_map or converters.by_name) and any(isinstance(each, str) for each in got)
            if why := _difference(taken, wanted, by_name=by_name):
                raise SchemaMismatch(
                    f"{self._target} answered with other columns than {told.method} was declared "
                    f"with: {why}"
                )
        return pa.RecordBatch.from_struct_array(converters.array(result, declared))

    def _wrong(self, result: object, wanted: str) -> TypeError:
        kind = type(result)
        return TypeError(
            f"{self._target} is annotated {self._hints.text}, and gave a "
            f"{kind.__module__}.{kind.__qualname__} where Spark wants {wanted}"
        )

    def _misused(self, method: str) -> ShmringError:
        hints = self._hints
        called = {"": "with batches of pyarrow, as mapInArrow calls", "udf": "as a UDF"}
        wanted = "applyInPandas or applyInArrow" if hints.has_key else _CALLERS[hints.what]
        remedy = f"call it by {wanted}"
        if not method and hints.what != "RecordBatch":
            remedy += f", with the jar: {WITH_THE_JAR}"
        return ShmringError(
            f"{self._target} is annotated {hints.text}, and was called "
            f"{called.get(method, f'by {method}')}: {remedy}"
        )


@functools.lru_cache(maxsize=16)
def _converters(settings: tuple[tuple[str, str], ...]) -> Frames:
    return frames(dict(settings))


def _frames(told: Told) -> Frames:
    return _converters(tuple((told.settings or {}).items()))


def _frame_of(batch: pa.RecordBatch, told: Told) -> Any:
    """The rows as mapInPandas has them: as a struct; or as groups: column by column."""
    pandas: Any = import_module("pandas")
    if not batch.num_columns:
        return pandas.DataFrame(index=range(batch.num_rows))
    if told.method == "mapInPandas":
        rows: Any = _arrow.StructArray.from_arrays(_columns(batch), fields=list(batch.schema))
        return _frames(told).columns(_as_batch(rows), nested=True)[0]
    return pandas.concat(_frames(told).columns(batch, nested=False), axis=1)


def _as_batch(column: Any) -> pa.RecordBatch:
    return _arrow.RecordBatch.from_arrays([column], ["_0"])


def _columns(batch: Any) -> list[Any]:
    return batch.columns


def _unchanged(answer: Any) -> Any:
    return answer


def _difference(got: Sequence[Any], wanted: Sequence[str], *, by_name: bool) -> str | None:
    """Why a frame's columns are not those that were declared."""
    if not by_name:
        return None if len(got) == len(wanted) else f"it has {len(got)} columns, not {len(wanted)}"
    why = [f"{name} is missing" for name in wanted if name not in got]
    why += [f"{name} is not declared" for name in got if name not in wanted]
    return ", ".join(why) or None
