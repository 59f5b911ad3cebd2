"""A request that is a whole: one group of rows, or the two sides of a cogroup.

It is neither cut nor joined with others, and may be answered with any number of rows. The two
sides go as one row with two lists, whose elements are their rows.
"""

from __future__ import annotations

from typing import Any, cast

import pyarrow as pa

__all__ = ["arguments", "group_of", "is_group"]

_GROUP = b"shmring.group"
_ONE, _TWO = b"1", b"2"


def group_of(batch: pa.RecordBatch, right: pa.RecordBatch | None = None) -> pa.RecordBatch:
    """The request for a group, or for a cogroup."""
    if right is None:
        request, sides = batch, _ONE
    else:
        lists = [_as_list(batch), _as_list(right)]
        request, sides = pa.record_batch(lists, names=["left", "right"]), _TWO
    return request.replace_schema_metadata({**(batch.schema.metadata or {}), _GROUP: sides})


def is_group(request: pa.RecordBatch) -> bool:
    """Whether a request is such a one."""
    return _GROUP in (request.schema.metadata or {})


def arguments(request: pa.RecordBatch) -> tuple[pa.RecordBatch, ...]:
    """What the function is to be called with: any request as it is, a cogroup as its two sides."""
    metadata = dict(request.schema.metadata or {})
    sides = metadata.pop(_GROUP, None)
    if sides is None:
        return (request,)
    if sides == _ONE:
        return (request.replace_schema_metadata(metadata or None),)
    columns = cast("list[Any]", cast("Any", request).columns)
    batches = (pa.RecordBatch.from_struct_array(column.flatten()) for column in columns)
    return tuple(batch.replace_schema_metadata(metadata or None) for batch in batches)


def _as_list(batch: pa.RecordBatch) -> Any:
    lists: Any = pa.ListArray
    return lists.from_arrays(pa.array([0, batch.num_rows], pa.int32()), batch.to_struct_array())
