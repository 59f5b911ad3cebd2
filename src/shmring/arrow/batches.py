"""Record batches as messages: encoding them, cutting them, mapping them back.

A message holds either one IPC record batch message, whose schema is in the ring's header
(``KIND_ARROW_BATCH``), or a short IPC stream of its own: schema, dictionaries, batch
(``KIND_ARROW_STREAM``). The second form is used if the ring has no schema, and for every batch that
pyarrow writes, because pyarrow can write into given memory only as a stream. pyarrow writes
batches with views, unions, run-end encoding or dictionaries, and compressed batches; the binding
(``native/python/arrow.c`` and ``batch.c``) writes all other batches. Each message repeats the
dictionaries, because a reader that joins late has not seen earlier messages.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, cast

import numpy as np
import pyarrow as pa

from shmring._shmring import SLOT_BYTES, arrow_layout, map_batch, push_batch
from shmring.common.arguments import KIND_ARROW_BATCH, KIND_ARROW_STREAM
from shmring.errors import Damaged, MessageTooLarge

if TYPE_CHECKING:
    from shmring._shmring import ArrowLayout, Lease
    from shmring.ring import Producer

# Maximum bytes of a message: its length is a 32-bit number.
_MOST_BYTES = 2**32 - 1

# pyarrow as Any: its type stubs leave the types of arrays open, which strict checking refuses.
_pa: Any = pa
# RecordBatch._import_from_c as Any: pyarrow's type stubs lack it.
_import_batch: Any = pa.RecordBatch._import_from_c  # pyright: ignore[reportAttributeAccessIssue]

# Object with the Arrow PyCapsule interface.
ArrowData: TypeAlias = Any
# A batch and its size in bytes of IPC.
Piece: TypeAlias = "tuple[pa.RecordBatch, int]"


class BatchEncoder:
    """Writes record batches of one schema into a producer's claims.

    Compressed batches, and batches with dictionaries, are copied twice.
    """

    def __init__(
        self, schema: pa.Schema, *, compression: Literal["lz4", "zstd"] | None = None
    ) -> None:
        self.schema = schema
        self._schema_message = schema.serialize().to_pybytes()
        self._dictionaries = _contains(schema, pa.types.is_dictionary)
        self._views = any(_is_view(field.type) for field in fields_of(schema))
        if compression is not None and _contains(schema, pa.types.is_union):
            raise ValueError(
                f"compression={compression!r} and a union do not go together: pyarrow ends the "
                "process where it compresses a slice of one; write without compression"
            )
        self._plain = compression is None and not self._dictionaries
        self._layout = arrow_layout(schema) if self._plain else None
        self._options = pa.ipc.IpcWriteOptions(compression=compression)

    def pieces(
        self,
        batch: pa.RecordBatch,
        slots: int,
        *,
        ring: str,
        prefix: int = 0,
        remedy: str = "create the ring with at least {slots} slots",
    ) -> Iterable[Piece]:
        """Cut the batch by rows into pieces, two of which fit into a ring at once.

        So a reader can hold one piece while the next one is written.

        Parameters
        ----------
        slots, ring : slots and name of the ring; the name is for the text of an error
        prefix : number of bytes before the IPC messages
        remedy : advice in the error about a row that is too large; {slots} stands for the slots
            that the row needs

        Raises
        ------
        MessageTooLarge : a single row is larger than a piece may be
        """
        if batch.num_rows == 0 and prefix + _stream_bytes(batch) > most_bytes(slots):
            batch = _empty(batch.schema)
        overhead = prefix + self._repeated_bytes(batch)
        limit = most_bytes(slots) - overhead

        def too_large(nbytes: int) -> MessageTooLarge:
            wanted = slots
            while most_bytes(wanted) < nbytes + overhead:
                wanted *= 2
            error = MessageTooLarge(
                f'ring "{ring}" of {slots} slots: one row needs {nbytes} bytes, a message may have '
                f"{max(limit, 0)}; {remedy.format(slots=wanted)}"
            )
            error.slots = wanted
            return error

        if self._views:
            batch = _compacted(batch, tight=False)
        return _split_rows(batch, limit, too_large, self._views)

    def _repeated_bytes(self, batch: pa.RecordBatch) -> int:
        """Count the bytes that every piece repeats: the schema, and any dictionaries."""
        if not self._dictionaries:
            return len(self._schema_message)
        empty = batch.slice(0, 0)
        # Subtract the batch message: pyarrow 22 to 26 write into it all offsets of the whole batch,
        # even for an empty slice, and the pieces do not repeat them.
        return _stream_bytes(empty) - pa.ipc.get_record_batch_size(empty)

    def push(
        self,
        producer: Producer,
        batch: pa.RecordBatch,
        nbytes: int,
        *,
        prefix: bytes = b"",
        kind: int | None = None,
        timeout: float | None = None,
    ) -> int:
        """Publish one batch as one message; return the message_id.

        Parameters
        ----------
        batch, nbytes : as :meth:`pieces` yields them
        prefix : bytes to write before the IPC messages
        kind : kind of the message, if the message is to contain its own schema. None if the ring's
            header has the schema: the message then gets one of the two Arrow kinds
        timeout : seconds to wait for free slots; None waits for ever

        Raises
        ------
        Full : no room in time; nothing was published
        MessageTooLarge : the batch can never fit this ring
        """
        message_id = self.push_within(
            _MOST_BYTES, producer, batch, prefix=prefix, kind=kind, timeout=timeout
        )
        if message_id is not None:
            return message_id
        kind = KIND_ARROW_STREAM if kind is None else kind
        if self._plain:
            return self._push_mapped(producer, batch, nbytes, prefix, kind, timeout)
        return self._push_general(producer, batch, prefix, kind, timeout)

    def push_within(
        self,
        most: int,
        producer: Producer,
        batch: pa.RecordBatch,
        *,
        prefix: bytes = b"",
        kind: int | None = None,
        timeout: float | None = None,
    ) -> int | None:
        """Publish one batch as :meth:`push` does, but only if the binding can copy its buffers.

        Return None if the message would have more than `most` bytes, or if only pyarrow can write
        the batch.
        """
        if self._layout is None:
            return None
        if kind is None:
            kind = KIND_ARROW_BATCH
        else:
            prefix += self._schema_message
        return push_batch(producer, self._layout, prefix, kind, most, batch, timeout)

    def _push_mapped(
        self,
        producer: Producer,
        batch: pa.RecordBatch,
        nbytes: int,
        prefix: bytes,
        kind: int,
        timeout: float | None,
    ) -> int:
        """Let pyarrow write directly into the ring."""
        head = len(prefix) + len(self._schema_message)
        first_row = batch.slice(0, 1).serialize()
        with producer.claim(
            head + nbytes, timeout=timeout, align=head + metadata_bytes(first_row)
        ) as claim:
            claim.buffer[: len(prefix)] = prefix
            sink = pa.FixedSizeBufferWriter(pa.py_buffer(claim.buffer[len(prefix) :]))
            _pa.ipc.new_stream(sink, self.schema).write_batch(batch)
            claim.commit(len(prefix) + sink.tell(), kind=kind)
            return claim.message_id

    def _push_general(
        self,
        producer: Producer,
        batch: pa.RecordBatch,
        prefix: bytes,
        kind: int,
        timeout: float | None,
    ) -> int:
        sink = pa.BufferOutputStream()
        _pa.ipc.new_stream(sink, self.schema, options=self._options).write_batch(batch)
        message = sink.getvalue()
        nbytes = len(prefix) + message.size
        align = len(prefix) + _body_offset(message)
        with producer.claim(nbytes, timeout=timeout, align=align) as claim:
            claim.buffer[: len(prefix)] = prefix
            claim.buffer[len(prefix) :] = memoryview(message).cast("B")
            claim.commit(nbytes, kind=kind)
            return claim.message_id


def _stream_bytes(batch: pa.RecordBatch) -> int:
    """Count the bytes of an IPC stream of one batch.

    The count comes from a trial run of the writer, not from the batch's nbytes: pyarrow crashes
    when it computes nbytes of a map within another column that has no rows and no offsets.
    """
    sink = pa.MockOutputStream()
    _pa.ipc.new_stream(sink, batch.schema).write_batch(batch)
    return sink.size()


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    """Make a batch of no rows, without the buffers that an empty slice shares with other rows."""
    columns = [_pa.nulls(0, field.type) for field in fields_of(schema)]
    return _pa.RecordBatch.from_arrays(columns, schema=schema)


# Length of the metadata, after the four bytes that mark an encapsulated message.
_METADATA_LENGTH = struct.Struct("<4xI")


def metadata_bytes(message: pa.Buffer) -> int:
    """Count the bytes of an encapsulated IPC message before its body."""
    return 8 + _METADATA_LENGTH.unpack_from(message)[0]


def _body_offset(stream: pa.Buffer) -> int:
    """Return the offset of the last message's body in an IPC stream, which ends with this body."""
    *_, last = pa.ipc.MessageReader.open_stream(stream)
    return stream.size - (0 if last.body is None else last.body.size)


