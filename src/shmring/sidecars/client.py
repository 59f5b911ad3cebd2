"""The side that sends batches to a sidecar and gets the answers in order."""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa

import shmring
from shmring._shmring import slots_for
from shmring.arguments import seconds_of
from shmring.arrow.batches import BatchEncoder, Piece, decode_batch
from shmring.arrow.known import Known, learned
from shmring.choices import KIND_ARROW_STREAM
from shmring.closing import Closing
from shmring.errors import (
    Damaged,
    Empty,
    EndOfStream,
    Full,
    RingNotFound,
    SidecarError,
    SidecarUnavailable,
    TooManyLeases,
)
from shmring.sidecars.mailbox import Mailbox
from shmring.sidecars.participants import Watch, await_entry
from shmring.sidecars.sizes import LEAST, REPLY, REQUEST
from shmring.sidecars.wire import (
    FLAG_AGAIN,
    FLAG_ERROR,
    FLAG_LARGER,
    FLAG_LAST,
    HEAD_BYTES,
    KIND_REQUEST,
    Head,
    Task,
    check_sidecar_name,
    request_ring_name,
)

__all__ = ["Metrics", "SidecarClient"]

_LOG = logging.getLogger("shmring.sidecars")

# Liveness is asked of the kernel, a microsecond a participant: this is often enough.
_LOOK_EVERY = 0.25
_SAY_EVERY = 60.0  # while a call waits longer than that
# A wait is cut into slices of this length to look at the other direction.
_SLICE = 0.05
# Answers that Spark's workers may hold on to.
_KEPT = 3
# So many workers may die over one request before it is held to be the cause.
_DEATHS = 3


