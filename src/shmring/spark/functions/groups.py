"""Sending Spark's groups and cogroups through a sidecar, in Spark's Python workers."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from inspect import signature
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from shmring.errors import MessageTooLarge
from shmring.sidecars import Metrics
from shmring.sidecars.groups import group_of

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from shmring.sidecars import SidecarClient
    from shmring.spark.functions.bridge import Through

__all__ = ["GroupOptions", "Groups", "as_batch", "as_table", "session_options"]

_BY_NAME = "spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName"
_LARGE = "spark.sql.execution.arrow.useLargeVarTypes"


@dataclass(frozen=True, slots=True)
class GroupOptions:
    """A session's options of grouped functions.

    Parameters
    ----------
    by_name : whether the columns of an answer are assigned by name
    large : whether texts and binaries have 64-bit offsets
    """

    by_name: bool = True
    large: bool = False


def session_options() -> GroupOptions | None:
    """Return the options of the session in which a function is declared; None in a worker."""
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    if session is None:
        return None
    conf = session.conf
    return GroupOptions(conf.get(_BY_NAME, "true") == "true", conf.get(_LARGE, "false") == "true")


class Groups:
    """The groups of a task, one request for each.

    Spark calls a function once for each group, and does not announce the last one. The client
    leaves when this object is dropped: Spark drops a task's function with the task.
    """

    def __init__(self, run: Through) -> None:
        self._client: SidecarClient = run.connect()
        self._metrics = run.metrics
        weakref.finalize(self, self._client.close)

    def answers(self, sides: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the sidecar's answers to a group, or to the two sides of a cogroup.

        Raises
        ------
        MessageTooLarge : the group does not fit one request
        """
        try:
            yield from self._client.map((group_of(*sides),), whole=True)
        except MessageTooLarge as error:
            rows = " and ".join(str(side.num_rows) for side in sides)
            raise MessageTooLarge(
                f"a group of {rows} rows must fit one request, because it is not split: {error}"
            ) from None
        finally:
            if self._metrics is not None:
                self._metrics.add(self._client.metrics)
                self._client.metrics = Metrics()


def as_batch(table: pa.Table) -> pa.RecordBatch:
    """Return all rows of a table as one batch; there may be none."""
    parts = table.combine_chunks().to_batches()
    if len(parts) > 1:  # a column has more bytes of text than 32-bit offsets can address
        raise MessageTooLarge(
            f"a group of {table.num_rows} rows with {table.nbytes} bytes does not fit one request"
        )
    if parts:
        return parts[0]
    empty: Any = [pa.array([], kind) for kind in table.schema.types]
    return pa.record_batch(empty, schema=table.schema)


def as_table(
    answers: Iterable[pa.RecordBatch], declared: StructType | None, options: GroupOptions
) -> pa.Table:
    """Return all answers, perhaps none, with exactly the types that Spark expects."""
    if declared is None:
        return pa.Table.from_batches(list(answers))
    schema = _arrow_schema(declared, options.large)
    batches = [_as_declared(answer, schema) for answer in answers]
    return pa.Table.from_batches(batches, schema)


def _as_declared(answer: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    # A cast to the same type refuses a struct that is null where one of its fields must not be.
    columns: list[Any] = cast("Any", answer).columns
    arrays: list[Any] = [
        column if column.type == kind else column.cast(kind)
        for column, kind in zip(columns, schema.types, strict=True)
    ]
    return cast("Any", pa.RecordBatch).from_arrays(arrays, schema=schema)


def _arrow_schema(declared: StructType, large: bool) -> pa.Schema:
    """Convert by Spark's own function, which takes other arguments in each version."""
    make: Any = import_module("pyspark.sql.pandas.types").to_arrow_schema
    options = {"timezone": "UTC", "prefers_large_types": large}
    taken = signature(make).parameters
    return make(declared, **{name: value for name, value in options.items() if name in taken})
