"""The side that sends batches to a sidecar and gets the answers in order."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import pyarrow as pa

import shmring
from shmring.batches import BatchEncoder, decode_batch
from shmring.errors import Damaged, Empty, Full, RingNotFound, SidecarError, SidecarUnavailable
from shmring.sidecars.wire import (
    FLAG_ERROR,
    FLAG_LAST,
    HEAD_BYTES,
    KIND_REQUEST,
    Head,
    Task,
    reply_ring_name,
    request_ring_name,
)

__all__ = ["Metrics", "SidecarClient"]

# Liveness is asked of the kernel, a microsecond a participant: this is often enough.
_LOOK_EVERY = 0.25
# A wait is cut into slices of this length to look at the other direction.
_SLICE = 0.05


class _Mailbox:
    """A reply ring, and how many answers are still expected in it."""

    def __init__(self, sidecar: str, slots: int) -> None:
        self.name = reply_ring_name(sidecar, f"{os.getpid()}-{uuid.uuid4().hex[:12]}")
        self.ring = shmring.create(self.name, slots=slots, participants=32, temporary=True)
        self.inbox = self.ring.consumer("client", start="earliest", exclusive=True)
        self.expected = 0

    def crowded(self) -> bool:
        """Whether batches that the caller keeps hold half of the ring."""
        hold = self.inbox.hold
        return hold is not None and self.inbox.position - hold > self.ring.slots // 2

    def close(self) -> None:
        self.inbox.close()
        self.ring.close()


@dataclass(slots=True)
class Metrics:
    """What a client has done so far; seconds are those it spent waiting."""

    requests: int = 0
    answers: int = 0
    rows: int = 0
    request_bytes: int = 0
    answer_bytes: int = 0
    room_wait: float = 0.0
    answer_wait: float = 0.0

    def add(self, other: Metrics) -> None:
        """Add another client's."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(slots=True)
class _Answer:
    mailbox: _Mailbox
    pieces: list[pa.RecordBatch] = field(default_factory=list[pa.RecordBatch])
    complete: bool = False