def fields_of(nested: pa.Schema | pa.DataType) -> list[Any]:
    if isinstance(nested, pa.Schema):
        return list(nested)
    return [cast("Any", nested).field(i) for i in range(nested.num_fields)]


def _contains(nested: pa.Schema | pa.DataType, test: Callable[[Any], bool]) -> bool:
    def inside(kind: Any) -> bool:
        if test(kind):
            return True
        if isinstance(kind, pa.BaseExtensionType):
            return inside(kind.storage_type)
        if pa.types.is_dictionary(kind):
            return inside(kind.value_type)
        return _contains(kind, test)

    return any(inside(field.type) for field in fields_of(nested))


def has_views(schema: pa.Schema) -> bool:
    return _contains(schema, _is_view)


def decode_batch(
    message: pa.Buffer, schema: pa.Schema | None, *, ring: str, message_id: int
) -> pa.RecordBatch:
    """Map a record batch over the bytes of a message; raise Damaged if they are no Arrow data.

    If the message holds only the batch, `schema` is the batch's schema; None: the message is a
    stream, which begins with its schema.
    """
    try:
        if schema is not None:
            return pa.ipc.read_record_batch(message, schema)
        with pa.ipc.open_stream(message) as stream:
            return stream.read_next_batch()
    except (pa.ArrowException, OSError, EOFError, StopIteration) as error:
        raise Damaged(
            f'ring "{ring}": message {message_id} holds no readable Arrow batch: {error}'
        ) from error


