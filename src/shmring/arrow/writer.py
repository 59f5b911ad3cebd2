"""Writing record batches into a ring, with one copy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import pyarrow as pa

from shmring.arrow.batches import ArrowData, BatchEncoder, batches_of, fields_of, most_bytes
from shmring.common.arguments import KIND_ARROW_STREAM
from shmring.common.closing import Closing
from shmring.errors import Full, MessageTooLarge, SchemaMismatch

if TYPE_CHECKING:
    from shmring.common.arguments import Wait
    from shmring.ring import Ring


class WriterOptions(TypedDict, total=False):
    """The options of :class:`ArrowWriter`, without the ring and the schema."""

    compression: Literal["lz4", "zstd"] | None
    wait: Wait
    name: str | None


class ArrowWriter(Closing):
    """Writes record batches into a ring.

    Parameters
    ----------
    schema : schema of the batches; None uses the ring's
    compression : "lz4", "zstd" or None; not for a schema with a union
    wait, name : as for :meth:`Ring.producer`

    Raises
    ------
    SchemaMismatch : the ring has another schema, or has none and `schema` is None
    ValueError : compression, and a schema with a union
    """

    def __init__(
        self,
        ring: Ring,
        schema: pa.Schema | None = None,
        *,
        compression: Literal["lz4", "zstd"] | None = None,
        wait: Wait = "default",
        name: str | None = None,
    ) -> None:
        self._ring = ring
        self._label = ring.name or ring.path
        stored = ring.schema
        wanted = schema if stored is None else stored
        if wanted is None:
            raise SchemaMismatch(
                f'ring "{self._label}" has no Arrow schema; give the writer one, or create the '
                f"ring with schema=..."
            )
        if schema is not None and not schema.equals(wanted):
            raise self._mismatch(schema, wanted)
        # Use the ring's schema if the ring has one: `schema` may have other metadata, because
        # equals() does not compare metadata.
        self.schema: pa.Schema = wanted
        self._encoder = BatchEncoder(self.schema, compression=compression)
        # If the ring has no schema, each message carries its own schema.
        self._kind = None if stored is not None else KIND_ARROW_STREAM
        self._producer = ring.producer(name, wait=wait)
        self._most = most_bytes(ring.slots)

    def _mismatch(self, given: pa.Schema, wanted: pa.Schema) -> SchemaMismatch:
        return SchemaMismatch(
            f'ring "{self._label}" holds batches of\n{wanted}\nbut these are of\n{given}\n'
            f"cast them, or use another ring"
        )

    def write(self, data: ArrowData, *, timeout: float | None = None) -> int:
        """Publish each record batch of `data` as one message.

        A batch that is larger than half of the ring is split by rows. A column is cast if it
        differs from the writer's schema only in the layout of strings and lists (string_view,
        large_string, large_list, as in polars and pandas).

        Parameters
        ----------
        data : RecordBatch, Table, or any object with ``__arrow_c_stream__`` or
            ``__arrow_c_array__`` (polars, DuckDB, pandas, nanoarrow)
        timeout : seconds to wait for room for each message; None waits for ever

        Returns
        -------
        message_id of the last message, -1 if there was no batch

        Raises
        ------
        Full : no room in time; batches that were published before stay published
        MessageTooLarge : one row alone can never fit; batches that were published before stay
            published
        SchemaMismatch : the data's schema is not the writer's
        """
        schema, batches = batches_of(data)
        cast = not schema.equals(self.schema)
        if cast and not _differ_in_layout_only(schema, self.schema):
            raise self._mismatch(schema, self.schema)
        message_id = -1
        try:
            for given in batches:
                batch = given.cast(self.schema) if cast else given
                for message_id in self._write(batch, timeout):  # noqa: B007
                    pass
        except Exception as error:
            if message_id < 0:
                raise
            stays = f"what was written before, up to message {message_id}, stays published"
            if isinstance(error, Full | MessageTooLarge):
                raise type(error)(f"{error}; {stays}") from error
            error.add_note(stays)  # e.g. an error of the program that makes the batches
            raise
        return message_id

    def _write(self, batch: pa.RecordBatch, timeout: float | None) -> Iterator[int]:
        """Publish the batch, in pieces if necessary; yield the message_id of each piece."""
        whole = self._encoder.push_within(
            self._most, self._producer, batch, kind=self._kind, timeout=timeout
        )
        if whole is not None:
            yield whole
            return
        for piece in self._encoder.pieces(batch, self._ring.slots, ring=self._label):
            yield self._encoder.push(self._producer, *piece, kind=self._kind, timeout=timeout)

    def end(self, *, timeout: float | None = None) -> None:
        """Publish an end marker: iteration ends there, in every reader of every branch."""
        self._producer.push_end(timeout=timeout)

    def close(self) -> None:
        """Close the writer's producer."""
        self._producer.close()


def _differ_in_layout_only(one: pa.Schema, other: pa.Schema) -> bool:
    """Return whether the schemas differ only in the layout of strings, bytes and lists."""

    def plain(schema: pa.Schema) -> pa.Schema:
        return pa.schema([f.with_type(_plain_type(f.type)) for f in fields_of(schema)])

    return plain(one).equals(plain(other))


def _plain_type(kind: Any) -> Any:
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([f.with_type(_plain_type(f.type)) for f in fields_of(kind)])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(kind.value_field.with_type(_plain_type(kind.value_type)))
    return kind
