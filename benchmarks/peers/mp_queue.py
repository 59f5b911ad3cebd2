"""multiprocessing.Queue: pickles, a feeder thread and a pipe."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from itertools import repeat
from typing import Any

from benchmarks.payload import MESSAGE
from benchmarks.processes import SPAWN, Gate


@contextlib.contextmanager
def link() -> Iterator[Any]:
    """A queue without a bound, as is its default."""
    queue: Any = SPAWN.Queue()
    try:
        yield queue
    finally:
        queue.close()


def send(gate: Gate, queue: Any, count: int) -> float:
    """One message a call; the feeder thread sends it."""
    gate.wait()
    started = time.monotonic()
    for _ in repeat(None, count):
        queue.put(MESSAGE)
    queue.close()
    queue.join_thread()
    return started


def receive(gate: Gate, queue: Any, count: int) -> float:
    """One message a call."""
    data = b""
    gate.wait()
    for _ in repeat(None, count):
        data = queue.get()
    ended = time.monotonic()
    assert data == MESSAGE
    return ended
