"""Moves the batches of Spark's Python workers over two rings; all else stays on the socket.

The other end is WorkerClient in Java; docs/spark-design.md shows which side waits for which. A
message begins with a head of 64 bytes: the stream (8 bytes), a number (8), the bytes of all parts
(8), flags (4), the number of row counts that follow (4), and a report (32). In a request the number
counts requests. In an answer the number says how many requests the function no longer needs; an
answer that refers to a request's columns refers to the first request that is still needed. A row
count (4 bytes) follows for each group of a request, or for each of the function's batches in an
answer; 4 more bytes follow if the number of row counts is odd. Then comes a batch as an IPC stream,
or a part of one.

The report of a worker's message is about the task so far: nanoseconds of work, of waits for input
and of waits for room (8 bytes each), the number of batches that Spark's own code has converted
although shmring has a conversion for them (4), and the reason why Spark's code has converted them
(4; 0 if there is none). A message that comes soon after an earlier report has zeros instead.
"""

from __future__ import annotations

import select
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import pyarrow as pa

import shmring
from shmring.arrow.batches import (
    BatchEncoder,
    Known,
    decode_batch,
    from_struct,
    learned,
    most_bytes,
)
from shmring.common.arguments import KIND_ARROW_STREAM
from shmring.errors import Empty, Full, ShmringError
from shmring.sidecars.batches import WORTH, Unchanged
from shmring.spark.parts import Joined, Part, Request, joined

if TYPE_CHECKING:
    from shmring import Lease, Ring

MAGIC = struct.pack(">I", 0x53484D52)  # announces rings; an Arrow stream begins with ff ff ff ff
# CHANGE: edit this for a new field of a worker's message
_VERSION = 1  # version of announcements and messages; the same number is in PythonRun.java
_STRUCT, _GIVES_STRUCT, _COGROUPS, _TOGETHER = 1, 2, 4, 8
_announcement = struct.Struct(">4sIqII")

# CHANGE: edit this for a new field of a worker's message
_head = struct.Struct("<QQQIIqQQII")
_head_without_report = struct.Struct("<QQQII32x")
_KIND = 16
_END, _BATCH, _REFERS, _PART, _GOES_ON, _RIGHT = 1, 2, 4, 8, 16, 32

# Reasons why Spark's own code converts batches, although shmring has a conversion for functions of
# their kind. FunctionTask.java has the text of each reason.
CODE, PANDAS, KIND, VALUE = 1, 2, 3, 4

# Seconds of one wait; between waits the worker checks that the task still runs.
_SLICE = 0.05

# Limits of the batches that a worker holds back: their number, their bytes, and the seconds since
# it last sent any. When one limit is reached, the worker sends the held batches as one answer.
_MOST_TOGETHER, _BYTES_TOGETHER, _SOON = 1024, 65_536, 0.01

# Least nanoseconds between two reports of a task: a report in each message of a small batch would
# take more than a hundredth of the worker's CPU. The last message of a task has a report anyway.
_REPORT_NS = 10_000_000

_pa: Any = pa  # typed as Any, because its stubs lack names


class _Rings:
    """The rings of this worker, which stay for its next tasks until it is idle for a while."""

    def __init__(self, paths: str) -> None:
        requests, answers = paths.split("\n")
        self.paths = paths
        self.requests: Ring = shmring.attach(path=Path(requests))
        self.answers: Ring = shmring.attach(path=Path(answers))
        self.consumer = self.requests.consumer("worker")
        self.producer = self.answers.producer("worker")
        # Unlink the files: no other process has to attach, and the kernel frees an unlinked file
        # when its last user has closed it.
        for ring in (self.requests, self.answers):
            ring.unlink()
        self.known: dict[int, Known | None] = {}  # schema of the last request, by side
        self.encoder: BatchEncoder | None = None  # encoder for the last answer's schema
        # Maximum bytes of a message: half of the ring, so that another message finds room.
        self.most = most_bytes(self.answers.slots) // 2

    def is_used(self) -> bool:
        """Whether the executor keeps the rings for its next tasks."""
        return any(each["name"] == "task" for each in self.requests.participants())

    def close(self) -> None:
        self.consumer.close()
        self.requests.close()
        self.producer.close()
        self.answers.close()


