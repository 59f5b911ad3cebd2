"""What a worker has to publish: for each client a ring, and answers that wait for room in it.

Between its steps it says that it lives, and asks whether somebody waits still.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import pyarrow as pa

import shmring
from shmring.arrow.batches import BatchEncoder, most_bytes
from shmring.arrow.known import Known
from shmring.errors import Full, RingNotFound, ShmringError
from shmring.sidecars.unchanged import Unchanged
from shmring.sidecars.wire import KIND_REPLY, Head

# Seconds after which a client is to see that something happens: answers that have waited for others
# for so long wait no longer.
INTERVAL = 0.1
LOOK = 0.2  # seconds between looks at the parent and at clients that may be gone

Item = TypeVar("Item")
# Publishes one message, or raises Full at once.
Push = Callable[[], int]


class Job:
    """A request, and what there is to publish for it: made as room for it comes."""

    def __init__(self, lease: shmring.Lease, pushes: Generator[Push]) -> None:
        self._lease = lease
        self._pushes = pushes
        self._next: Push | None = None

    def work(self) -> bool:
        """Publish what fits; whether that was all."""
        while True:
            if self._next is None:
                self._next = next(self._pushes, None)
                if self._next is None:
                    self._lease.release()
                    return True
            try:
                self._next()
                self._next = None
            except Full:
                return False
            except ShmringError as error:
                try:
                    self._next = self._pushes.throw(error)
                except ShmringError:  # not even that can be told
                    self._lease.release()
                    return True

    def drop(self) -> None:
        self._pushes.close()
        self._next = None
        self._lease.release()


class Client:
    """A reply ring, and the requests whose answers do not fit into it yet.

    The worker goes on with the other clients meanwhile; a client bounds this by
    its requests in flight.
    """

    def __init__(self, name: str, behind: set[Client]) -> None:
        self.name = name
        self.ring = shmring.attach(name)
        try:
            self.producer = self.ring.producer("worker")
        except BaseException:
            self.ring.close()
            raise
        self.slots = self.ring.slots
        self.known: Known | None = None
        self.unchanged = Unchanged()
        self.most = most_bytes(self.slots)
        self._encoder: BatchEncoder | None = None
        self._behind = behind
        self._jobs: deque[Job] = deque()

    @property
    def is_behind(self) -> bool:
        return bool(self._jobs)

    def encoder_for(self, batch: pa.RecordBatch) -> BatchEncoder:
        encoder = self._encoder
        if encoder is None or not batch.schema.equals(encoder.schema, check_metadata=True):
            encoder = self._encoder = BatchEncoder(batch.schema)
        return encoder

    def push_within(self, most: int, answer: pa.RecordBatch, head: bytes) -> bool:
        """Publish an answer that has at most so many bytes and finds room; whether it does."""
        most = min(most, self.most)
        push = self.encoder_for(answer).push_within
        try:
            found = push(most, self.producer, answer, prefix=head, kind=KIND_REPLY, timeout=0)
        except Full:
            return False
        return found is not None

    def add(self, job: Job) -> None:
        self._jobs.append(job)
        self._behind.add(self)
        self.work()

    def work(self) -> bool:
        """Publish what fits; whether that was all."""
        while self._jobs and self._jobs[0].work():
            self._jobs.popleft()
        if not self._jobs:
            self._behind.discard(self)
        return not self._jobs

    def is_gone(self) -> bool:
        return (
            self.ring.closed
            or not os.path.exists(self.ring.path)
            or not any(
                participant["alive"] and participant["role"] == "consumer"
                for participant in self.ring.participants()
            )
        )

    def close(self) -> None:
        for job in self._jobs:
            job.drop()
        self._jobs.clear()
        self._behind.discard(self)
        self.producer.close()
        self.ring.close()


@dataclass(slots=True)
class Request:
    """What a client asks; it holds its place in the ring until it is answered."""

    lease: shmring.Lease
    head: Head
    client: Client
    # That it had; 0: it is not known yet, or of no interest.
    batches: int = field(default=0, kw_only=True)
    # Pieces before the answer that have nothing to say but that the worker lives.
    signs: int = field(default=0, kw_only=True)
    # Of the reply ring, for a row of the answer that its one does not take.
    slots: int = field(default=0, kw_only=True)
    answering: bool = field(default=False, kw_only=True)  # the pieces that come now are its own

    def push(self, head: bytes, body: bytes = b"") -> Push:
        """How this piece of the answer is published."""
        return partial(self.client.producer.push, head + body, kind=KIND_REPLY, timeout=0)

    def sign(self) -> None:
        """Tell a client that has nothing of the answer that something happens."""
        if self.answering or self.client.is_behind:  # which sees it by what it has to read
            return
        with suppress(ShmringError):
            self.push(self.head.answer(self.signs, 0))()
            self.signs += 1


class Heartbeat:
    """The beat of some work that gives one thing after the other.

    Parameters
    ----------
    wanted : the requests that the work is for; it ends when the clients of all of them are gone
    waiting : those whose clients hear nothing else of it
    """

    def __init__(self, wanted: Iterable[Request], waiting: Iterable[Request] = ()) -> None:
        self._clients = [each.client for each in wanted]
        self._waiting = list(waiting)
        self._said = self._looked = time.monotonic()

    def of(self, items: Iterable[Item]) -> Iterator[Item]:
        """The items, with a beat after each.

        Raises
        ------
        RingNotFound : nobody wants the rest
        """
        for item in items:
            yield item
            self.beat()

    def beat(self) -> None:
        """See to both, if it is time to.

        Raises
        ------
        RingNotFound : nobody wants the rest
        """
        now = time.monotonic()
        if now - self._said > INTERVAL:
            for request in self._waiting:
                request.sign()
            self._said = now
        if now - self._looked > LOOK:
            self._looked = now
            if all(client.is_gone() for client in self._clients):
                raise RingNotFound(f'ring "{self._clients[0].ring.path}": its client is gone')
