"""Groups and cogroups of Spark's through a sidecar, in Spark's Python workers."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from shmring.errors import MessageTooLarge
from shmring.sidecars import Metrics
from shmring.sidecars.groups import group_of

if TYPE_CHECKING:
    from shmring.sidecars import SidecarClient
    from shmring.spark.functions.bridge import Through

__all__ = ["Groups", "as_batch"]


class Groups:
    """A task's groups, a request each.

    Spark calls a function once a group, and does not say when the last one was. The client leaves
    when nobody holds this any more: Spark drops a task's function with the task.
    """

    def __init__(self, run: Through) -> None:
        self._client: SidecarClient = run.connect()
        self._metrics = run.metrics
        weakref.finalize(self, self._client.close)

    def answers(self, sides: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """What the sidecar's function makes of a group, or of the two sides of a cogroup.

        Raises
        ------
        MessageTooLarge : they do not fit one request
        """
        try:
            yield from self._client.map((group_of(*sides),), whole=True)
        except MessageTooLarge as error:
            rows = " and ".join(str(side.num_rows) for side in sides)
            raise MessageTooLarge(
                f"a group of {rows} rows must fit one request, for it is not cut: {error}"
            ) from None
        finally:
            if self._metrics is not None:
                self._metrics.add(self._client.metrics)
                self._client.metrics = Metrics()


def as_batch(table: pa.Table) -> pa.RecordBatch:
    """All rows of a table, of which there may be none."""
    parts = table.combine_chunks().to_batches()
    if len(parts) > 1:  # a column's texts are more than 32-bit offsets can tell
        raise MessageTooLarge(
            f"a group of {table.num_rows} rows with {table.nbytes} bytes does not fit one request"
        )
    if parts:
        return parts[0]
    empty: Any = [pa.array([], kind) for kind in table.schema.types]
    return pa.record_batch(empty, schema=table.schema)