# CHANGE: edit this for a new kind of Python function
class Exchange:
    """The batches of one task, which Spark's serializers (serializers.py) read and write."""

    _kept: _Rings | None = None  # rings kept for the next task
    _current: int  # number of the stream of the task that this worker runs now, or ran last
    _taking = threading.Lock()  # guards _current: held to take a request, and to begin a task
    unconverted = 0  # why Spark's own code converts the next task's batches; 0 if shmring's does

    def __init__(self, socket: IO[bytes]) -> None:
        magic, version, self._stream, flags, length = _announcement.unpack(
            socket.read(_announcement.size)
        )
        assert magic == MAGIC
        Exchange._end_earlier_tasks(self._stream)
        if version != _VERSION:
            raise ShmringError(
                f"the driver's shmring tells Python workers of rings in version {version}, that of "
                f"the executors reads version {_VERSION}: install the same shmring for both"
            )
        paths = socket.read(length).decode()
        rings = Exchange._kept
        if rings is None or rings.paths != paths:
            Exchange._kept = None
            if rings is not None:
                rings.close()
            try:
                rings = Exchange._kept = _Rings(paths)
            except (OSError, MemoryError, ShmringError) as error:
                # PythonRun.java looks for this text, and sends the batches over the socket.
                raise ShmringError(f"a worker cannot attach to its rings: {error}") from error
        self._rings = rings
        self._is_struct = bool(flags & _STRUCT)
        self._gives_struct = bool(flags & _GIVES_STRUCT)
        self._frames = 2 if flags & _COGROUPS else 1  # frames that the function gets for a group
        self._is_grouped = False
        self._lookahead: Part | None = None  # first part of the next group, already received
        self._parts: tuple[deque[Part], deque[Part]] = (deque(), deque())  # parts received, by side
        self._side = 0  # side of the frame that the function reads next
        self._comes_together = bool(flags & _TOGETHER)
        self._held: list[Any] = []  # batches held back, to be sent together with later ones
        self._held_bytes = 0
        self._sent_at = 0.0  # time at which held batches were last sent
        # Guards _held: any thread that waits for a request may send the held batches.
        self._sending = threading.Lock()
        self._unchanged = Unchanged()
        self._left = 0  # number of requests that the function no longer needs
        # Guards _request: while a thread sends an answer that refers to a request's columns, no
        # other thread can mark this request as no longer needed.
        self._leaving = threading.Lock()
        self._said = 0  # value of _left in the last message to the task
        # Batch that the function works on, whose columns an answer may refer to. None if the batch
        # has several groups, or fewer bytes than WORTH: a search for unchanged columns then costs
        # more than it saves.
        self._request: pa.RecordBatch | None = None
        self._began = time.monotonic_ns()
        # nanoseconds that earlier tasks of this worker have waited for input
        self._waited_before = rings.consumer.waited_ns
        self._room_ns = 0  # nanoseconds that this task has waited for room in the ring of answers
        self._report_at = 0  # time from which the next message has a report
        self._why = self.unconverted
        self._converted = 0  # number of batches that Spark's own code has converted so far
        self._told = 0  # value of _converted in the last report
        self._poll = select.poll()
        # Poll for hang-up only: the socket always has unread bytes, the task's end marker.
        self._poll.register(socket.fileno(), select.POLLRDHUP)

    @classmethod
    def _end_earlier_tasks(cls, stream: int) -> None:
        cls._current = stream
        # Wait until no thread of an earlier task is taking a request. A thread that tries to take
        # another request finds the new _current, and ends.
        with cls._taking:
            pass

    @classmethod
    def rest(cls) -> bool:
        """Close the kept rings if the executor has closed them; return True if none are kept."""
        rings = cls._kept
        if rings is not None and not rings.is_used():
            cls._kept = None
            cls._end_earlier_tasks(0)
            rings.close()
        return cls._kept is None

    def _look(self) -> None:
        if self._poll.poll(0):
            raise EOFError("the task has ended")

    # --- requests ---------------------------------------------------------------------------

    def read(self, length: int) -> bytes:
        """Return the number of frames of the next group, as Spark reads it; 0 after the last."""
        self._is_grouped = True
        self._side = 0
        self._lookahead = self._part(0)
        return struct.pack("!i", 0 if self._lookahead is None else self._frames)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the task's batches; if the task has groups, only those of the next frame."""
        side = self._side
        self._side = (side + 1) % self._frames
        part, self._lookahead = self._lookahead, None
        if part is None:
            part = self._part(side)
        while part is not None:
            is_last = self._is_grouped and not part.goes_on
            yield self._wrapped(part.batch)
            if not part.joined:
                self._leave()
            part = None if is_last else self._part(side)

    def group(self) -> list[list[Part]] | None:
        """Return the parts of each side of the next group, or cogroup; None after the last."""
        first = self._frame(0)  # empty if there are no more groups
        return [first, *[self._frame(side) for side in range(1, self._frames)]] if first else None

    def _frame(self, side: int) -> list[Part]:
        parts: list[Part] = []
        while (not parts or parts[-1].goes_on) and (part := self._part(side)):
            parts.append(part)
            if not part.joined:
                self._leave()
        return parts

    def is_ready(self) -> bool:
        """Whether a request, or the end of the requests, has already arrived."""
        return all(self._parts[: self._frames]) or self._rings.consumer.lag > 0

    def _leave(self) -> None:
        """Mark the oldest request as no longer needed."""
        with self._leaving:
            self._request = None
            self._left += 1

    def _part(self, side: int) -> Part | None:
        parts = self._parts[side]
        while not parts:
            request = self._next()
            if request is None:
                return None
            begin = 0
            for index, rows in enumerate(request.rows or [0]):
                self._parts[request.side].append(Part(request, index, begin))
                begin += rows
            # Mark a request of several groups as no longer needed at once: no answer refers to its
            # columns. The task then sends another request. Otherwise the task and this worker could
            # wait for each other for ever: the worker may need rows of the other side of a cogroup
            # that come in a later request.
            if len(request.rows) > 1:
                self._leave()
        return parts.popleft()

    def _next(self) -> Request | None:
        if self._said < self._left and not self._held:
            self._push(partial(self._rings.producer.push, self._packed(0)))
        whole: Any = None  # buffer of a batch that comes in parts
        end = 0  # bytes of the parts that came
        while True:
            lease, total, flags, rows = self._lease()
            with lease:
                if flags & _END:
                    return None
                begins = _head.size + _rows_bytes(len(rows))
                if not flags & _PART and whole is None:
                    batch = self._decoded(lease, begins, flags & _RIGHT)
                    if len(lease) >= WORTH and len(rows) < 2:
                        self._request = batch
                    break
                if whole is None:
                    whole = _pa.allocate_buffer(total)
                begin, end = end, end + len(lease) - begins
                if end > total or (end < total) != bool(flags & _PART):
                    raise ShmringError(f"a batch in parts has {end} bytes, not {total}")
                memoryview(whole).cast("B")[begin:end] = memoryview(lease)[begins:]
            if not flags & _PART:
                batch = _decoded(whole)
                self._request = batch if len(rows) < 2 else None
                break
        return Request(batch, rows, bool(flags & _GOES_ON), int(bool(flags & _RIGHT)))

    def _lease(self) -> tuple[Lease, int, int, Sequence[int]]:
        """Take the task's next message; drop requests that an earlier task left unread."""
        while True:
            # CHANGE: edit this for a new error
            try:
                with Exchange._taking:
                    if self._stream != Exchange._current:
                        raise EOFError("the task has ended")
                    lease = self._rings.consumer.lease(timeout=0 if self._held else _SLICE)
            except Empty:
                if self._held:
                    self.flush()
                else:
                    self._look()
                continue
            try:
                stream, _, total, flags, groups, *_ = _head.unpack_from(memoryview(lease))
                if stream == self._stream:
                    rows = struct.unpack_from(f"<{groups}I", memoryview(lease), _head.size)
                    return lease, total, flags, rows
            except BaseException:
                lease.release()
                raise
            lease.release()

    def _decoded(self, lease: Lease, begin: int, side: int) -> pa.RecordBatch:
        """Copy a batch: a function may keep it, and the ring needs its slots again."""
        known = self._rings.known.get(side)
        batch = known and known.map(lease, KIND_ARROW_STREAM, skip=begin, copy=True)
        if batch is None:
            message = pa.py_buffer(bytes(memoryview(lease)[begin:]))
            batch = _decoded(message)
            self._rings.known[side] = learned(message)
        return batch

    def _wrapped(self, batch: Any) -> pa.RecordBatch:
        if not self._is_struct:
            return batch
        return _pa.RecordBatch.from_arrays([batch.to_struct_array()], ["struct"])

    # --- answers ----------------------------------------------------------------------------

    def answer(self, batch: Any) -> None:
        """Send a batch, or hold it back and send it together with later ones.

        Batches are held back because each message wakes the task up. Spark's own workers hold back
        up to 64 KB, too, without a limit of time. A batch that the function itself has made is sent
        at once, because the function may change it later; a batch that Spark has made from the
        function's values may be held back.
        """
        if not self._comes_together:
            self._answer(batch)
            return
        with self._sending:
            if isinstance(batch, Joined):
                self._send_held()
                self._answer_joined(batch)
                return
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
        """Send the held batches."""
        with self._sending:
            self._send_held()

    def _send_held(self) -> None:
        held, self._held, self._held_bytes = self._held, [], 0
        together = joined(held) if len(held) > 1 else None
        if together is not None:
            self._answer_joined(together)
        else:
            for batch in held:
                self._answer(batch)
        self._sent_at = time.monotonic()

    def _answer_joined(self, joined: Joined) -> None:
        """Send several answers as one message, or one by one if they are too large."""
        whole = self._unwrapped(joined.batch)
        if whole is None or self._push_batch(whole, _BATCH, joined.rows) is None:
            begin = 0
            for rows in joined.rows:
                self._answer(joined.batch.slice(begin, rows))
                begin += rows
        else:
            self._count(len(joined.rows))

    def _unwrapped(self, batch: Any) -> Any:
        """Return the columns inside a batch's only column; None if there are no columns."""
        if not self._gives_struct:
            return batch
        column = batch.column(0)
        if pa.types.is_null(column.type):  # the batch has no columns and no rows
            return None
        return from_struct(column)

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
        self._count(1)

    def _push_batch(self, batch: Any, flags: int, rows: Sequence[int] = ()) -> int | None:
        """Send a batch as one message; return None if it is not sent.

        A batch is not sent if it is too large for one message, or if it has a type that shmring's
        encoder cannot write. If `batch` is several batches joined, `rows` has their row counts.
        """
        rings = self._rings
        if rings.encoder is None or not batch.schema.equals(rings.encoder.schema, True):
            rings.encoder = BatchEncoder(batch.schema)
        head = self._packed(flags, together=len(rows))
        head += struct.pack(f"<{len(rows)}I", *rows).ljust(_rows_bytes(len(rows)), b"\0")
        push = partial(
            rings.encoder.push_within, rings.most, rings.producer, batch, prefix=head, kind=_KIND
        )
        return self._push(push)

    def _answer_in_parts(self, batch: pa.RecordBatch, flags: int) -> None:
        """Send a batch that _push_batch() has not sent, as bytes of pyarrow cut into messages."""
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

    # CHANGE: edit this for a new field of a worker's message
    def _packed(self, flags: int, total: int = 0, together: int = 0) -> bytes:
        self._said = self._left
        now = time.monotonic_ns()
        # Leave the report out if the last one is recent, unless Spark's own code has converted a
        # batch since: that must be told at once, because a LIMIT may end the task at any time.
        if now < self._report_at and self._converted == self._told and not flags & _END:
            return _head_without_report.pack(self._stream, self._left, total, flags, together)
        self._report_at = now + _REPORT_NS
        self._told = self._converted
        input_ns = self._rings.consumer.waited_ns - self._waited_before
        return _head.pack(
            self._stream,
            self._left,
            total,
            flags,
            together,
            # Nanoseconds of work: the task's time without its waits. The number is negative if
            # several threads wait at once, and the sum of their waits exceeds the task's time.
            now - self._began - input_ns - self._room_ns,
            input_ns,
            self._room_ns,
            self._converted,
            self._why,
        )

    def _push(self, push: Callable[..., int | None]) -> int | None:
        try:
            return push(timeout=0)
        except Full:
            begun = time.monotonic_ns()
        try:
            while True:
                self._look()
                with suppress(Full):
                    return push(timeout=_SLICE)
        finally:
            self._room_ns += time.monotonic_ns() - begun

    def left_to_spark(self) -> None:
        """Count a group that Spark's own code converts, because of the values in the group."""
        self._why, self._converted = VALUE, self._converted + 1

    def _count(self, batches: int) -> None:
        if self._why not in (0, VALUE):
            self._converted += batches

    def write(self, data: bytes) -> None:
        """Drop the bytes that Spark writes before the first answer: the task does not need them."""

    def end(self) -> None:
        """Say that there are no more answers."""
        self._push(partial(self._rings.producer.push, self._packed(_END)))


# Closes rings that the executor has closed; returns True if this worker has none left.
rest = Exchange.rest


def _rows_bytes(count: int) -> int:
    """Return the bytes of row counts, padded so that the batch begins at a multiple of 8."""
    return (count + 1) // 2 * 8


def _decoded(message: pa.Buffer) -> pa.RecordBatch:
    return decode_batch(message, None, ring="of a Python worker", message_id=0)


def expect(reason: int) -> None:
    """Note why Spark's own code will convert all batches of the next task; 0: it will not."""
    Exchange.unconverted = reason
