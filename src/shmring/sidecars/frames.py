"""Data of Arrow as pandas has it, and back, as Spark's own Python workers convert it.

The converters are those of the pyspark that is installed, so that types, nulls and times are its.
They have other names in each version, and no version calls them public.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol

import pyarrow as pa

from shmring.errors import ShmringError

__all__ = ["Frames", "frames"]

_arrow: Any = pa

_BY_NAME = "spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName"
_SAFELY = "spark.sql.execution.pandas.convertToArrowArraySafely"
_TO_DECIMAL = "spark.sql.execution.pythonUDF.pandas.intToDecimalCoercionEnabled"
_INT_TYPES = "spark.sql.execution.pythonUDF.pandas.preferIntExtensionDtype"
_LARGE = "spark.sql.execution.arrow.useLargeVarTypes"
_ZONE = "spark.sql.session.timeZone"


class Frames(Protocol):
    """Converts for a session of Spark's with certain settings."""

    by_name: bool  # whether columns of a group's answer are assigned by name

    def columns(self, batch: pa.RecordBatch, *, nested: bool) -> list[Any]:
        """Each column as a Series; if `nested`, one of structs as a DataFrame."""
        ...

    def array(self, result: Any, declared: pa.DataType) -> Any:
        """A Series as an array of this type; of structs, a DataFrame."""
        ...


def frames(settings: Mapping[str, str]) -> Frames:
    """The converters of the pyspark that is installed.

    Parameters
    ----------
    settings : of the session, as Spark tells them its Python workers

    Raises
    ------
    ShmringError : there is no pyspark
    """
    if find_spec("pyspark") is None:
        raise ShmringError(
            "a function that takes data of pandas needs pyspark beside it, whose converters make "
            "the data: pip install 'shmring[spark]', or take batches of pyarrow"
        )
    conversion: Any = import_module("pyspark.sql.conversion")
    is_new = hasattr(conversion, "PandasToArrowConversion")
    return _Frames(settings) if is_new else _FramesOf41(settings)


@functools.lru_cache(maxsize=64)
def _spark_schema(declared: pa.DataType) -> Any:
    types: Any = import_module("pyspark.sql.types")
    kind = import_module("pyspark.sql.pandas.types").from_arrow_type(declared)
    return types.StructType([types.StructField("_0", kind)])


class _Frames:
    """Those of Spark 4.2 and later."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        conversion: Any = import_module("pyspark.sql.conversion")
        self.by_name = settings.get(_BY_NAME, "true") == "true"
        self._to_pandas = conversion.ArrowBatchTransformer.to_pandas
        self._to_arrow = conversion.PandasToArrowConversion.convert
        self._given: dict[str, Any] = {
            "timezone": settings.get(_ZONE),
            "prefer_int_ext_dtype": settings.get(_INT_TYPES) == "true",
        }
        self._taken: dict[str, Any] = {
            "timezone": settings.get(_ZONE),
            "safecheck": settings.get(_SAFELY) == "true",
            "arrow_cast": True,
            "prefers_large_types": settings.get(_LARGE) == "true",
            "assign_cols_by_name": self.by_name,
            "int_to_decimal_coercion_enabled": settings.get(_TO_DECIMAL) == "true",
        }

    def columns(self, batch: pa.RecordBatch, *, nested: bool) -> list[Any]:
        return self._to_pandas(batch, df_for_struct=nested, **self._given)

    def array(self, result: Any, declared: pa.DataType) -> Any:
        return self._to_arrow([result], _spark_schema(declared), **self._taken).column(0)


class _FramesOf41:
    """Those of Spark 4.1."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self.by_name = settings.get(_BY_NAME, "true") == "true"
        make: Any = import_module("pyspark.sql.pandas.serializers").ArrowStreamPandasUDFSerializer
        self._nested, self._flat = (
            make(
                *(settings.get(_ZONE), settings.get(_SAFELY) == "true", self.by_name),
                df_for_struct=is_nested,
                arrow_cast=True,
                int_to_decimal_coercion_enabled=settings.get(_TO_DECIMAL) == "true",
            )
            for is_nested in (True, False)
        )

    def columns(self, batch: pa.RecordBatch, *, nested: bool) -> list[Any]:
        convert = (self._nested if nested else self._flat).arrow_to_pandas
        columns: Sequence[Any] = _arrow.Table.from_batches([batch]).columns
        return [convert(column, place) for place, column in enumerate(columns)]

    def array(self, result: Any, declared: pa.DataType) -> Any:
        return self._nested._create_batch([(result, declared)]).column(0)
