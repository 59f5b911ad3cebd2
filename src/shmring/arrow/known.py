"""Schemas that a reader has seen: the binding maps their messages, pyarrow decodes all others."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from shmring._shmring import arrow_layout, map_batch
from shmring.arguments import KIND_ARROW_STREAM
from shmring.arrow.batches import metadata_bytes

if TYPE_CHECKING:
    from shmring._shmring import ArrowLayout, Lease

# The stubs leave it out.
_import_batch: Any = pa.RecordBatch._import_from_c  # pyright: ignore[reportAttributeAccessIssue]


class Known(NamedTuple):
    """A schema whose messages the binding maps."""

    schema: pa.Schema
    layout: ArrowLayout
    heads: dict[int, bytes]  # of each kind: what stands before the batch

    def map(
        self,
        lease: Lease,
        kind: int,
        *,
        skip: int = 0,
        copy: bool = False,
        every_offset: bool = False,
    ) -> pa.RecordBatch | None:
        """Map a message of this schema; None if it is of another one, or damaged.

        Parameters
        ----------
        kind : of the message, if its Arrow data stood alone
        skip : bytes before these
        copy : map a copy of the message
        every_offset : check each of them, in a copy
        """
        head = self.heads.get(kind)
        if head is None:
            return None
        return map_batch(
            lease, self.layout, skip, head, copy, every_offset, _import_batch, self.schema
        )


def known(schema: pa.Schema, heads: dict[int, bytes]) -> Known | None:
    """Prepare a schema for the binding; None if pyarrow decodes its messages."""
    native = pa.schema(list(schema))
    if not schema.equals(native):  # big-endian numbers: pyarrow swaps their bytes
        return None
    layout = arrow_layout(schema)
    return None if layout is None else Known(schema, layout, heads)


def learned(stream: pa.Buffer) -> Known | None:
    """Learn from the schema at a stream's beginning, in a copy that its producer cannot change."""
    return _learned(bytes(memoryview(stream)[: metadata_bytes(stream)]))


@lru_cache(maxsize=16)  # more than one: several producers may take turns
def _learned(head: bytes) -> Known | None:
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(head))
    except (pa.ArrowException, OSError, EOFError):
        return None  # another producer has written over it
    return known(schema, {KIND_ARROW_STREAM: head})
