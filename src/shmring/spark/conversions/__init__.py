"""Conversions that replace Spark's own in its Python workers; a user cannot tell the difference.

``pyspark.worker.read_udfs`` and ``read_udtf`` return the function that a worker calls with all of a
task's data. This function is a closure: its free variables hold the user's function, the places of
its arguments, the return type and the settings. The hook, :func:`equip`, hands the closure to a
conversion, and the worker calls the function that the conversion returns.

To register a conversion, add a row to :data:`CONVERSIONS`, kind -> :class:`Conversion`.

- The kind is one of Spark's ``PythonEvalType``.
- The replacement is ``module:function`` in this package, imported when a worker first meets the
  kind. It takes Spark's function, and the free variables by their names. It returns the function
  to call instead, or None to leave this call to Spark's. Both functions take the number of the
  partition and an iterator of the task's data, and return an iterator of Arrow batches.
- The digest is made of the sources of Spark's function and of the functions in `relies_on`, with
  which the conversion has been compared (:func:`digest`). If the sources differ, Spark's function
  runs, and the worker's log says so once for each kind.

Tests keep Spark's function beside each conversion, as its oracle.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, reduce, wraps
from importlib import import_module
from types import CodeType
from typing import Any, NamedTuple, cast

import pyspark
import pyspark.worker as worker
from pyspark.util import PythonEvalType

from shmring.spark import exchange, sparks_code
from shmring.spark.tracebacks import leave_out_of_errors

Function = Callable[[int, Iterator[Any]], Iterator[Any]]
Replacement = Callable[[Function, Mapping[str, Any]], Function | None]

SWITCH = "spark.shmring.conversions"  # setting; with "off", Spark converts all values itself


class Conversion(NamedTuple):
    """Names the replacement of one kind of function, and the sources of Spark that it replaces."""

    replacement: str  # module:function
    relies_on: tuple[str, ...]  # module:name of functions that the replacement calls or mirrors
    digests: Mapping[str, str]  # digest -> versions of Spark that have these sources


# CHANGE: edit this for a new version of Spark
# Beginnings of the versions of Spark whose functions are replaced. Spark 4.1 reads functions in
# another way, so shmring replaces no function there.
_VERSIONS = ("4.2.", "4.3.")

# CHANGE: edit this for a new kind of Python function
_PANDAS = (
    "pyspark.worker:verify_pandas_result",
    "pyspark.sql.conversion:ArrowBatchTransformer.to_pandas",
    "pyspark.sql.conversion:ArrowArrayToPandasConversion.convert",
    "pyspark.sql.conversion:ArrowArrayToPandasConversion.convert_legacy",
    "pyspark.sql.conversion:ArrowArrayToPandasConversion.convert_numpy",
    "pyspark.sql.conversion:PandasToArrowConversion.convert",
    "pyspark.sql.pandas.types:_create_converter_to_pandas",
    "pyspark.sql.pandas.types:_create_converter_from_pandas",
)
_ROWS = (
    "pyspark.util:fail_on_stopiteration",
    "pyspark.worker:verify_result_row_count",
    "pyspark.sql.conversion:LocalDataToArrowConversion._create_converter",
    "pyspark.sql.conversion:ArrowTableToRowsConversion._create_converter",
    "pyspark.sql.conversion:ArrowTableToRowsConversion._to_pylist",
)
_TABLES = (
    "pyspark.worker:read_udtf",
    "pyspark.worker:verify_arrow_result",
    "pyspark.sql.conversion:ArrowBatchTransformer.wrap_struct",
    "pyspark.sql.conversion:LocalDataToArrowConversion.convert",
    "pyspark.sql.conversion:LocalDataToArrowConversion._create_converter",
)
# CHANGE: edit this for a new version of Spark
CONVERSIONS: Mapping[int, Conversion] = {
    # Spark has two functions for this kind: one converts by pandas, the other without pandas. Only
    # the function without pandas is replaced.
    PythonEvalType.SQL_ARROW_BATCHED_UDF: Conversion(
        "rows:plain",
        _ROWS,
        {
            **dict.fromkeys(("ba382a8f736d8b63", "b6119f1902db059b"), "4.2"),
            **dict.fromkeys(("9490b2274ac81e4d", "5020f843c0ed10a9"), "4.3"),
        },
    ),
    PythonEvalType.SQL_ARROW_TABLE_UDF: Conversion(
        "tables:of_values",
        _TABLES,
        dict.fromkeys(("fbf1921c8cebc362", "586d4303560a405b"), "4.3"),
    ),
    PythonEvalType.SQL_MAP_PANDAS_ITER_UDF: Conversion(
        "batches:by_blocks", _PANDAS, {"035ac9e9fa474147": "4.3"}
    ),
    PythonEvalType.SQL_SCALAR_PANDAS_UDF: Conversion(
        "batches:by_blocks", _PANDAS, {"309f89906cee1eb0": "4.3"}
    ),
    PythonEvalType.SQL_SCALAR_PANDAS_ITER_UDF: Conversion(
        "batches:by_blocks", _PANDAS, {"d964678957606ef1": "4.3"}
    ),
    PythonEvalType.SQL_GROUPED_MAP_PANDAS_UDF: Conversion(
        "groups:Frames", _PANDAS, {"04e393a494087aaf": "4.2", "689acd337a4394f2": "4.3"}
    ),
    PythonEvalType.SQL_COGROUPED_MAP_PANDAS_UDF: Conversion(
        "groups:Frames", _PANDAS, {"b2316d4acb4fc2bc": "4.3"}
    ),
    PythonEvalType.SQL_GROUPED_AGG_PANDAS_UDF: Conversion(
        "groups:Series", _PANDAS, {"42909bb2b8028168": "4.3"}
    ),
    PythonEvalType.SQL_WINDOW_AGG_PANDAS_UDF: Conversion(
        "groups:Series", _PANDAS, {"609d0c867a0c12fe": "4.3"}
    ),
}


@cache
def equip() -> None:
    if pyspark.__version__.startswith(_VERSIONS):
        for name in ("read_udfs", "read_udtf"):
            setattr(worker, name, _reading(getattr(worker, name)))


def _reading(read: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(read)
    def read_and_replace(pickler: Any, info: Any, kind: int, settings: Any, others: Any) -> Any:
        function, *rest = read(pickler, info, kind, settings, others)
        reason = 0
        if kind in CONVERSIONS and settings.get(SWITCH, "on") == "on":
            function, reason = _replaced(kind, function)
        exchange.expect(reason)
        return (function, *rest)

    return read_and_replace


def _replaced(kind: int, function: Any) -> tuple[Any, int]:
    """Return a conversion's function and 0, or else Spark's own function and a reason.

    The reason, one of the numbers in exchange.py, says why Spark's function cannot be replaced.
    """
    if reason := _unknown(kind, function.__code__):
        return function, reason
    module, _, name = CONVERSIONS[kind].replacement.partition(":")
    replacement: Replacement = getattr(_imported(f"{__name__}.{module}"), name)
    found = replacement(function, sparks_code.free_variables(function))
    return (function, exchange.KIND) if found is None else (found, 0)


@cache
def _imported(module: str) -> Any:
    found = import_module(module)
    if os.environ.get("SPARK_SIMPLIFIED_TRACEBACK"):
        leave_out_of_errors(*vars(found).values())
    return found


@cache
def _unknown(kind: int, code: CodeType) -> int:
    """Return exchange.CODE or exchange.PANDAS if Spark's function cannot be replaced, else 0.

    The two constants are reasons. The result is cached, so that a worker compares the sources, and
    logs a reason, only once for each kind.
    """
    conversion = CONVERSIONS[kind]
    found = digest(code, conversion.relies_on)
    if found not in conversion.digests:
        reason, words = exchange.CODE, f"does not know their code (digest {found})"
    elif conversion.relies_on is _PANDAS and not _pandas_version().startswith("2."):
        reason = exchange.PANDAS
        words = f"makes the frames of pandas 2, not of {_pandas_version()}: install 'pandas<3'"
    else:
        return 0
    # One write: workers of one executor share its standard error, which is not buffered.
    sys.stderr.write(
        f"shmring: functions of kind {_name_of(kind)} have the conversions of Spark "
        f"{pyspark.__version__}, which take longer, because this shmring {words}\n"
    )
    return reason


def _name_of(kind: int) -> str:
    """Return Spark's name of a kind of functions, such as SQL_SCALAR_PANDAS_UDF."""
    return next((name for name, value in vars(PythonEvalType).items() if value == kind), str(kind))


def _pandas_version() -> str:
    return import_module("pandas").__version__


def digest(code: CodeType, relies_on: Sequence[str]) -> str:
    """Return the digest of a worker's function and of the functions in `relies_on`."""
    named: list[Any] = []
    for path in relies_on:
        module, _, names = path.partition(":")
        named.append(reduce(getattr, names.split("."), cast(Any, import_module(module))))
    return sparks_code.digest(code, *named, scope=vars(worker))
