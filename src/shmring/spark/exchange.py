"""Batches of Spark's Python workers over two rings; all else that they say stays on the socket.

The other end is WorkerClient in Java; docs/spark-design.md draws who waits for whom. A message
begins with a head of 32 bytes: the stream (8 bytes), a number (8), the bytes of all parts (8),
flags (4), and of an answer how many batches are put together in it (4). Of a request, the number is
its own. Of an answer, it says how many requests the function has left behind; an answer that refers
to columns of a request means the next one. The rows of each of several batches follow (4 each, and
4 more if their number is odd); then a batch as an IPC stream, or a part of one.
"""

from __future__ import annotations

import os
import select
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import pyarrow as pa
import pyspark.sql.pandas.serializers as serializers

import shmring
from shmring.arguments import KIND_ARROW_STREAM
from shmring.arrow.batches import BatchEncoder, Known, decode_batch, learned, most_bytes
from shmring.errors import Empty, Full, ShmringError
from shmring.sidecars.batches import WORTH, Unchanged
from shmring.spark.conversions import leave_out_of_errors

if TYPE_CHECKING:
    from shmring import Lease, Ring

_MAGIC = struct.pack(">I", 0x53484D52)  # an Arrow stream begins with ff ff ff ff
_VERSION = 1
_STRUCT, _GIVES_STRUCT, _COGROUPS, _TOGETHER = 1, 2, 4, 8
_announcement = struct.Struct(">4sIqII")

_head = struct.Struct("<QQQII")
_KIND = 16
_END, _BATCH, _REFERS, _PART, _GOES_ON, _RIGHT = 1, 2, 4, 8, 16, 32

# A wait is cut into slices of so many seconds, to look whether the task is still there.
_SLICE = 0.05

# A batch goes with those before it if these are fewer, have fewer bytes, and wait no longer.
_MOST_TOGETHER, _BYTES_TOGETHER, _SOON = 1024, 65_536, 0.01

# What stubs leave out, or open.
_pa: Any = pa
_spark: Any = serializers

_serializer = _spark.ArrowStreamSerializer
_load, _dump = _serializer.load_stream, _serializer.dump_stream


class _Rings:
    """The rings of this worker, which stay for its next tasks."""

    def __init__(self, paths: str) -> None:
        requests, answers = paths.split("\n")
        self.paths = paths
        self.requests: Ring = shmring.attach(path=Path(requests))
        self.answers: Ring = shmring.attach(path=Path(answers))
        self.consumer = self.requests.consumer("worker")
        self.producer = self.answers.producer("worker")
        for ring in (self.requests, self.answers):  # nobody else is to attach, or has to clean up
            ring.unlink()
        self.known: dict[int, Known | None] = {}  # the schema of each side's last request
        self.encoder: BatchEncoder | None = None  # for that of the last answer
        # Of a message: another finds room beside it.
        self.most = most_bytes(self.answers.slots) // 2

    def close(self) -> None:
        self.consumer.close()
        self.requests.close()
        self.producer.close()
        self.answers.close()