class Known(NamedTuple):
    """A schema that a reader has seen and whose messages the binding maps, not pyarrow."""

    schema: pa.Schema
    layout: ArrowLayout
    heads: dict[int, bytes]  # by kind of message: the bytes before the record batch

    def map(
        self,
        lease: Lease,
        kind: int,
        *,
        skip: int = 0,
        copy: bool = False,
        every_offset: bool = False,
    ) -> pa.RecordBatch | None:
        """Map a message of this schema; None if it has another schema, or is damaged.

        Parameters
        ----------
        kind : KIND_ARROW_BATCH or KIND_ARROW_STREAM: the form of the data after the skipped bytes
        skip : bytes before the Arrow data
        copy : whether to map a copy of the message
        every_offset : whether to check every offset, in a copy of the offsets
        """
        head = self.heads.get(kind)
        if head is None:
            return None
        return map_batch(
            lease, self.layout, skip, head, copy, every_offset, _import_batch, self.schema
        )


def known(schema: pa.Schema, heads: dict[int, bytes]) -> Known | None:
    """Prepare the binding to map messages of a schema; None if only pyarrow can map them."""
    native = pa.schema(list(schema))
    if not schema.equals(native):  # big-endian data is left to pyarrow, which swaps the bytes
        return None
    layout = arrow_layout(schema)
    return None if layout is None else Known(schema, layout, heads)


def learned(stream: pa.Buffer) -> Known | None:
    """Prepare the binding to map messages of the schema with which an IPC stream begins.

    The schema is copied first, because producers could change the message while it is read.
    """
    return _learned(bytes(memoryview(stream)[: metadata_bytes(stream)]))


@lru_cache(maxsize=16)  # more than one, because producers with different schemas may take turns
def _learned(head: bytes) -> Known | None:
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(head))
    except (pa.ArrowException, OSError, EOFError):
        return None  # another producer has overwritten the message
    return known(schema, {KIND_ARROW_STREAM: head})


def from_struct(array: Any) -> pa.RecordBatch:
    # Slice again: pyarrow 22 and earlier give whole columns if the array is a slice from row 0.
    return pa.RecordBatch.from_struct_array(array).slice(0, len(array))


