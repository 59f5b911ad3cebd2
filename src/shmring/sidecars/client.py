"""The client of a sidecar: sends batches, and returns the answers in order."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa

import shmring
from shmring.arrow.batches import BatchEncoder, Known, Piece, decode_batch, learned
from shmring.common.arguments import (
    KIND_ARROW_STREAM,
    MOST_IN_FLIGHT,
    integer,
    seconds_of,
    slots_of,
)
from shmring.common.closing import Closing
from shmring.common.words import counted
from shmring.errors import (
    Damaged,
    Empty,
    EndOfStream,
    Full,
    SidecarError,
    SidecarUnavailable,
)
from shmring.sidecars.rings import REPLY, REQUEST, await_entry, is_replaced, lives, state
from shmring.sidecars.wire import (
    FLAG_AGAIN,
    FLAG_ERROR,
    FLAG_LAST,
    HEAD_BYTES,
    KIND_REQUEST,
    Head,
    check_sidecar_name,
    reply_ring_name,
    request_ring_name,
)

# Seconds between checks that the sidecar lives; a check takes a microsecond for each participant.
_LOOK_EVERY = 0.25
# Seconds of one wait; between waits a client takes answers, and checks that the sidecar lives.
_SLICE = 0.05
# Number of workers' deaths over one request after which the request counts as the cause, and the
# client gives the request up.
_DEATHS = 3


@dataclass(slots=True)
class _Request:
    """A batch whose answer is not complete or not yielded yet."""

    number: int
    encoder: BatchEncoder
    piece: Piece  # the batch, kept because it may have to be sent again
    sent: bool = False
    deaths: int = 0
    received: int = 0  # number of pieces that have come; a sign of life is a piece, too
    batches: list[pa.RecordBatch] = field(default_factory=list[pa.RecordBatch])
    complete: bool = False
    failure: str | None = None  # the function's error, raised after the batches are yielded

    def begin(self) -> None:
        """Drop the pieces that have come: the answer begins again."""
        self.received = 0
        self.batches.clear()


# CHANGE: edit this for a new option of a client
class SidecarClient(Closing):
    """Sends record batches to a sidecar; answers come back in the order of the batches.

    The answers are copies, and the caller may keep them. A request may be worked on more than once
    if a worker dies. If the sidecar ends and another one of its name is started within
    `connect_timeout`, the client sends the unanswered requests to the new sidecar.

    Parameters
    ----------
    name : name of the sidecar
    in_flight : most requests under way
    timeout : seconds without any answer after which the client gives up a living sidecar; the
        same limit holds while its workers load, and while it has no room for another client
    connect_timeout : seconds to wait for a sidecar that does not run (yet, or any more), and for
        memory for its answers
    reply_slots : size of the ring for the answers, in slots of 300 bytes; None is 4,096 (1.4 MB),
        or fewer if /dev/shm has little memory. A row must fit into half of the ring

    Raises
    ------
    SidecarUnavailable : there is no sidecar of this name, or it has had no room for this client
    NoSpace : /dev/shm cannot hold the ring for the answers
    """

    def __init__(
        self,
        name: str,
        *,
        in_flight: int = 3,
        timeout: float = 300.0,
        connect_timeout: float = 10.0,
        reply_slots: int | None = None,
    ) -> None:
        self.name = check_sidecar_name(name)
        self._in_flight = integer("in_flight", in_flight, 1, MOST_IN_FLIGHT)
        self._timeout = seconds_of("timeout", timeout)
        self._connect_timeout = seconds_of("connect_timeout", connect_timeout)
        self._reply_slots = None if reply_slots is None else slots_of("reply_slots", reply_slots)
        self._number = 0
        self._waiting: dict[int, _Request] = {}  # requests under way, in the order of the batches
        self._patience = 0.0  # seconds that the next push waits for room
        self._mapping = False
        self._known: Known | None = None  # the schema of the last answer
        self._last_heard = self._last_look = time.monotonic()
        self._dead_since: float | None = None
        self._requests, self._producer = await_entry(
            self.name, self._timeout, self._connect_timeout
        )
        try:
            self._open_replies()
        except BaseException:
            self._requests.close()
            raise

    def map(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Send each batch and yield the answers, in order.

        A batch that is larger than half of the sidecar's ring is sent in slices.

        Raises
        ------
        SidecarError : the sidecar's function raised; the message has its traceback. Results of the
            function before the error have been yielded
        SidecarUnavailable : the sidecar has ended, it gave no sign of life for `timeout` seconds,
            or several workers have died over one request
        MessageTooLarge : a single row does not fit the sidecar's ring
        """
        if self._mapping:
            raise RuntimeError("this client is in the middle of another map(); use a second client")
        self._mapping = True
        try:
            if self._replies.closed:
                self._open_replies()
            encoder: BatchEncoder | None = None
            for batch in batches:
                # Compare the metadata too: they may say that a batch is a group.
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
                    self._send(_Request(self._number, encoder, piece))
                    while self._waiting and self._oldest().complete:
                        yield from self._next_answer()
            while self._waiting:
                yield from self._next_answer()
        finally:
            self._mapping = False
            if self._waiting:
                # The caller stopped, or an error came. Remove the reply ring, so that late answers
                # are dropped; the next map() makes a new ring.
                self._waiting.clear()
                self._close_replies()

    def _oldest(self) -> _Request:
        return next(iter(self._waiting.values()))

    def _send(self, request: _Request) -> None:
        self._waiting[request.number] = request
        self._number += 1
        self._last_heard = time.monotonic()
        while not request.sent:
            self._advance()

    def _advance(self) -> None:
        """Send the unsent requests; if there are none, wait a little for an answer."""
        unsent = [request for request in self._waiting.values() if not request.sent]
        if not all(map(self._push, unsent)):
            # Workers may wait for room in the reply ring: take answers before the next push waits.
            self._collect(0.0)
            self._look()
        elif not unsent and not self._collect(_SLICE):
            self._look()

    # CHANGE: edit this for a new field of a request
    def _push(self, request: _Request) -> bool:
        """Send a request; return False if the ring has no room for it."""
        prefix = Head.of(request.number, self._replies_name).pack()
        push = partial(request.encoder.push, self._producer, *request.piece, prefix=prefix)
        try:
            push(kind=KIND_REQUEST, timeout=self._patience)
            request.sent = True
        except Full:
            pass
        self._patience = 0.0 if request.sent else _SLICE
        return request.sent

    def _next_answer(self) -> Iterator[pa.RecordBatch]:
        request = self._oldest()
        self._last_heard = time.monotonic()
        while not request.complete:
            self._advance()
        del self._waiting[request.number]
        yield from request.batches
        if request.failure is not None:
            raise SidecarError(f'sidecar "{self.name}" raised:\n{request.failure}')

    def _collect(self, timeout: float) -> bool:
        """Take all messages that have arrived; wait `timeout` seconds, for the first one only."""
        arrived = False
        while any(not request.complete for request in self._waiting.values()):
            # CHANGE: edit this for a new error
            try:
                lease = self._inbox.lease(timeout=0 if arrived else timeout)
            except (Empty, EndOfStream):  # no message, or an end marker, which answers no request
                break
            arrived = True
            self._last_heard = time.monotonic()
            self._dead_since = None
            with lease:
                self._take(lease)
        return arrived

    def _take(self, lease: shmring.Lease) -> None:
        head = Head.unpack(lease, ring=self._replies_name)
        request = self._waiting.get(head.number)
        if request is None or request.complete:
            return  # ignore a second answer: the worker that gave the first one died just after it
        if head.flags & FLAG_AGAIN:
            self._count_death(request)
            return
        if head.flags & FLAG_ERROR:
            request.failure = bytes(lease.data[HEAD_BYTES:]).decode(errors="replace")
            request.complete = True
            return
        if head.piece == 0:  # the first piece, perhaps of a worker that has begun the answer anew
            request.begin()
        if head.piece != request.received:
            raise Damaged(
                f'ring "{self._replies_name}": piece {head.piece} of answer {head.number} came '
                f"where piece {request.received} was due"
            )
        request.received += 1
        if lease.data.nbytes > HEAD_BYTES:
            request.batches.append(self._decode(lease))
        request.complete = bool(head.flags & FLAG_LAST)

    def _count_death(self, request: _Request) -> None:
        """Count the end of a worker that worked on the request; raise after the last try."""
        request.deaths += 1
        if request.deaths >= _DEATHS:
            raise SidecarUnavailable(
                f'{_DEATHS} workers of sidecar "{self.name}" have died over the same batch of '
                f"{counted(request.piece[0].num_rows, 'row')}; see what the sidecar says of "
                f"their deaths"
            )

    def _decode(self, lease: shmring.Lease) -> pa.RecordBatch:
        """Return a copy of an answer's batch, so that its slots are free for the next answer."""
        known = self._known
        batch = known and known.map(lease, KIND_ARROW_STREAM, skip=HEAD_BYTES, copy=True)
        if batch is None:
            data = pa.py_buffer(bytes(lease.data)).slice(HEAD_BYTES)
            batch = decode_batch(data, None, ring=self._replies_name, message_id=lease.message_id)
            self._known = learned(data)
        return batch

    def _look(self) -> None:
        """Raise SidecarUnavailable if the sidecar has ended, or has not answered in time."""
        now = time.monotonic()
        if now - self._last_look < _LOOK_EVERY:
            return
        self._last_look = now
        if lives(self._requests.participants()):
            self._dead_since = None
            if now - self._last_heard > self._timeout:
                raise SidecarUnavailable(
                    f'sidecar "{self.name}" lives but has not answered process {os.getpid()} for '
                    f"{self._timeout:g} s: {'; '.join(state(self._requests))}; give it more time "
                    f"(timeout=...) or more workers"
                )
        elif self._dead_since is None:
            self._dead_since = now
        elif is_replaced(self._requests):
            self._follow()
            self._dead_since = now
        elif now - self._dead_since > self._connect_timeout:
            raise SidecarUnavailable(
                f'sidecar "{self.name}" has no living worker, nor a supervisor whose workers '
                f"load, and none came within {self._connect_timeout:g} s (connect_timeout=...); "
                f"{len(self._waiting)} requests were under way; the log of what started it says "
                f"why it ended"
            )

    def _follow(self) -> None:
        """Join the ring of a sidecar that was started again, and mark requests to be sent again."""
        requests, producer = await_entry(self.name, self._timeout, self._connect_timeout)
        self._requests.close()
        self._requests, self._producer = requests, producer
        self._close_replies()
        self._open_replies()
        for request in self._waiting.values():
            if not request.complete:
                # The batch may have ended the whole sidecar: do not send it again for ever.
                if request.received:
                    self._count_death(request)
                request.begin()
                request.sent = False

    def _open_replies(self) -> None:
        """Make the ring for the answers; this client is its only reader."""
        name = reply_ring_name(self.name, f"{os.getpid()}-{uuid.uuid4().hex[:12]}")
        self._replies_name = name
        self._replies = REPLY.make(
            self._reply_slots,
            lambda slots: shmring.create(name, slots=slots, temporary=True),
            connect_timeout=self._connect_timeout,
        )
        self._inbox = self._replies.consumer("client", start="earliest", exclusive=True)

    def _close_replies(self) -> None:
        """Remove the ring for the answers: late answers find no ring."""
        self._inbox.close()
        self._replies.close()

    def close(self) -> None:
        """Leave, and remove the ring for the answers; received batches stay valid."""
        self._waiting.clear()
        self._close_replies()
        self._requests.close()
        if self._dead_since is not None:
            # Remove the request ring of a dead sidecar, which cannot remove the ring itself.
            shmring.gc(request_ring_name(self.name))
