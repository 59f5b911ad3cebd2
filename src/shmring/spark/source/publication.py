"""Bringing a job's staged rows into a ring."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from shmring._shmring import SLOT_BYTES, slots_for
from shmring.arrow.batches import BatchEncoder, has_dictionaries, metadata_bytes
from shmring.choices import KIND_ARROW_BATCH, KIND_ARROW_STREAM
from shmring.errors import MessageTooLarge

if TYPE_CHECKING:
    from shmring.ring import Producer, Ring
    from shmring.spark.source.options import WriteOptions

__all__ = ["Publication"]

_pa: Any = pa


class _Message(NamedTuple):
    data: pa.Buffer
    kind: int
    align: int | None

    @property
    def slots(self) -> int:
        return slots_for(self.data.size, self.align is not None)


class Publication:
    """Makes rows readable, all at once where they take at most half of the ring.

    The other half may be held by readers of what came before.

    Parameters
    ----------
    rows : gives the rows from the beginning each time it is called
    """

    def __init__(
        self, ring: Ring, options: WriteOptions, rows: Callable[[], Iterator[pa.RecordBatch]]
    ) -> None:
        self._ring = ring
        self._options = options
        self._rows = rows
        self._schema = ring.schema
        # Columns of more than 2 GiB would not make one batch.
        half = min(ring.slots // 2, 2**31 // SLOT_BYTES)
        self._room = 1 if ring.info.scattered else half

    @property
    def fits_at_once(self) -> bool:
        """Whether one claim can hold all of it."""
        return self._slots_at_once() <= self._room

    def _slots_at_once(self) -> int:
        if self._schema is None:
            return sum(slots_for(len(row)) for batch in self._rows() for row in _values(batch))
        # Padding and metadata of each batch are more than those of one that holds them all.
        nbytes = sum(pa.ipc.get_record_batch_size(batch) for batch in self._rows())
        return slots_for(nbytes, True)

    def publish_at_once(self, announce: Callable[[int], None] = lambda sequence: None) -> None:
        """Publish all rows by one store.

        Parameters
        ----------
        announce : is told the sequence of the claim before that

        Raises
        ------
        MessageTooLarge : they take more than half of the ring
        Full : no room in time
        """
        slots = self._slots_at_once()
        if slots > self._room:
            raise MessageTooLarge(
                f'ring "{self._options.ring}": these rows take {slots} slots and cannot become '
                f"readable at once in more than {self._room}, half of the ring; write fewer at a "
                f"time, or create the ring with more slots"
            )
        with self._ring.producer("spark write") as producer:
            if self._schema is None:
                self._publish_bytes(producer, list(self._values()), announce)
            else:
                batches = list(self._rows())
                table: Any = pa.Table.from_batches(batches, schema=self._schema)
                for batch in table.combine_chunks().to_batches():  # one, or none
                    self._publish(producer, self._encode(batch), announce)

    def publish_in_pieces(self) -> None:
        """Publish the rows message by message, while somebody reads.

        Raises
        ------
        Full : no room in time
        """
        with self._ring.producer("spark write") as producer:
            if self._schema is None:
                for row in self._values():
                    self._publish_bytes(producer, [row])
                return
            encoder = BatchEncoder(self._schema)
            for batch in self._rows():
                for piece, _ in encoder.pieces(batch, self._ring.slots, ring=self._options.ring):
                    self._publish(producer, self._encode(piece))

    def publish_end(self) -> None:
        with self._ring.producer("spark write") as producer:
            producer.push_end(timeout=self._options.timeout)

    def _values(self) -> Iterable[bytes]:
        return (row for batch in self._rows() for row in _values(batch))

    def _encode(self, batch: pa.RecordBatch) -> _Message:
        if has_dictionaries(batch.schema):  # a late reader has not seen earlier dictionaries
            sink = pa.BufferOutputStream()
            with _pa.ipc.new_stream(sink, batch.schema) as stream:
                stream.write_batch(batch)
            return _Message(sink.getvalue(), KIND_ARROW_STREAM, None)
        message = batch.serialize()
        return _Message(message, KIND_ARROW_BATCH, metadata_bytes(message))

    def _publish(
        self,
        producer: Producer,
        message: _Message,
        announce: Callable[[int], None] = lambda sequence: None,
    ) -> None:
        nbytes = message.data.size
        with producer.claim(nbytes, timeout=self._options.timeout, align=message.align) as claim:
            claim.buffer[:] = memoryview(message.data).cast("B")
            announce(claim.message_id)
            claim.commit(nbytes, kind=message.kind)

    def _publish_bytes(
        self,
        producer: Producer,
        rows: list[bytes],
        announce: Callable[[int], None] = lambda sequence: None,
    ) -> None:
        if not rows:
            return
        slots = [slots_for(len(row)) for row in rows]
        with producer.claim(sum(slots) * SLOT_BYTES, timeout=self._options.timeout) as claim:
            begin = 0
            for row, taken in zip(rows, slots, strict=True):
                claim.buffer[begin : begin + len(row)] = row
                begin += taken * SLOT_BYTES
            announce(claim.message_id)
            claim.commit_many([len(row) for row in rows])


def _values(batch: Any) -> list[bytes]:
    return batch.column(0).to_pylist()
