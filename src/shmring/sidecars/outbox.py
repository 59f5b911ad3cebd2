"""What a worker has to publish: for each client a ring, and answers that wait for room in it."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator

import pyarrow as pa

import shmring
from shmring.arrow.batches import BatchEncoder, most_bytes
from shmring.arrow.known import Known
from shmring.errors import Full, ShmringError
from shmring.sidecars.unchanged import Unchanged
from shmring.sidecars.wire import KIND_REPLY

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
