"""Arrow batches as a pyarrow IPC stream over a Unix socket with 4 MB buffers.

A read buffer and large kernel buffers were the fastest way found to do this from
Python; an unbuffered file cannot be used (pyarrow takes a short read for the end).
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from itertools import repeat
from typing import NamedTuple

import pyarrow as pa

from benchmarks.payload import arrow_batch, read_batch
from benchmarks.peers import unix_socket
from benchmarks.processes import Gate

BUFFER_BYTES = 4 << 20


class Link(NamedTuple):
    """A socket and what goes through it."""

    ends: tuple[socket.socket, socket.socket]
    nbytes: int
    touch: bool


@contextlib.contextmanager
def link(*, nbytes: int, touch: bool) -> Iterator[Link]:
    """A connected pair."""
    with unix_socket.link(buffer_bytes=BUFFER_BYTES) as ends:
        yield Link(ends, nbytes, touch)


def send(gate: Gate, link: Link, count: int) -> float:
    """Write the same batch again and again, then the end of the stream."""
    batch = arrow_batch(link.nbytes)
    with link.ends[0] as out, out.makefile("wb") as stream:
        gate.wait()
        started = time.monotonic()
        with pa.ipc.new_stream(stream, batch.schema) as writer:
            for _ in repeat(None, count):
                writer.write_batch(batch)
    return started


def receive(gate: Gate, link: Link, count: int) -> float:
    """Read every batch."""
    rows = 0
    with link.ends[1] as inp, inp.makefile("rb", buffering=1 << 16) as stream:
        gate.wait()
        with pa.ipc.open_stream(stream) as reader:
            for batch in reader:
                rows += read_batch(batch, link.touch)
        ended = time.monotonic()
    assert rows == count * arrow_batch(link.nbytes).num_rows
    return ended
