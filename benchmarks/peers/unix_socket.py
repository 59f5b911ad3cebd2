"""A Unix stream socket with a four-byte length before each message."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Iterator
from itertools import repeat

from benchmarks.payload import BATCH, MESSAGE, MESSAGE_BYTES, read_every_byte, rows
from benchmarks.peers.trips import Trips
from benchmarks.processes import Gate

Ends = tuple[socket.socket, socket.socket]

_LENGTH = struct.Struct("<I")


@contextlib.contextmanager
def link(*, buffer_bytes: int | None = None) -> Iterator[Ends]:
    """A connected pair; `buffer_bytes` asks the kernel for larger buffers."""
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with left, right:
        if buffer_bytes:
            for end in (left, right):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
                end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        yield left, right


def send(gate: Gate, ends: Ends, count: int) -> float:
    """A system call for each message."""
    with ends[0] as out:
        sendall, pack = out.sendall, _LENGTH.pack
        gate.wait()
        started = time.monotonic()
        for _ in repeat(None, count):
            sendall(pack(len(MESSAGE)) + MESSAGE)
    return started


def receive(gate: Gate, ends: Ends, count: int) -> float:
    """Through a 64 KB read buffer, as bytes."""
    with ends[1] as inp, inp.makefile("rb", buffering=1 << 16) as stream:
        read, unpack = stream.read, _LENGTH.unpack
        data = b""
        gate.wait()
        for _ in repeat(None, count):
            data = read(unpack(read(4))[0])
        ended = time.monotonic()
    assert data == MESSAGE
    return ended


def _read_into(inp: socket.socket, view: memoryview) -> None:
    while view:
        view = view[inp.recv_into(view) :]


def send_batches(gate: Gate, ends: Ends, count: int) -> float:
    """BATCH messages behind one length."""
    array = rows().data.cast("B")
    with ends[0] as out:
        gate.wait()
        started = time.monotonic()
        for _ in repeat(None, count // BATCH):
            out.sendall(_LENGTH.pack(len(array)))
            out.sendall(array)
    return started


def receive_batches(gate: Gate, ends: Ends, count: int) -> float:
    """Into one buffer that is used again; every byte is read."""
    total = 0
    length = memoryview(bytearray(4))
    buffer = memoryview(bytearray(BATCH * MESSAGE_BYTES))
    with ends[1] as inp:
        gate.wait()
        for _ in repeat(None, count // BATCH):
            _read_into(inp, length)
            view = buffer[: _LENGTH.unpack(length)[0]]
            _read_into(inp, view)
            total += read_every_byte(view)
        ended = time.monotonic()
    assert total == read_every_byte(rows()) * (count // BATCH)
    return ended


def ping(gate: Gate, ends: Ends, seconds: float) -> dict[str, float]:
    """Send a message and wait for it to come back; the length is known."""
    with ends[0] as end:
        gate.wait()
        trips = Trips(seconds)
        while trips.go_on():
            end.sendall(MESSAGE)
            end.recv(MESSAGE_BYTES, socket.MSG_WAITALL)
        end.shutdown(socket.SHUT_WR)
        return trips.result()


def pong(gate: Gate, ends: Ends, seconds: float) -> None:
    """Send every message back, up to the end of the stream."""
    ends[0].close()
    with ends[1] as end:
        gate.wait()
        while data := end.recv(MESSAGE_BYTES, socket.MSG_WAITALL):
            end.sendall(data)
