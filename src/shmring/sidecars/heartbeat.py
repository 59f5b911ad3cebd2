"""Between its steps a worker says that it lives, and asks whether somebody waits still."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import shmring
from shmring.errors import RingNotFound, ShmringError
from shmring.sidecars.outbox import Client, Push
from shmring.sidecars.wire import KIND_REPLY, Head

# Seconds after which a client is to see that something happens: answers that have waited for others
# for so long wait no longer.
INTERVAL = 0.1
LOOK = 0.2  # seconds between looks at the parent and at clients that may be gone

Item = TypeVar("Item")


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
