"""A request that is a whole: one group of rows, or the two sides of a cogroup.

It is neither cut nor joined with others, and may be answered with any number of rows. The two
sides go as one row with two lists, whose elements are their rows.
"""

from __future__ import annotations

from typing import Any, cast

import pyarrow as pa

_GROUP = b"shmring.group"
_ONE = b"1"


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