def batches_of(data: ArrowData) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Return the schema and the record batches of any Arrow data."""
    if isinstance(data, pa.RecordBatch):
        return data.schema, iter((data,))
    if isinstance(data, pa.Table):
        return data.schema, iter(data.to_batches())
    try:
        if hasattr(data, "__arrow_c_stream__"):
            reader = pa.RecordBatchReader.from_stream(data)
            return reader.schema, iter(reader)
        if hasattr(data, "__arrow_c_array__"):
            array = _pa.array(data)  # pa.record_batch() does not accept a slice of a struct
            if not pa.types.is_struct(array.type) or array.null_count:
                raise pa.ArrowInvalid(f"{array.type}, with {array.null_count} nulls")
            batch = from_struct(array)
            return batch.schema, iter((batch,))
    except pa.ArrowInvalid as error:  # the stream is a single column, not a batch
        raise TypeError(f"{type(data).__name__} is no record batch or table: {error}") from error
    raise TypeError(
        f"expected Arrow data (a RecordBatch, a Table, or an object with __arrow_c_stream__ "
        f"or __arrow_c_array__), not {type(data).__name__}"
    )


# CHANGE: edit this for a new option of a ring
def most_bytes(slots: int) -> int:
    """Return the maximum bytes of a message so that two such messages always fit in the ring.

    A message may take one slot more if it does not begin at the start of its first slot.
    """
    return (slots // 2 - 1) * SLOT_BYTES


def _split_rows(
    batch: pa.RecordBatch,
    limit: int,
    too_large: Callable[[int], MessageTooLarge],
    views: bool,
) -> Iterator[Piece]:
    """Cut the batch into slices of at most `limit` bytes of IPC; copy its views if necessary."""
    nbytes = pa.ipc.get_record_batch_size(batch)
    if views and nbytes > limit:
        batch = _compacted(batch, tight=True)
        nbytes = pa.ipc.get_record_batch_size(batch)
    if nbytes <= limit:
        yield batch, nbytes
    elif batch.num_rows <= 1:
        raise too_large(nbytes)
    else:
        middle = batch.num_rows // 2
        for part in (batch.slice(0, middle), batch.slice(middle)):
            yield from _split_rows(part, limit, too_large, views)


# Without `tight`, a column of views is copied only if its buffers have more than
# 2 * (used bytes) + _SMALL bytes: otherwise a copy saves too little.
_SMALL = 4096


def _compacted(batch: pa.RecordBatch, *, tight: bool) -> pa.RecordBatch:
    """Copy the columns of views without their unused values.

    Without `tight` a column is only copied if most of its values are unused. IPC leaves out the
    values of other rows by itself, but not the values of views: a slice of ten rows would carry the
    strings of the whole frame. Views within lists and structs keep their unused values.
    """
    columns = [_compact(batch.column(i), tight) for i in range(batch.num_columns)]
    return _pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _is_view(kind: Any) -> bool:
    return kind in (pa.string_view(), pa.binary_view())


def _pays(used: int, there: int, tight: bool) -> bool:
    return there > (used if tight else 2 * used + _SMALL)


def _used_bytes(array: Any) -> int:
    """Sum up the bytes that the views refer to; bytes shared by two views count twice."""
    end = array.offset + len(array)
    views = np.frombuffer(array.buffers()[1], np.int32, 4 * end).reshape(-1, 4)
    lengths = views[array.offset :, 0].astype(np.int64)
    if array.null_count:
        lengths = lengths[array.is_valid().to_numpy(zero_copy_only=False)]
    return int(lengths[lengths > _VIEW_BYTES].sum())


# Length up to which a string is stored within its view.
_VIEW_BYTES = 12


def _compact(array: Any, tight: bool) -> Any:
    kind = array.type
    if not _is_view(kind):
        return array
    # A view column that pyarrow has cast from short strings has None as its data buffer.
    there = sum(buffer.size for buffer in array.buffers()[2:] if buffer is not None)
    if not _pays(0, there, tight) or not _pays(_used_bytes(array), there, tight):
        return array
    return array.cast(
        pa.large_string() if pa.types.is_string_view(kind) else pa.large_binary()
    ).cast(kind)
