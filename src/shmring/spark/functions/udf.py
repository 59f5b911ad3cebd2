"""UDFs whose work a sidecar does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from shmring.errors import SchemaMismatch, ShmringError
from shmring.spark.functions.bridge import Through, function_of, through

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType

__all__ = ["arrow_udf", "pandas_udf"]

# Spark hands over the argument where there is one, else a tuple of them.
Arguments = Any


def arrow_udf(name: str, return_type: str | DataType, **options: Any) -> Any:
    """An ``arrow_udf`` (Spark 4.1 and later) of one or more columns, done by a sidecar.

    >>> score = shmring.spark.arrow_udf("scorer", "double")  # doctest: +SKIP
    >>> df.select(score("price", "quantity"))  # doctest: +SKIP

    The sidecar gets batches with the columns ``_0``, ``_1``, ... and answers with
    as many rows, in batches whose first column is the result.

    Parameters
    ----------
    name : of the sidecar
    return_type : as for ``pyspark.sql.functions.arrow_udf``
    options : those of :func:`through`
    """
    import pyarrow as pa

    run = through(name, **options)

    def call(arguments: Iterator[Arguments]) -> Iterator[Any]:
        yield from _results(run, (_as_batch(_as_tuple(each)) for each in arguments))

    return _udf("arrow_udf", name, call, pa.Array, return_type)


def pandas_udf(name: str, return_type: str | DataType, **options: Any) -> Any:
    """A ``pandas_udf`` of one or more columns, done by a sidecar; else as :func:`arrow_udf`.

    Struct columns arrive as struct columns; a struct as the result is a struct column too.
    """
    import pandas as pd

    run = through(name, **options)

    def call(arguments: Iterator[Arguments]) -> Iterator[Any]:
        batches = (_as_batch(tuple(map(_to_arrow, _as_tuple(each)))) for each in arguments)
        yield from map(_to_pandas, _results(run, batches))

    return _udf("pandas_udf", name, call, pd.Series, return_type)


def _results(run: Through, batches: Iterable[pa.RecordBatch]) -> Iterator[Any]:
    """The first column of each answer; they have as many rows as the batches together."""
    rows = 0

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal rows
        for batch in batches:
            rows += batch.num_rows
            yield batch

    answered = 0
    with closing(run(counted())) as answers:  # an error must not keep its ring
        for answer in answers:
            if not answer.num_columns:
                raise SchemaMismatch(
                    f"{function_of(run.name)} answered without a column: expected one with the "
                    f"result for each row"
                )
            answered += answer.num_rows
            if answered > rows:
                break
            yield answer.column(0)
    if answered != rows:
        raise SchemaMismatch(
            f"{function_of(run.name)} answered with another number of rows than a UDF must: "
            f"expected {rows}, got {answered}"
        )


def _udf(maker: str, name: str, call: Any, kind: Any, return_type: str | DataType) -> Any:
    functions: Any = import_module("pyspark.sql.functions")
    make = getattr(functions, maker, None)
    if make is None:
        spark: Any = import_module("pyspark")
        raise ShmringError(
            f"{maker} needs Spark 4.1 or later, and this is {spark.__version__}; "
            "shmring.spark.pandas_udf does the same here"
        )
    call.__name__ = name
    # Spark reads from the annotations that it is to pass an iterator; this one
    # serves for several columns too.
    call.__annotations__ = {"arguments": Iterator[kind], "return": Iterator[kind]}
    return make(call, returnType=return_type)


def _as_tuple(arguments: Arguments) -> tuple[Any, ...]:
    return cast("tuple[Any, ...]", arguments) if isinstance(arguments, tuple) else (arguments,)


def _as_batch(columns: tuple[Any, ...]) -> pa.RecordBatch:
    import pyarrow as pa

    return pa.record_batch(list(columns), names=[f"_{i}" for i in range(len(columns))])


def _to_arrow(column: Any) -> Any:
    import pandas as pd
    import pyarrow as pa

    if isinstance(column, pd.DataFrame):
        return pa.RecordBatch.from_pandas(column, preserve_index=False).to_struct_array()
    array: Any = pa.Array
    return array.from_pandas(column)


def _to_pandas(column: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_struct(column.type):
        column = pa.RecordBatch.from_struct_array(column)
    return column.to_pandas()
