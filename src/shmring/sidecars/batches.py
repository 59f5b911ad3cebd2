"""Slices and joins batches of requests and answers, and finds columns that are unchanged."""

from __future__ import annotations

import json
from collections.abc import Sequence, Sized
from typing import Any, TypeVar

import pyarrow as pa

from shmring._shmring import same_columns
from shmring.arrow.batches import has_views

# Maximum nanoseconds that a worker should work on one request: batches_wanted() allows as many
# batches as take this time. A slow function then gets its batches one by one, and any idle worker
# can take the next batch.
_WORK = 2_000_000
# Maximum number of batches that batches_wanted() allows in a request: with so many batches, the
# fixed cost of a request is small beside the cost of its batches.
_MOST_BATCHES = 64
# Bytes of answers that go together: batches_wanted() aims at requests whose answers have this
# number of bytes in total, and together() joins successive answers until they reach this number.
MOST_BYTES = 1 << 20
# Maximum bytes of the answer to a batch if _MOST_BATCHES such answers are to stay within
# MOST_BYTES.
SMALL = MOST_BYTES // _MOST_BATCHES


def slices(batch: pa.RecordBatch, rows: int) -> list[pa.RecordBatch]:
    """Cut a request's batch into slices of `rows` rows for the function; 0 means all rows."""
    if not 0 < rows < batch.num_rows:
        return [batch]
    return [batch.slice(first, rows) for first in range(0, batch.num_rows, rows)]


def batches_wanted(batches: int, nanoseconds: int, nbytes: int) -> int:
    """Return how many batches the next request should have, judged by the last request.

    The last request had `batches` batches, the worker took `nanoseconds` for them, and the answers
    had `nbytes` bytes.
    """
    by_time = _WORK * batches // max(1, nanoseconds)
    by_bytes = MOST_BYTES * batches // max(1, nbytes)
    return max(1, min(by_time, by_bytes, _MOST_BATCHES))


def as_one(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Join batches of one schema to one batch, or return them all if they cannot be joined."""
    if len(batches) < 2 or not batches[0].num_columns:
        return batches
    try:
        return [joined(batches)]
    except (ValueError, pa.ArrowException):  # there are no rows, or pyarrow cannot join the types
        return batches


# --- joining batches ------------------------------------------------------------------------------

Part = TypeVar("Part", bound=Sized)

# CHANGE: edit this for a new type between Spark and Arrow
_WITH_OFFSETS = frozenset(
    kind.id
    for kind in (
        *(pa.string(), pa.large_string(), pa.binary(), pa.large_binary()),
        *(pa.list_(pa.int8()), pa.large_list(pa.int8()), pa.map_(pa.int8(), pa.int8())),
    )
)


def combined(table: Any) -> Any:
    """Copy each column of a table into as few arrays as possible.

    A function's result may have empty inner arrays without offsets, and combine_chunks() crashes on
    these arrays. A table with such an array is first written to a buffer and read again, which adds
    the offsets. The caller passes at most one chunk without rows: see with_rows().
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
    """Return the parts that have rows, or one part if none has rows.

    Empty parts may lack the offsets that combine_chunks() needs.
    """
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
    """Whether arrays of this type, or arrays inside them, have offsets."""
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
    """Join batches of one schema to one batch; raise ValueError if that is impossible."""
    table = combined(pa.Table.from_batches(with_rows(batches)))
    parts = table.to_batches()
    # Without rows, to_batches() returns no batch. If one array cannot hold all texts of a column,
    # to_batches() returns several batches.
    if len(parts) != 1:
        raise ValueError(f"{table.num_rows} rows make {len(parts)} batches")
    return parts[0]


# --- columns that a function passes on ------------------------------------------------------------


_UNCHANGED = b"shmring.unchanged"

# Requests with fewer bytes are answered with all columns, because copying the unchanged columns of
# a small request costs less than looking for them.
WORTH = 65_536


class Unchanged:
    """Finds the columns that a function returns unchanged.

    The metadata made for one answer is kept for the next answer, because successive requests of one
    client mostly have the same schema, and their answers too.
    """

    def __init__(self) -> None:
        none = pa.schema([])
        self._seen: tuple[pa.Schema, pa.Schema, list[int]] = none, none, []
        self._own: list[int] | None = None  # places of the changed columns; None if all are changed
        self._metadata: dict[bytes, bytes] = {}

    def without(self, request: pa.RecordBatch, answer: pa.RecordBatch) -> pa.RecordBatch | None:
        """Return the answer without its unchanged columns; None if it is to be sent whole.

        The metadata of the returned batch list all columns of the answer: an unchanged column with
        its name and its place in the request, a changed column as null.
        """
        # same_columns() exports the answer. pyarrow 18 to 22 crash when they export a column of
        # type string_view or binary_view that was cast to this type.
        if answer.schema != self._seen[1] and has_views(answer.schema):
            return None
        seen = request.schema, answer.schema, same_columns(answer, request)
        if seen != self._seen:
            self._learn(*seen)
            self._seen = seen
        if self._own is None:
            return None
        return answer.select(self._own).replace_schema_metadata(self._metadata)

    def _learn(self, request: pa.Schema, answer: pa.Schema, places: list[int]) -> None:
        types = request.types
        listed = [
            (name, place) if place >= 0 and kind == types[place] else None
            for name, kind, place in zip(answer.names, answer.types, places, strict=True)
        ]
        own = [place for place, column in enumerate(listed) if column is None]
        self._own = own if len(own) < len(listed) else None
        self._metadata = {_UNCHANGED: json.dumps(listed).encode()}
