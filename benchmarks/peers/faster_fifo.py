"""faster-fifo: pickles in a ring with a lock, 1 MB as is its default."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from itertools import repeat
from typing import Any

import faster_fifo

from benchmarks.payload import BATCH, MESSAGE
from benchmarks.peers.mp_queue import receive
from benchmarks.processes import Gate

__all__ = ["link", "receive", "receive_batches", "send", "send_batches"]


@contextlib.contextmanager
def link() -> Iterator[Any]:
    """A queue of the default size."""
    queue: Any = faster_fifo.Queue()
    try:
        yield queue
    finally:
        queue.close()


def send(gate: Gate, queue: Any, count: int) -> float:
    """One message a call."""
    gate.wait()
    started = time.monotonic()
    for _ in repeat(None, count):
        queue.put(MESSAGE)
    return started


def send_batches(gate: Gate, queue: Any, count: int) -> float:
    """BATCH messages a call."""
    batch = [MESSAGE] * BATCH
    gate.wait()
    started = time.monotonic()
    for _ in repeat(None, count // BATCH):
        queue.put_many(batch)
    return started


def receive_batches(gate: Gate, queue: Any, count: int) -> float:
    """As many messages a call as are there, up to BATCH; each is a bytes object."""
    got = 0
    messages: list[bytes] = []
    gate.wait()
    while got < count:
        messages = queue.get_many(max_messages_to_get=BATCH)
        got += len(messages)
    ended = time.monotonic()
    assert messages[-1] == MESSAGE
    return ended