# CHANGE: a new kind of Python function
class _Exchange:
    """The batches of one task: to Spark's serializers, the stream that they read."""

    _kept: _Rings | None = None  # for the next task
    _current: int  # the stream of the last task
    _taking = threading.Lock()  # by whoever takes a request

    def __init__(self, socket: IO[bytes]) -> None:
        magic, version, self._stream, flags, length = _announcement.unpack(
            socket.read(_announcement.size)
        )
        assert magic == _MAGIC
        _Exchange._current = self._stream
        with _Exchange._taking:  # a thread that an earlier task has left waits for requests no more
            pass
        if version != _VERSION:
            raise ShmringError(
                f"the driver's shmring tells Python workers of rings in version {version}, that of "
                f"the executors reads version {_VERSION}: install the same shmring for both"
            )
        paths = socket.read(length).decode()
        rings = _Exchange._kept
        if rings is None or rings.paths != paths:
            _Exchange._kept = None
            if rings is not None:
                rings.close()
            rings = _Exchange._kept = _Rings(paths)
        self._rings = rings
        self._is_struct = bool(flags & _STRUCT)
        self._gives_struct = bool(flags & _GIVES_STRUCT)
        self._frames = 2 if flags & _COGROUPS else 1  # of a group
        self._is_grouped = False
        self._first: pa.RecordBatch | None = None  # of the next group, which has been looked for
        self._flags = 0  # of the last request
        self._comes_together = bool(flags & _TOGETHER)
        self._held: list[Any] = []  # batches that are sent with the next ones
        self._held_bytes = 0
        self._sent_at = 0.0  # when none was held
        self._sending = threading.Lock()  # by whoever sends what is held: any thread that reads
        self._unchanged = Unchanged()
        self._left = 0  # requests that the function has left behind
        # An answer that refers to a request goes before any thread leaves that request behind.
        self._leaving = threading.Lock()
        self._said = 0  # those that the task knows of
        self._request: pa.RecordBatch | None = None  # that the function is at, if that is worth it
        self._poll = select.poll()
        # The end of what the task says is there already, so readable it is.
        self._poll.register(socket.fileno(), select.POLLRDHUP)

    def _look(self) -> None:
        if self._poll.poll(0):
            raise EOFError("the task has ended")

    # --- requests ---------------------------------------------------------------------------

    def read(self, length: int) -> bytes:
        """Of how many frames the next group is, as Spark asks; none: there is no other."""
        self._is_grouped = True
        self._first = self._next()
        return struct.pack("!i", 0 if self._first is None else self._frames)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """What Spark's socket would give: of groups the next frame, to be read to its end."""
        batch, self._first = self._first, None
        if batch is None:
            batch = self._next()
        while batch is not None:
            is_last = self._is_grouped and not self._flags & _GOES_ON
            yield batch
            batch = None
            with self._leaving:
                self._request = None
                self._left += 1
            if not is_last:
                batch = self._next()

    def _next(self) -> pa.RecordBatch | None:
        if self._said < self._left and not self._held:
            self._push(partial(self._rings.producer.push, self._packed(0)))
        whole: Any = None  # of a batch in parts
        end = 0  # of those that came
        while True:
            lease, total, flags = self._lease()
            if flags & _END:
                lease.release()
                return None
            self._flags = flags
            if not flags & _PART and whole is None:
                batch = self._decoded(lease)
                if len(lease) >= WORTH:
                    self._request = batch
                lease.release()
                return self._wrapped(batch)
            if whole is None:
                whole = _pa.allocate_buffer(total)
            begin, end = end, end + len(lease) - _head.size
            if end > total or (end < total) != bool(flags & _PART):
                raise ShmringError(f"a batch in parts has {end} bytes, not {total}")
            memoryview(whole).cast("B")[begin:end] = memoryview(lease)[_head.size :]
            lease.release()
            if not flags & _PART:
                self._request = _decoded(whole)
                return self._wrapped(self._request)

    def _lease(self) -> tuple[Lease, int, int]:
        """The next message of this task: requests that another one left unread are dropped."""
        while True:
            try:
                with _Exchange._taking:
                    if self._stream != _Exchange._current:
                        raise EOFError("the task has ended")
                    lease = self._rings.consumer.lease(timeout=0 if self._held else _SLICE)
            except Empty:
                if self._held:
                    self.flush()
                else:
                    self._look()
                continue
            stream, _, total, flags, _ = _head.unpack_from(memoryview(lease))
            if stream == self._stream:
                return lease, total, flags
            lease.release()

    def _decoded(self, lease: Lease) -> pa.RecordBatch:
        """A copy: a function may keep its batches, and the ring has to go on."""
        side = self._flags & _RIGHT
        known = self._rings.known.get(side)
        batch = known and known.map(lease, KIND_ARROW_STREAM, skip=_head.size, copy=True)
        if batch is None:
            message = pa.py_buffer(bytes(memoryview(lease)[_head.size :]))
            batch = _decoded(message)
            self._rings.known[side] = learned(message)
        return batch

    def _wrapped(self, batch: Any) -> pa.RecordBatch:
        if not self._is_struct:
            return batch
        return _pa.RecordBatch.from_arrays([batch.to_struct_array()], ["struct"])

    # --- answers ----------------------------------------------------------------------------

    def answer(self, batch: Any) -> None:
        """Send a batch; one that Spark has made of values goes with those that follow soon.

        Each message wakes the task up. Spark's own workers hold 64 KB back, however long it takes.
        What a function has made itself may change once it goes on.
        """
        if not self._comes_together:
            self._answer(batch)
            return
        with self._sending:
            held = self._held
            size = batch.get_total_buffer_size()
            if held and (
                self._held_bytes + size > _BYTES_TOGETHER
                or not batch.schema.equals(held[0].schema, True)
            ):
                self._send_held()
            self._held.append(batch)
            self._held_bytes += size
            if (
                self._held_bytes > _BYTES_TOGETHER
                or len(self._held) == _MOST_TOGETHER
                or time.monotonic() - self._sent_at > _SOON
            ):
                self._send_held()

    def flush(self) -> None:
        """Send what is held back."""
        with self._sending:
            self._send_held()

    def _send_held(self) -> None:
        held, self._held, self._held_bytes = self._held, [], 0
        if len(held) < 2 or not self._answer_together(held):
            for batch in held:
                self._answer(batch)
        self._sent_at = time.monotonic()

    def _answer_together(self, batches: list[Any]) -> bool:
        """Send several batches as one, if their columns may be."""
        first = batches[0]
        try:
            columns = [
                _pa.concat_arrays([batch.column(i) for batch in batches])
                for i in range(first.num_columns)
            ]
        except pa.ArrowException:
            return False
        whole = self._unwrapped(_pa.RecordBatch.from_arrays(columns, schema=first.schema))
        rows = [batch.num_rows for batch in batches]
        return whole is not None and self._push_batch(whole, _BATCH, rows) is not None

    def _unwrapped(self, batch: Any) -> Any:
        """The columns of a batch that has one for all; None: there are none."""
        if not self._gives_struct:
            return batch
        column = batch.column(0)
        if pa.types.is_null(column.type):  # what Spark makes of no columns and no rows
            return None
        # Of a slice, pyarrow 22 and earlier give the whole columns.
        return _pa.RecordBatch.from_struct_array(column).slice(0, batch.num_rows)

    def _answer(self, batch: Any) -> None:
        batch = self._unwrapped(batch)
        if batch is None:
            return
        with self._leaving:
            request, flags = self._request, _BATCH
            if request is not None and batch.num_rows == request.num_rows:
                own = self._unchanged.without(request, batch)
                if own is not None:
                    batch, flags = own, _BATCH | _REFERS
            if self._push_batch(batch, flags) is None:
                self._answer_in_parts(batch, flags)

    def _push_batch(self, batch: Any, flags: int, rows: Sequence[int] = ()) -> int | None:
        """Send a batch, which may be several of so many `rows`, as one message.

        None: it is too large, or of a type that pyarrow writes.
        """
        rings = self._rings
        if rings.encoder is None or not batch.schema.equals(rings.encoder.schema, True):
            rings.encoder = BatchEncoder(batch.schema)
        head = self._packed(flags, together=len(rows))
        head += struct.pack(f"<{len(rows)}I{len(rows) % 2 * 4}x", *rows)
        push = partial(
            rings.encoder.push_within, rings.most, rings.producer, batch, prefix=head, kind=_KIND
        )
        return self._push(push)

    def _answer_in_parts(self, batch: pa.RecordBatch, flags: int) -> None:
        """Send a batch that is too large for a message, or of a type that pyarrow writes."""
        sink = pa.BufferOutputStream()
        with _pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        data = memoryview(sink.getvalue())
        size = self._rings.most - _head.size
        for first in range(0, len(data), size):
            last = first + size >= len(data)
            head = self._packed(flags if last else flags | _PART, len(data))
            message = b"".join((head, data[first : first + size]))
            self._push(partial(self._rings.producer.push, message))

    def _packed(self, flags: int, total: int = 0, together: int = 0) -> bytes:
        self._said = self._left
        return _head.pack(self._stream, self._left, total, flags, together)

    def _push(self, push: Callable[..., int | None]) -> int | None:
        while True:
            try:
                return push(timeout=_SLICE)
            except Full:
                self._look()

    def write(self, data: bytes) -> None:
        """Leave out what Spark says before the first answer: the task knows that."""

    def end(self) -> None:
        """Say that there are no more answers."""
        self._push(partial(self._rings.producer.push, self._packed(_END)))


