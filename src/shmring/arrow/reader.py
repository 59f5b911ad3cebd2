"""Reading record batches in place in a ring."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import pyarrow as pa

from shmring._shmring import check_ends, ends_of, give_up
from shmring.arrow.batches import Known, decode_batch, known, learned
from shmring.common.arguments import DEFAULT_START, KIND_ARROW_BATCH, KIND_ARROW_STREAM, seconds_of
from shmring.common.closing import Closing
from shmring.errors import Damaged, Empty, EndOfStream, TooManyLeases

if TYPE_CHECKING:
    from shmring._shmring import Lease
    from shmring.common.arguments import Start, Wait
    from shmring.ring import Consumer, Ring

# Seconds between two checks for a jam while the reader waits (see _Jam).
_SLICE = 0.5
# Number of jammed slices in a row after which the reader raises. The first jammed slice proves
# nothing: another thread may be about to drop the batches that fill the ring.
_JAMMED_SLICES = 3
# Number of batches that a task of an event loop reads before other tasks have their turn.
_STREAK = 16


class ReaderOptions(TypedDict, total=False):
    """The options of :class:`ArrowReader`, without the ring and the branch."""

    copy: bool
    until: Literal["end", "empty"]
    timeout: float | None
    validate: bool
    start: Start | int
    exclusive: bool
    ephemeral: bool
    after: str | Iterable[str]
    wait: Wait


class _Jam:
    """Detects a jam: a reader waits for a batch, and producers wait for room.

    The reader's own batches fill the ring, so neither wait would end.
    """

    def __init__(self, ring: Ring, label: str, consumer: Consumer) -> None:
        self._ring = ring
        self._label = label
        self._consumer = consumer
        # Lowest sequence that the reader held at the last check, and how often producers had found
        # no room until then; None if the reader did not hold the ring's oldest message.
        self._before: tuple[int, int] | None = None
        self._slices = 0

    def look(self) -> None:
        """Check for a jam. The reader calls this after each slice of waiting.

        Raise TooManyLeases if in each of _JAMMED_SLICES slices in a row, producers found no room,
        and the reader kept the ring's oldest message.
        """
        hold = self._consumer.hold
        # No jam exists if the reader holds no batch, or if another branch or participant holds an
        # older message.
        if hold is None or self._ring.floor < hold:
            self._before = None
            return
        before, self._before = self._before, (hold, self._refusals())
        stuck = before is not None and before[0] == hold and before[1] < self._before[1]
        self._slices = self._slices + 1 if stuck else 0
        if self._slices == _JAMMED_SLICES:
            raise TooManyLeases(
                f'ring "{self._label}": this reader keeps batches since sequence {hold}, which '
                f"fill the ring, and its producers wait for room; drop them earlier, or read "
                f"with copy=True"
            )

    def _refusals(self) -> int:
        return sum(s["full_waits"] for s in self._ring.participants() if s["role"] == "producer")


class _Batches(AsyncIterator[pa.RecordBatch]):
    """Iterates over a reader's batches in an event loop."""

    def __init__(self, following: Callable[[], Awaitable[pa.RecordBatch]]) -> None:
        self._following = following

    async def __anext__(self) -> pa.RecordBatch:
        try:
            return await self._following()
        except EndOfStream:
            raise StopAsyncIteration from None


