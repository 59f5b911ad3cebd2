"""A POSIX message queue by posix_ipc, as deep as the system allows without privileges."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path

import posix_ipc

from benchmarks.payload import MESSAGE, MESSAGE_BYTES, unique_name
from benchmarks.processes import Gate


@contextlib.contextmanager
def link() -> Iterator[str]:
    """A queue; it is unlinked afterwards."""
    name = f"/shmring.{unique_name()}"
    depth = int(Path("/proc/sys/fs/mqueue/msg_max").read_text())
    posix_ipc.MessageQueue(
        name, posix_ipc.O_CREX, max_messages=depth, max_message_size=MESSAGE_BYTES
    ).close()
    try:
        yield name
    finally:
        posix_ipc.unlink_message_queue(name)


def send(gate: Gate, name: str, count: int) -> float:
    """One message a call."""
    queue = posix_ipc.MessageQueue(name)
    gate.wait()
    started = time.monotonic()
    for _ in repeat(None, count):
        queue.send(MESSAGE)
    queue.close()
    return started


def receive(gate: Gate, name: str, count: int) -> float:
    """One message a call, as bytes."""
    queue = posix_ipc.MessageQueue(name)
    data = b""
    gate.wait()
    for _ in repeat(None, count):
        data, _priority = queue.receive()
    ended = time.monotonic()
    queue.close()
    assert data == MESSAGE
    return ended
