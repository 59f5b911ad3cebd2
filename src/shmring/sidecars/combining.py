"""What comes in several batches or arrays, as one."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import Any, TypeVar

import pyarrow as pa

Part = TypeVar("Part", bound=Sized)

_WITH_OFFSETS = frozenset(
    kind.id
    for kind in (
        *(pa.string(), pa.large_string(), pa.binary(), pa.large_binary()),
        *(pa.list_(pa.int8()), pa.large_list(pa.int8()), pa.map_(pa.int8(), pa.int8())),
    )
)


def combined(table: Any) -> Any:
    """The table with each column copied into as few arrays as hold it; one chunk at most is empty.

    What a function answers may have inner arrays of no rows without offsets, over which
    combine_chunks() crashes; written and read again they have some.
    """
    kinds = enumerate(table.schema.types)
    columns = [i for i, kind in kinds if any(map(_has_offsets, _inner(kind)))]
    if any(_lacks_offsets(chunk) for i in columns for chunk in table.column(i).chunks):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        table = pa.ipc.open_stream(sink.getvalue()).read_all()
    return table.combine_chunks()


def with_rows(parts: Sequence[Part]) -> Sequence[Part]:
    """Those that are to be put together: an empty one may lack what combine_chunks() looks at."""
    return [part for part in parts if len(part)] or parts[:1]


def _inner(kind: Any) -> list[Any]:
    if isinstance(kind, pa.BaseExtensionType):
        return _inner(kind.storage_type)
    fields: Any = kind
    if pa.types.is_struct(kind) or pa.types.is_union(kind):
        return [fields.field(i).type for i in range(fields.num_fields)]
    if pa.types.is_map(kind):
        return [kind.key_type, kind.item_type]
    return [kind.value_type] if kind.num_fields else []


def _has_offsets(kind: Any) -> bool:
    """Whether arrays of this type have offsets, or some within them."""
    if isinstance(kind, pa.BaseExtensionType):
        return _has_offsets(kind.storage_type)
    return kind.id in _WITH_OFFSETS or any(map(_has_offsets, _inner(kind)))


def _lacks_offsets(array: Any) -> bool:
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return _lacks_offsets(array.storage)
    if kind.id in _WITH_OFFSETS and len(array) == 0 and array.buffers()[1] is None:
        return True
    if pa.types.is_struct(kind) or pa.types.is_union(kind):
        return any(_lacks_offsets(array.field(i)) for i in range(kind.num_fields))
    return kind.num_fields > 0 and _lacks_offsets(array.values)


def joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """The rows of all batches, which have one schema, in one."""
    table = combined(pa.Table.from_batches(with_rows(batches)))
    parts = table.to_batches()
    if len(parts) != 1:  # none with a row, or more text than fits one column
        raise ValueError(f"{table.num_rows} rows make {len(parts)} batches")
    return parts[0]