def _decoded(message: pa.Buffer) -> pa.RecordBatch:
    return decode_batch(message, None, ring="of a Python worker", message_id=0)


def _announced(load: Any) -> Any:
    """Let a serializer take and give batches over rings, if the stream announces some."""

    def load_stream(self: Any, stream: Any) -> Any:
        if hasattr(stream, "peek") and stream.peek(1)[:1] == _MAGIC[:1]:
            stream = _Exchange(stream)
            self.dump_stream = partial(_answer, self, stream)
        return load(self, stream)

    return load_stream


def _answer(serializer: Any, exchange: _Exchange, iterator: Any, stream: IO[bytes]) -> None:
    del serializer.dump_stream  # that of its class answers
    _spark.write_int(_spark.SpecialLengths.START_ARROW_STREAM, stream)
    stream.flush()
    serializer.dump_stream(iterator, exchange)
    exchange.end()


def _load_stream(self: Any, stream: Any) -> Iterator[pa.RecordBatch]:
    return stream.batches() if isinstance(stream, _Exchange) else _load(self, stream)


def _dump_stream(self: Any, iterator: Iterable[pa.RecordBatch], stream: Any) -> None:
    if not isinstance(stream, _Exchange):
        _dump(self, iterator, stream)
        return
    try:
        for batch in iterator:
            stream.answer(batch)
            del batch
    finally:
        stream.flush()


# CHANGE: a new version of Spark
@cache
def equip() -> None:
    """Let this process take and give batches over rings, where a task announces some."""
    if os.environ.get("SPARK_SIMPLIFIED_TRACEBACK"):
        leave_out_of_errors(_answer, _dump_stream)
    _serializer.load_stream = _load_stream
    _serializer.dump_stream = _dump_stream
    named: Mapping[str, Any] = vars(serializers)
    for each in named.values():
        # Before 4.3 each kind of function has its own, which reads late: when answers are due.
        if _serializer in getattr(each, "__mro__", ()) and "load_stream" in vars(each):
            each.load_stream = _announced(each.load_stream)
