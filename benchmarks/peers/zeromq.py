"""ZeroMQ over ipc, PUSH to PULL, default options.

Connecting takes up to 100 ms where the other side is not there yet: one message
goes through before the clock starts.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator
from itertools import repeat

import zmq

from benchmarks.payload import BATCH, MESSAGE, read_every_byte, rows
from benchmarks.peers.trips import Trips
from benchmarks.processes import Gate


@contextlib.contextmanager
def link() -> Iterator[str]:
    """An address for each direction below one folder."""
    with tempfile.TemporaryDirectory(prefix="shmring-bench-") as folder:
        yield f"ipc://{folder}/there"


def _back(address: str) -> str:
    return address.removesuffix("there") + "back"


def send(gate: Gate, address: str, count: int) -> float:
    """One message a call."""
    with zmq.Context() as context, context.socket(zmq.PUSH) as out:
        out.bind(address)
        push = out.send
        push(MESSAGE)
        gate.wait()
        started = time.monotonic()
        for _ in repeat(None, count):
            push(MESSAGE)
    return started


def receive(gate: Gate, address: str, count: int) -> float:
    """One message a call, as bytes."""
    with zmq.Context() as context, context.socket(zmq.PULL) as inp:
        inp.connect(address)
        pop = inp.recv
        pop()
        data = b""
        gate.wait()
        for _ in repeat(None, count):
            data = pop()
        ended = time.monotonic()
    assert data == MESSAGE
    return ended


def send_batches(gate: Gate, address: str, count: int) -> float:
    """BATCH messages in one frame, without a copy on this side."""
    array = rows()
    with zmq.Context() as context, context.socket(zmq.PUSH) as out:
        out.bind(address)
        out.send(MESSAGE)
        gate.wait()
        started = time.monotonic()
        for _ in repeat(None, count // BATCH):
            out.send(array, copy=False)
    return started


def receive_batches(gate: Gate, address: str, count: int) -> float:
    """Whole frames, without a copy on this side; every byte is read."""
    total = 0
    with zmq.Context() as context, context.socket(zmq.PULL) as inp:
        inp.connect(address)
        inp.recv()
        gate.wait()
        for _ in repeat(None, count // BATCH):
            total += read_every_byte(inp.recv(copy=False).buffer)
        ended = time.monotonic()
    assert total == read_every_byte(rows()) * (count // BATCH)
    return ended


def ping(gate: Gate, address: str, seconds: float) -> dict[str, float]:
    """Send a message and wait for it to come back."""
    with (
        zmq.Context() as context,
        context.socket(zmq.PUSH) as out,
        context.socket(zmq.PULL) as inp,
    ):
        out.bind(address)
        inp.bind(_back(address))
        gate.wait()
        out.send(MESSAGE)
        inp.recv()
        trips = Trips(seconds)
        while trips.go_on():
            out.send(MESSAGE)
            inp.recv()
        out.send(b"")
        return trips.result()


def pong(gate: Gate, address: str, seconds: float) -> None:
    """Send every message back, up to the empty one."""
    with (
        zmq.Context() as context,
        context.socket(zmq.PUSH) as out,
        context.socket(zmq.PULL) as inp,
    ):
        inp.connect(address)
        out.connect(_back(address))
        gate.wait()
        while data := inp.recv():
            out.send(data)
