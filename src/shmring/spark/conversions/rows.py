"""Plain functions, which a worker calls with the values of each row.

The values of a batch go through Spark's own converters, with two exceptions. A converter is not
called for values that it would not change. Instants and dates are made by numpy, which makes the
same objects in a fraction of the time.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyspark.util
from pyspark.sql.conversion import ArrowTableToRowsConversion

from shmring.spark.conversions.columns import are

# Bounds of the instants that Python can represent in every time zone.
_FIRST, _LAST = np.datetime64("0002-01-01"), np.datetime64("9999-01-01")
# Modules and classes, typed as Any because their stubs lack names.
_pa: Any = pa
_util: Any = pyspark.util
_to_list: Callable[[Any], list[Any]] = getattr(ArrowTableToRowsConversion, "_to_pylist")  # noqa: B009
# Type of values that a converter of Spark returns unchanged, by the converter's name.
_UNCHANGED: Mapping[str, type] = {"convert_string": str, "convert_binary": bytes}


def plain(
    sparks: Any, variables: Mapping[str, Any]
) -> Callable[[int, Iterator[Any]], Iterator[Any]] | None:
    """Return a function to call instead of Spark's; None if Spark's uses pandas or threads."""
    converters: list[Any] | None = variables.get("arrow_to_py_converters")
    settings = variables["runner_conf"]
    if converters is None or settings.arrow_concurrency_level > 0:
        return None
    call = _util.fail_on_stopiteration(_called)

    def run(partition: int, data: Iterator[Any]) -> Iterator[Any]:
        for batch in data:
            columns = [
                _values(column, converter, settings.binary_as_bytes)
                for column, converter in zip(batch.itercolumns(), converters, strict=False)
            ]
            arrays: list[Any] = []
            for function, places, takes_none, kind, converter in variables["udf_infos"]:
                given = [] if takes_none else [columns[place] for place in places]
                results: list[Any] = call(function, given, batch.num_rows)
                if converter is not None and not _is_unchanged(results, converter):
                    results = [converter(result) for result in results]
                try:
                    array = _pa.array(results, type=kind)
                except _pa.lib.ArrowInvalid:
                    array = _pa.array(results).cast(target_type=kind, safe=settings.safecheck)
                arrays.append(array)
            yield _pa.RecordBatch.from_arrays(arrays, variables["col_names"])

    return run


# CHANGE: edit this for a new type between Spark and Arrow
def _values(column: Any, converter: Any, has_bytes: bool) -> list[Any]:
    """Return a column's values as functions get them: binaries as bytes if has_bytes is true."""
    name = getattr(converter, "__name__", "")
    is_instant = name in ("convert_timestamp", "convert_timestamp_ntz")
    if is_instant or (converter is None and pa.types.is_date32(column.type)):
        array = _in_numpy(column)
        if array is not None:
            values = array.tolist()
            return [*map(_local, values)] if name == "convert_timestamp" else values
    values = _to_list(column)
    if converter is None or (name == "convert_binary" and has_bytes):
        return values
    return [converter(value) for value in values]


def _called(function: Callable[..., Any], columns: Sequence[list[Any]], rows: int) -> list[Any]:
    """Call a function for each row; map() would hide a StopIteration."""
    if not columns:
        return [function() for _ in range(rows)]
    if len(columns) == 1:
        return [function(value) for value in columns[0]]
    return [function(*row) for row in zip(*columns, strict=True)]


def _is_unchanged(results: list[Any], converter: Any) -> bool:
    """Whether a converter would return each result as it is."""
    unchanged = _UNCHANGED.get(converter.__name__)
    return unchanged is not None and are(results, unchanged)


def _in_numpy(column: Any) -> Any:
    """Return dates or instants as a numpy array; None if Python may be unable to express one."""
    if pa.types.is_timestamp(column.type) and column.type.unit != "us":
        return None
    array = column.to_numpy(zero_copy_only=False)
    if ((array < _FIRST) | (array >= _LAST)).any():
        return None
    return array if np.isnat(array).sum() == column.null_count else None


def _local(value: Any) -> Any:
    """Return an instant as the local time of this process, as Spark's converter makes it."""
    return value and value.replace(tzinfo=datetime.UTC).astimezone().replace(tzinfo=None)