@dataclass(slots=True)
class Metrics:
    """What a client has done so far.

    ``retries`` counts requests that were made again, because a worker had died, the sidecar was
    started anew, or answers found no room. ``room_wait`` and ``answer_wait`` are seconds that the
    client waited, ``worked`` those that the sidecar's workers were at its requests.
    """

    requests: int = 0
    answers: int = 0
    rows: int = 0
    request_bytes: int = 0
    answer_bytes: int = 0
    room_wait: float = 0.0
    answer_wait: float = 0.0
    retries: int = 0
    worked: float = 0.0

    def add(self, other: Metrics) -> None:
        """Add another client's."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(slots=True)
class _Piece:
    message_id: int
    batch: pa.RecordBatch
    is_copy: bool  # and not in the ring

    def copy(self) -> bool:
        """Take it out of the ring; whether it was there."""
        if self.is_copy:
            return False
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.batch.schema) as stream:
            stream.write(self.batch)  # pyright: ignore[reportUnknownMemberType]
        self.batch = pa.ipc.open_stream(sink.getvalue()).read_next_batch()
        self.is_copy = True
        return True


@dataclass(slots=True)
class _Request:
    """A batch under way, kept until it is answered: the sidecar may have to be asked again."""

    number: int
    encoder: BatchEncoder
    piece: Piece
    sent: bool = False
    deaths: int = 0
    received: int = 0  # pieces, also those that only say that the worker lives
    pieces: list[_Piece] = field(default_factory=list[_Piece])
    complete: bool = False
    failure: str | None = None  # what the function has raised; the pieces come first

    def ask_again(self) -> None:
        self.sent = False
        self.received = 0
        self.pieces.clear()


class SidecarClient(Closing):
    """Sends record batches to a sidecar; answers come back in the order of the batches.

    The answers lie in the client's reply ring until they are collected; to a
    caller that keeps them they are given as copies, as soon as that shows. A
    request may be worked on more than once: after the death of a worker or a
    restart of the sidecar, and where answers find no room because the caller
    keeps what fills the reply ring.

    Parameters
    ----------
    name : of the sidecar
    in_flight : requests under way at most
    timeout : seconds without any answer after which a living sidecar is given up, also one whose
        workers are still loading, or which has no room for another client
    connect_timeout : seconds to wait for a sidecar that is not there (yet, or any more), and for
        memory for its answers
    reply_slots : size of the reply ring, in slots of 300 bytes; None is 4,096 (1.4 MB),
        and up to 65,536 for what is under way, or what leaves others room where /dev/shm has little
        memory, but enough for any row
    task : whose work this is; travels with every request

    Raises
    ------
    SidecarUnavailable : there is no sidecar of this name, or it has had no room for this client
    NoSpace : /dev/shm cannot hold the reply ring
    """

    def __init__(
        self,
        name: str,
        *,
        in_flight: int = 3,
        timeout: float = 300.0,
        connect_timeout: float = 10.0,
        reply_slots: int | None = None,
        task: Task | None = None,
    ) -> None:
        if in_flight < 1:
            raise ValueError(f"in_flight must be at least 1, not {in_flight}")
        check_sidecar_name(name)
        self.name = name
        self.metrics = Metrics()
        self._in_flight = in_flight
        self._timeout = seconds_of("timeout", timeout)
        self._connect_timeout = seconds_of("connect_timeout", connect_timeout)
        self._reply_slots = reply_slots
        self._task = task or Task()
        self._number = 0
        self._waiting: dict[int, _Request] = {}  # in the order of the batches
        self._mapping = False
        self._copy = False
        self._known: Known | None = None  # the schema of the last answer
        # Where the batches lay that the caller got last: it may still use those.
        self._recent: deque[int] = deque(maxlen=_KEPT)
        self._first = True
        self._largest = 0  # message that has come, or is to come again, in slots
        self._needed = LEAST  # slots of the reply ring, for an answer that did not fit
        self._wished = 0  # slots of the reply ring, for what is under way
        self._last_heard = self._last_look = self._last_said = time.monotonic()
        self._dead_since: float | None = None
        self._refusals = 0
        self._watch = Watch()
        self._requests, self._producer = await_entry(
            self.name, self._timeout, self._connect_timeout
        )
        try:
            self._mailbox = self._new_mailbox(REPLY.usual)
        except BaseException:
            self._requests.close()
            raise

    def map(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Send each batch and yield the answers, in order.

        A batch that is larger than half of the sidecar's ring is sent in slices.

        Raises
        ------
        SidecarError : the sidecar's function raised; the message has its traceback. What it
            answered before that has been yielded
        SidecarUnavailable : the sidecar has died and none has taken its place, it
            gave no sign for `timeout` seconds, or a request has killed every
            worker that took it
        MessageTooLarge : a single row does not fit the sidecar's ring
        """
        if self._mapping:
            raise RuntimeError("this client is in the middle of another map(); use a second client")
        self._mapping = True
        try:
            if self._mailbox.ring.closed:
                self._renew_mailbox()
            encoder: BatchEncoder | None = None
            for batch in batches:
                # The metadata may say that a batch is a group.
                if encoder is None or not batch.schema.equals(encoder.schema, check_metadata=True):
                    encoder = BatchEncoder(batch.schema)
                for piece in encoder.pieces(
                    batch,
                    self._requests.slots,
                    ring=self._requests.path,
                    prefix=HEAD_BYTES,
                    remedy=REQUEST.remedy,
                ):
                    while len(self._waiting) >= self._in_flight:
                        yield from self._next_answer()
                    self._send(encoder, piece)
                    while self._waiting and self._head().complete:
                        yield from self._next_answer()
            while self._waiting:
                yield from self._next_answer()
        finally:
            self._mapping = False
            if self._waiting:
                # The caller has had enough, or something failed: what is still to
                # come finds no ring.
                self._waiting.clear()
                self._mailbox.close()

    def _head(self) -> _Request:
        return next(iter(self._waiting.values()))

    def _send(self, encoder: BatchEncoder, piece: Piece) -> None:
        self._make_room()
        request = _Request(self._number, encoder, piece)
        batch, nbytes = piece
        self._wish(slots_for(HEAD_BYTES + nbytes, True))
        self._waiting[self._number] = request
        self._number += 1
        self.metrics.requests += 1
        self.metrics.rows += batch.num_rows
        self.metrics.request_bytes += HEAD_BYTES + nbytes
        self._last_heard = time.monotonic()
        while not request.sent:
            self._advance()

    def _next_answer(self) -> Iterator[pa.RecordBatch]:
        request = self._head()
        begun = self._last_heard = time.monotonic()
        while not request.complete:
            self._advance()
        self.metrics.answer_wait += time.monotonic() - begun
        del self._waiting[request.number]
        request.pieces.reverse()
        while request.pieces:  # pop: its slots are free as soon as the caller is done with it
            yield self._given(request.pieces.pop())
        if request.failure is not None:
            self._mailbox.close()  # a task that fails keeps no memory
            raise SidecarError(f'sidecar "{self.name}" raised:\n{request.failure}')

    def _given(self, piece: _Piece) -> pa.RecordBatch:
        if self._first:
            # Spark keeps the first batch of a stream until its end; in place, it
            # would stop the ring after one round.
            self._first = False
            piece.copy()
        elif not piece.is_copy:
            self._recent.append(piece.message_id)
        return piece.batch

    def _decode(self, lease: shmring.Lease) -> pa.RecordBatch:
        known, copy = self._known, self._copy
        batch = known and known.map(lease, KIND_ARROW_STREAM, skip=HEAD_BYTES, copy=copy)
        if batch is None:
            data = pa.py_buffer(bytes(lease.data) if copy else lease).slice(HEAD_BYTES)
            name = self._mailbox.name
            batch = decode_batch(data, None, ring=name, message_id=lease.message_id)
            self._known = learned(data)
        return batch

    def _advance(self) -> None:
        """Send what is to be sent and take what has arrived; wait a little for either."""
        wait = _SLICE
        if self._is_outgrown() and not self._is_awaited():
            self._renew_mailbox(self._wished)
        for request in self._waiting.values():
            if not request.sent and not self._is_outgrown():
                wait = 0.0
                if not self._push(request):
                    break
        if not self._collect(wait):
            self._look()

    def _push(self, request: _Request) -> bool:
        prefix = Head.of(request.number, self._mailbox.name, self._task).pack()
        push = partial(
            request.encoder.push, self._producer, *request.piece, prefix=prefix, kind=KIND_REQUEST
        )
        try:
            push(timeout=0)
        except Full:
            begun = time.monotonic()
            try:
                # The workers may be waiting for room among our answers.
                push(timeout=_SLICE)
            except Full:
                return False
            finally:
                self.metrics.room_wait += time.monotonic() - begun
        request.sent = True
        return True

    def _is_awaited(self) -> bool:
        """Whether answers are to come."""
        return any(request.sent and not request.complete for request in self._waiting.values())

    def _collect(self, timeout: float) -> bool:
        """Take what has arrived; wait for the first message only."""
        arrived = False
        while self._is_awaited():
            try:
                lease = self._mailbox.inbox.lease(timeout=0 if arrived else timeout)
            except (Empty, EndOfStream):  # an end marker is no answer
                break
            except TooManyLeases:  # the caller keeps many small ones here and there
                if not self._spill():
                    self._start_over()
                break
            arrived = True
            self._last_heard = time.monotonic()
            self._dead_since = None
            try:  # an answer that is refused is not to come again
                self._take(lease)
                self._largest = max(self._largest, slots_for(len(lease), True))
            finally:
                lease.release()
            if self._mailbox.room() < self._largest:
                self._spill()
        return arrived

    def _take(self, lease: shmring.Lease) -> None:
        head = Head.unpack(lease, ring=self._mailbox.name)
        request = self._waiting.get(head.number)
        if request is None or request.complete:
            return  # a second worker has done it again after the first one's death
        if head.flags & FLAG_AGAIN:
            self.metrics.retries += 1
            request.deaths += 1
            if request.deaths >= _DEATHS:
                raise SidecarUnavailable(
                    f'{_DEATHS} workers of sidecar "{self.name}" have died over the same batch of '
                    f"{request.piece[0].num_rows} rows; see what the sidecar says of their deaths"
                )
            return
        slots = head.batches
        is_small = self._reply_slots is None and slots > self._mailbox.ring.slots
        if head.flags & FLAG_LARGER and is_small:
            self.metrics.retries += 1
            request.ask_again()
            self._needed = max(self._needed, slots)
            self._largest = max(self._largest, slots // 2)
            self._wish(self._largest)
            return
        if head.flags & FLAG_ERROR:
            request.failure = bytes(lease.data[HEAD_BYTES:]).decode(errors="replace")
            request.complete = True
            return
        if head.piece == 0:  # begun again by another worker
            request.received = 0
            request.pieces.clear()
        if head.piece != request.received:
            raise Damaged(
                f'ring "{self._mailbox.name}": piece {head.piece} of answer {head.number} came '
                f"where piece {request.received} was due"
            )
        request.received += 1
        self.metrics.answers += 1
        self.metrics.answer_bytes += lease.data.nbytes
        self.metrics.worked += head.worked / 1e9
        if lease.data.nbytes > HEAD_BYTES:
            piece = _Piece(lease.message_id, self._decode(lease), self._copy)
            request.pieces.append(piece)
        request.complete = bool(head.flags & FLAG_LAST)

    # --- room for answers ---------------------------------------------------------------------

    def _spill(self) -> bool:
        """Copy what the caller does not have yet out of the ring; whether there was any."""
        spilled = False
        for request in self._waiting.values():
            for piece in request.pieces:
                spilled = piece.copy() or spilled
        return spilled

    def _make_room(self) -> None:
        """Take a new reply ring before the batches that the caller keeps fill the old one."""
        hold = self._mailbox.inbox.hold
        if hold is None or len(self._recent) < _KEPT or hold >= self._recent[0]:
            return
        if self._mailbox.is_half_full():
            self._copy = True
            while any(not request.complete for request in self._waiting.values()):
                self._advance()
            self._renew_mailbox()

    def _wish(self, slots: int) -> None:
        """Answers are taken to be as large as requests, until larger ones have come."""
        wish = max(self._needed, (self._in_flight + _KEPT) * max(slots, self._largest))
        if self._reply_slots is None and wish > self._mailbox.ring.slots:
            self._wished = max(self._needed, REPLY.fitting(wish))

    def _is_outgrown(self) -> bool:
        return self._wished > self._mailbox.ring.slots

    def _new_mailbox(self, wish: int) -> Mailbox:
        return Mailbox(
            self.name,
            self._reply_slots,
            least=self._needed,
            wish=wish,
            connect_timeout=self._connect_timeout,
        )

    def _renew_mailbox(self, wish: int = 0) -> None:
        self._spill()
        wish = max(wish, self._mailbox.ring.slots)
        self._mailbox.close()
        self._mailbox = self._new_mailbox(wish)
        self._wished = 0
        self._refusals = 0
        self._recent.clear()

    def _start_over(self) -> None:
        """Ask again, into a new reply ring: the caller keeps what fills the old one."""
        self._copy = True
        self._ask_again()

    def _ask_again(self) -> None:
        self._renew_mailbox()
        for request in self._waiting.values():
            if not request.complete:
                self.metrics.retries += request.sent
                request.ask_again()

    # --- is anybody there? --------------------------------------------------------------------

    def _look(self) -> None:
        """See to it that this wait has an end."""
        now = time.monotonic()
        elapsed = now - self._last_look
        if elapsed < _LOOK_EVERY:
            return
        self._last_look = now
        before, self._refusals = self._refusals, self._mailbox.refusals()
        # Refused just now, that is, and not while the caller was away.
        refused = self._refusals > before and elapsed < 2 * _LOOK_EVERY
        if refused and self._mailbox.is_half_full() and not self._spill():
            self._start_over()
        if self._watch.look(self._requests):
            self._dead_since = None
        else:
            self._miss(now)
        self._say(now)
        if self._dead_since is None and now - self._last_heard > self._timeout:
            raise SidecarUnavailable(
                f'sidecar "{self.name}" lives but has not answered process {os.getpid()} for '
                f"{self._timeout:g} s: {self._watch.describe(self._requests)}; give it more time "
                f"(timeout=...) or more workers"
            )

    def _miss(self, now: float) -> None:
        """Go to the sidecar that was started anew, or wait for one."""
        found = self._found()
        if found is None:
            self._mailbox.hide()
        if self._dead_since is None:
            self._dead_since = now
        elif found not in (None, self._requests.info.uuid):
            self._follow()
            self._ask_again()
            self._dead_since = now
        elif now - self._dead_since > self._connect_timeout:
            raise SidecarUnavailable(
                f'sidecar "{self.name}" has no living worker and no supervisor, and none came '
                f"within {self._connect_timeout:g} s (connect_timeout=...); {len(self._waiting)} "
                f"requests were under way; the log of what started it says why it ended"
            )

    def _say(self, now: float) -> None:
        """Log who works on what: the executor's log has what Spark's workers write to stderr."""
        waited = now - self._last_heard
        if waited >= _SAY_EVERY and now - self._last_said >= _SAY_EVERY:
            self._last_said = now
            workers = self._watch.describe(self._requests) or "it has no living worker"
            _LOG.warning('waited %.0f s for sidecar "%s": %s', waited, self.name, workers)

    def _found(self) -> str | None:
        """Which ring has the sidecar's name now."""
        try:
            with shmring.attach(request_ring_name(self.name), read_only=True) as ring:
                return ring.info.uuid
        except RingNotFound:
            return None

    def _follow(self) -> None:
        """Go to the ring that has the sidecar's name now."""
        requests, producer = await_entry(self.name, self._timeout, self._connect_timeout)
        self._requests.close()
        self._requests, self._producer = requests, producer

    def close(self) -> None:
        """Leave, and remove the reply ring; batches that are still alive stay valid."""
        self._waiting.clear()
        self._mailbox.close()
        self._requests.close()
        if self._dead_since is not None:  # nobody else may come to sweep
            shmring.gc(request_ring_name(self.name))