class SidecarClient:
    """Sends record batches to a sidecar; answers come back in the order of the batches.

    Parameters
    ----------
    name : of the sidecar
    in_flight : requests under way at most
    timeout : seconds without any answer after which a living sidecar is given up
    patience : seconds to wait for a sidecar that is not there (yet, or any more)
    reply_slots : size of the ring for the answers, in slots of 300 bytes
    task : whose work this is; travels with every request

    Raises
    ------
    SidecarUnavailable : there is no sidecar of this name
    """

    def __init__(
        self,
        name: str,
        *,
        in_flight: int = 3,
        timeout: float = 300.0,
        patience: float = 10.0,
        reply_slots: int = 65_536,
        task: Task | None = None,
    ) -> None:
        if in_flight < 1:
            raise ValueError(f"in_flight must be at least 1, not {in_flight}")
        self.name = name
        self._in_flight = in_flight
        self._timeout = timeout
        self._patience = patience
        self._task = task or Task()
        self._number = 0
        self.metrics = Metrics()
        self._waiting: deque[int] = deque()
        self._answers: dict[int, _Answer] = {}
        self._last_sign = self._last_look = time.monotonic()
        self._last_alive = self._last_sign
        self._reply_slots = reply_slots
        self._copy = True  # the first batch, see _decode()
        with contextlib.ExitStack() as stack:
            self._requests = stack.enter_context(self._attach())
            self._producer = stack.enter_context(self._requests.producer("client"))
            self._mailboxes = [_Mailbox(name, reply_slots)]
            stack.callback(self._close_mailboxes)
            self._close = stack.pop_all().close

    def _close_mailboxes(self) -> None:
        for mailbox in self._mailboxes:
            mailbox.close()
        self._mailboxes.clear()

    def _attach(self) -> shmring.Ring:
        deadline = time.monotonic() + self._patience
        while True:
            try:
                return shmring.attach(request_ring_name(self.name))
            except RingNotFound as error:
                if time.monotonic() >= deadline:
                    raise SidecarUnavailable(
                        f'no sidecar "{self.name}" on this host (waited {self._patience:g} s); start '
                        f"it with `shmring sidecar module:function --name {self.name}`"
                    ) from error
                time.sleep(_SLICE)

    def map(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Send each batch and yield the answers, in order.

        A batch that is larger than half of the sidecar's ring is sent in slices.

        Raises
        ------
        SidecarError : the sidecar's function raised; the message has its traceback
        SidecarUnavailable : the sidecar has died and none has taken its place, or
            it gave no sign for `timeout` seconds
        """
        encoder: BatchEncoder | None = None
        requests = self._requests
        for batch in batches:
            if encoder is None or not batch.schema.equals(encoder.schema):
                encoder = BatchEncoder(batch.schema)
            for piece in encoder.pieces(
                batch, requests.slots, ring=requests.path, prefix=HEAD_BYTES
            ):
                while len(self._waiting) >= self._in_flight:
                    yield from self._next_answer()
                self._send(encoder, piece)
                self._collect(0)
                while self._waiting and self._is_complete(self._waiting[0]):
                    yield from self._next_answer()
        while self._waiting:
            yield from self._next_answer()

    def _is_complete(self, number: int) -> bool:
        return number in self._answers and self._answers[number].complete

    def _send(self, encoder: BatchEncoder, batch: pa.RecordBatch) -> None:
        mailbox = self._mailbox()
        head = Head(self._number, mailbox.name, self._task).pack()
        if not self._waiting:
            self._last_sign = time.monotonic()
        while True:
            try:
                encoder.push(self._producer, batch, prefix=head, kind=KIND_REQUEST, timeout=_SLICE)
                break
            except Full:
                # The workers may be waiting for room among our answers.
                self.metrics.room_wait += _SLICE
                self._collect(0)
                self._look()
        mailbox.expected += 1
        self.metrics.requests += 1
        self.metrics.rows += batch.num_rows
        self.metrics.request_bytes += HEAD_BYTES + pa.ipc.get_record_batch_size(batch)
        self._answers[self._number] = _Answer(mailbox)
        self._waiting.append(self._number)
        self._number += 1

    def _mailbox(self) -> _Mailbox:
        """The ring for the next answer: a new one where the caller keeps half of the old."""
        for mailbox in self._mailboxes[:-1]:
            if not mailbox.expected:
                self._mailboxes.remove(mailbox)
                mailbox.close()
        if self._mailboxes[-1].crowded():
            # Such a caller gets copies from now on.
            self._copy = True
            self._mailboxes.append(_Mailbox(self.name, self._reply_slots))
        return self._mailboxes[-1]

    def _next_answer(self) -> Iterator[pa.RecordBatch]:
        number = self._waiting[0]
        begun = time.monotonic()
        while not self._is_complete(number):
            if not self._collect(_SLICE):
                self._look()
        self.metrics.answer_wait += time.monotonic() - begun
        self._waiting.popleft()
        pieces = self._answers.pop(number).pieces
        pieces.reverse()
        while pieces:  # pop: the slots are free as soon as the caller is done with the batch
            yield pieces.pop()

    def _collect(self, timeout: float) -> bool:
        """Take what has arrived; wait for the first message only."""
        arrived = False
        for mailbox in list(self._mailboxes):
            while mailbox.expected:
                try:
                    lease = mailbox.inbox.lease(timeout=0 if arrived else timeout)
                except Empty:
                    break
                arrived = True
                self._last_sign = self._last_alive = time.monotonic()
                with lease:
                    self._take(lease, mailbox)
        return arrived

    def _take(self, lease: shmring.Lease, mailbox: _Mailbox) -> None:
        head = Head.unpack(lease.data, ring=mailbox.name)
        answer = self._answers.get(head.number)
        if answer is None or answer.complete:
            return  # a second worker has done it again after the first one's death
        if head.flags & FLAG_ERROR:
            text = bytes(lease.data[HEAD_BYTES:]).decode(errors="replace")
            raise SidecarError(f'sidecar "{self.name}" raised:\n{text}')
        if head.piece == 0:
            answer.pieces.clear()  # begun again by another worker
        if head.piece != len(answer.pieces):
            raise Damaged(
                f'ring "{mailbox.name}": piece {head.piece} of answer {head.number} came where '
                f"piece {len(answer.pieces)} was due"
            )
        self.metrics.answers += 1
        self.metrics.answer_bytes += lease.data.nbytes
        if lease.data.nbytes > HEAD_BYTES:
            answer.pieces.append(self._decode(lease, mailbox))
        if head.flags & FLAG_LAST:
            answer.complete = True
            mailbox.expected -= 1

    def _decode(self, lease: shmring.Lease, mailbox: _Mailbox) -> pa.RecordBatch:
        # Spark keeps the first batch of a stream until its end; in place, it
        # would stop the ring after one round.
        copy = self._copy
        self._copy = len(self._mailboxes) > 1 and copy
        message = pa.py_buffer(bytes(lease.data) if copy else lease).slice(HEAD_BYTES)
        return decode_batch(message, None, ring=mailbox.name, message_id=lease.message_id)

    def _look(self) -> None:
        """Raise if nobody is left to answer."""
        now = time.monotonic()
        if now - self._last_look < _LOOK_EVERY:
            return
        self._last_look = now
        if any(seat["alive"] and seat["role"] == "member" for seat in self._requests.seats()):
            self._last_alive = now
        if now - self._last_alive > self._patience:
            raise SidecarUnavailable(
                f'sidecar "{self.name}" has died and none has taken its place within '
                f"{self._patience:g} s; {len(self._waiting)} requests were under way"
            )
        if now - self._last_sign > self._timeout:
            raise SidecarUnavailable(
                f'sidecar "{self.name}" lives but has not answered for {self._timeout:g} s; '
                f"give it more time (timeout=...) or more workers"
            )

    def close(self) -> None:
        """Leave, and remove the reply ring; batches that are still alive stay valid."""
        self._answers.clear()
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