class ArrowReader(Closing):
    """Reads record batches from a branch of a ring.

    The batches point into the ring. A batch holds its slots, and all slots after them, until the
    last Arrow buffer of the batch is collected. Batches may be collected in any order. Use
    ``copy=True`` to keep batches. A reader that waits for a batch raises TooManyLeases if the
    batches that it keeps fill the ring.

    Parameters
    ----------
    branch : name of the branch to join
    copy : always copy the batches out and release their slots at once
    until : "end": iterate up to the end marker; "empty": iterate until there are no more batches
        at that moment
    timeout : seconds that iteration waits for a batch before it raises Empty
    validate : check every offset in the batch, and use copies of the offsets. Use this for rings
        whose producers might crash your process. It costs a pass over the data. Values and
        bitmaps stay in the ring, where such a producer may still change them; with
        copy=True everything is a copy
    start, exclusive, ephemeral, after, wait : as for :meth:`Ring.consumer`
    """

    def __init__(
        self,
        ring: Ring,
        branch: str,
        *,
        copy: bool = False,
        until: Literal["end", "empty"] = "end",
        timeout: float | None = None,
        validate: bool = False,
        start: Start | int = DEFAULT_START,
        exclusive: bool = False,
        ephemeral: bool = False,
        after: str | Iterable[str] = (),
        wait: Wait = "default",
    ) -> None:
        if until not in ("end", "empty"):
            raise ValueError(f"until must be 'end' or 'empty', not {until!r}")
        self._ring = ring
        self._label = ring.name or ring.path
        self._stored: pa.Schema | None = ring.schema  # schema in the ring's header
        self._schema = self._stored
        self._copy = copy
        self._until = until
        self._timeout = None if timeout is None else seconds_of("timeout", timeout)
        self._validate = validate
        self._known: Known | None = None
        if self._stored is not None:
            heads = {KIND_ARROW_BATCH: b"", KIND_ARROW_STREAM: ring.schema_bytes or b""}
            self._known = known(self._stored, heads)
        self._peeked: pa.RecordBatch | None = None
        self._streak = 0
        self._consumer: Consumer = ring.consumer(
            branch,
            start=start,
            exclusive=exclusive,
            ephemeral=ephemeral,
            after=after,
            wait=wait,
        )

    @property
    def schema(self) -> pa.Schema:
        """Schema of the batches; waits for the first batch if the ring has no schema."""
        if self._schema is None:
            self._peeked = self.read(timeout=self._timeout)
            self._schema = self._peeked.schema
        return self._schema

    def read(self, *, timeout: float | None = None) -> pa.RecordBatch:
        """Return the next batch.

        Parameters
        ----------
        timeout : seconds; None waits for ever, 0 does not wait

        Raises
        ------
        Empty : no batch came in time
        EndOfStream : the producer has marked the end
        Damaged : the message is not a readable Arrow batch; the reader has skipped it
        TooManyLeases : the batches that this reader keeps fill the ring
        """
        return self._read(ends_of(self._consumer), timeout)

    def _read(self, ends: int, timeout: float | None) -> pa.RecordBatch:
        """Read a batch, as read() does.

        `ends` is the number of ends of the stream that the consumer had seen when the call or loop
        began. If another thread has seen one since, the call raises EndOfStream.
        """
        if self._peeked is not None:
            batch, self._peeked = self._peeked, None
            return batch
        found = self._open(self._lease(ends, timeout))
        if isinstance(found, str):
            raise Damaged(found)
        return found

    def _open(self, lease: Lease) -> pa.RecordBatch | str:
        """Return the batch, or an error's text: an exception's traceback would hold the slots."""
        # The end of the block releases the lease; its slots are free when no buffer of the batch
        # is left. An error that leaves the block, such as Ctrl-C, hands the message back.
        with lease:
            try:
                batch = self._map(lease)
                if batch is None:
                    batch = self._decode(lease)
                if self._validate:
                    batch.validate(full=True)
            except Damaged as error:
                return str(error)
            except pa.ArrowException as error:
                return f'ring "{self._label}": message {lease.message_id} is damaged: {error}'
        return batch

    def _map(self, lease: Lease) -> pa.RecordBatch | None:
        """Map the message by the binding; None if the binding leaves the message to pyarrow."""
        if self._known is None:
            return None
        return self._known.map(lease, lease.kind, copy=self._copy, every_offset=self._validate)

    def _decode(self, lease: Lease) -> pa.RecordBatch:
        """Decode a batch of this ring by pyarrow, which reads every format, or raise Damaged."""
        kind = lease.kind
        message_id = lease.message_id
        if kind != KIND_ARROW_STREAM and (kind != KIND_ARROW_BATCH or self._stored is None):
            raise Damaged(
                f'ring "{self._label}": message {message_id} is not an Arrow batch (kind {kind})'
            )
        message = pa.py_buffer(bytes(lease.data) if self._copy or self._validate else lease)
        schema = self._stored if kind == KIND_ARROW_BATCH else None
        batch = decode_batch(message, schema, ring=self._label, message_id=message_id)
        if self._stored is None:
            self._known = learned(message)
            if self._schema is None:
                self._schema = batch.schema
        elif schema is None and not batch.schema.equals(self._stored):
            raise Damaged(
                f'ring "{self._label}": message {message_id} holds a batch of\n{batch.schema}\nbut '
                f"the ring is for\n{self._stored}"
            )
        return batch

    def _lease(self, ends: int, timeout: float | None) -> Lease:
        """Lease the next message; wait in slices, to check for a jam between them (see _Jam)."""
        left = None if timeout is None else seconds_of("timeout", timeout)
        deadline: float | None = None
        jam: _Jam | None = None
        while True:
            last = left is not None and left <= _SLICE
            check_ends(self._consumer, ends)
            try:
                return self._consumer.lease(timeout=left if last else _SLICE)
            except Empty:
                if last and deadline is None:
                    raise
            if last:
                give_up(self._consumer, timeout)  # Empty names the whole timeout, not a slice
            if timeout is not None:
                now = time.monotonic()
                deadline = now + timeout - _SLICE if deadline is None else deadline
                left = max(deadline - now, 0)
            jam = jam or _Jam(self._ring, self._label, self._consumer)
            jam.look()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self._batches(ends_of(self._consumer))

    def _batches(self, ends: int) -> Iterator[pa.RecordBatch]:
        while True:
            # CHANGE: edit this for a new error
            try:
                yield self._read(ends, 0 if self._until == "empty" else self._timeout)
            except EndOfStream:
                return
            except Empty:
                if self._until == "empty":
                    return
                raise

    def aiter(self) -> AsyncIterator[pa.RecordBatch]:
        """Iterate in an event loop: ``async for batch in reader.aiter()``.

        The iteration ends as it does without an event loop. A task that is cancelled while it waits
        has taken no batch.
        """
        return _Batches(partial(self._next_batch, ends_of(self._consumer)))

    async def _next_batch(self, ends: int) -> pa.RecordBatch:
        import asyncio

        timeout = 0 if self._until == "empty" else self._timeout
        deadline = None if timeout is None else time.monotonic() + timeout
        jam: _Jam | None = None
        self._streak += 1
        if self._streak % _STREAK == 0:
            await asyncio.sleep(0)
        while True:
            try:
                return self._read(ends, 0)
            except Empty:
                if self._until == "empty":
                    raise EndOfStream(f'ring "{self._label}" has no more batches now') from None
            left = None if deadline is None else max(deadline - time.monotonic(), 0)
            if left == 0:
                give_up(self._consumer, timeout)
            in_time = await self._consumer.ready(
                timeout=_SLICE if left is None else min(left, _SLICE)
            )
            if not in_time:
                jam = jam or _Jam(self._ring, self._label, self._consumer)
                jam.look()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Export the batches up to the end as an Arrow stream of copies, which may be kept."""
        self._copy = True
        reader: Any = pa.RecordBatchReader.from_batches(self.schema, iter(self))
        return reader.__arrow_c_stream__(requested_schema)

    def close(self) -> None:
        """Leave the branch; batches that are still alive stay valid."""
        self._consumer.close()
