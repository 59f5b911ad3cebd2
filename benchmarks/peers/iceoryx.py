"""iceoryx2: publish and subscribe on slices of bytes, nothing dropped, polled.

Its Python API has no blocking receive on a subscriber, so the reader polls. Each
run has a prefix and a folder of its own, because the library leaves files behind.
Until the reader has polled for the first time the publisher drops what exceeds the
buffer, whatever its strategy: send() says so (0 recipients) and is repeated.
"""

from __future__ import annotations

import contextlib
import ctypes
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

import iceoryx2 as iox2

from benchmarks.payload import (
    BATCH,
    MESSAGE,
    MESSAGE_BYTES,
    block,
    read_every_byte,
    rows,
    unique_name,
)
from benchmarks.peers.trips import Trips
from benchmarks.processes import Gate

_BUFFER = 1_024
_BUFFER_OF_BATCHES = 8
_RING_BYTES = 20_000_000  # of blocks in a buffer, as much as a ring has
_END = bytes([255]) * MESSAGE_BYTES
_LEAST_BUFFER = 4  # of blocks of 16 MB


class Link(NamedTuple):
    """Where the run's files are and what they begin with."""

    folder: str
    prefix: str
    nbytes: int


@contextlib.contextmanager
def link(*, nbytes: int = MESSAGE_BYTES) -> Iterator[Link]:
    """A folder, a prefix, the bytes of a block; what is left of the first two is removed."""
    prefix = f"shmring.{unique_name()}-iox2-"
    with tempfile.TemporaryDirectory(prefix="shmring-bench-") as folder:
        try:
            yield Link(f"{folder}/", prefix, nbytes)
        finally:
            for path in Path("/dev/shm").glob(f"{prefix}*"):
                path.unlink(missing_ok=True)


@contextlib.contextmanager
def _service(link: Link, depth: int, name: str = "bench") -> Iterator[Any]:
    iox2.set_log_level(iox2.LogLevel.Error)
    config = iox2.config.default()
    config.global_cfg.prefix = iox2.FileName.new(link.prefix)
    config.global_cfg.root_path = iox2.Path.new(link.folder)
    node = iox2.NodeBuilder.new().config(config).create(iox2.ServiceType.Ipc)
    yield (
        node.service_builder(iox2.ServiceName.new(name))
        .publish_subscribe(iox2.Slice[ctypes.c_uint8])
        .enable_safe_overflow(False)
        .subscriber_max_buffer_size(depth)
        .open_or_create()
    )


def _publisher(service: Any, nbytes: int) -> Any:
    return (
        service.publisher_builder()
        .initial_max_slice_len(nbytes)
        .backpressure_strategy(iox2.BackpressureStrategy.RetryUntilDelivered)
        .create()
    )


def _send(gate: Gate, link: Link, payload: Any, nbytes: int, count: int, depth: int) -> float:
    with _service(link, depth) as service:
        out = _publisher(service, nbytes)
        move = ctypes.memmove
        loan = out.loan_slice_uninit
        gate.wait()
        out.update_connections()
        started = time.monotonic()
        for _ in repeat(None, count):
            delivered = 0
            while not delivered:  # until the subscriber has opened the connection
                sample = loan(nbytes)
                move(sample.payload_ptr, payload, nbytes)
                delivered = sample.assume_init().send()
        # The publisher's memory goes with it: the reader has to be done first.
        gate.wait()
        return started


def send(gate: Gate, link: Link, count: int) -> float:
    """Loan, fill, send, one message each."""
    return _send(gate, link, MESSAGE, MESSAGE_BYTES, count, _BUFFER)


def receive(gate: Gate, link: Link, count: int) -> float:
    """Poll; each message is copied out as bytes and given back."""
    with _service(link, _BUFFER) as service:
        inp = service.subscriber_builder().buffer_size(_BUFFER).create()
        pop, copy = inp.receive, ctypes.string_at
        data = b""
        gate.wait()
        for _ in repeat(None, count):
            while (sample := pop()) is None:
                pass
            data = copy(sample.payload_ptr, MESSAGE_BYTES)
            sample.delete()
        ended = time.monotonic()
        gate.wait()
    assert data == MESSAGE
    return ended


def send_batches(gate: Gate, link: Link, count: int) -> float:
    """BATCH messages in one slice."""
    array = rows()
    return _send(gate, link, array.ctypes.data, array.nbytes, count // BATCH, _BUFFER_OF_BATCHES)


def receive_batches(gate: Gate, link: Link, count: int) -> float:
    """Poll; every byte is read in place."""
    return _read_in_place(gate, link, rows(), count // BATCH, _BUFFER_OF_BATCHES)


def _depth(nbytes: int) -> int:
    return max(_LEAST_BUFFER, _RING_BYTES // nbytes)


def send_blocks(gate: Gate, link: Link, count: int) -> float:
    """A large slice each."""
    data = block(link.nbytes)
    return _send(gate, link, data.ctypes.data, data.nbytes, count, _depth(data.nbytes))


def receive_blocks(gate: Gate, link: Link, count: int) -> float:
    """Poll; every byte is read in place."""
    return _read_in_place(gate, link, block(link.nbytes), count, _depth(link.nbytes))


def _read_in_place(gate: Gate, link: Link, expected: Any, count: int, depth: int) -> float:
    total = 0
    nbytes = expected.nbytes
    with _service(link, depth) as service:
        inp = service.subscriber_builder().buffer_size(depth).create()
        gate.wait()
        for _ in repeat(None, count):
            while (sample := inp.receive()) is None:
                pass
            data = (ctypes.c_uint8 * nbytes).from_address(sample.payload_ptr)
            total += read_every_byte(data)
            del data
            sample.delete()
        ended = time.monotonic()
        gate.wait()
    assert total == read_every_byte(expected) * count
    return ended


def _sender(out: Any) -> Callable[[bytes], None]:
    def send(data: bytes) -> None:
        sample = out.loan_slice_uninit(MESSAGE_BYTES)
        ctypes.memmove(sample.payload_ptr, data, MESSAGE_BYTES)
        sample.assume_init().send()

    return send


def _receiver(inp: Any) -> Callable[[], bytes]:
    def receive() -> bytes:
        while (sample := inp.receive()) is None:
            pass
        data = ctypes.string_at(sample.payload_ptr, MESSAGE_BYTES)
        sample.delete()
        return data

    return receive


@contextlib.contextmanager
def _ends(link: Link, to: str, of: str) -> Iterator[tuple[Any, Any]]:
    with _service(link, _BUFFER, to) as there, _service(link, _BUFFER, of) as back:
        out = _publisher(there, MESSAGE_BYTES)
        yield out, back.subscriber_builder().buffer_size(_BUFFER).create()


def ping(gate: Gate, link: Link, seconds: float) -> dict[str, float]:
    """Send a message and wait for it to come back."""
    with _ends(link, "there", "back") as (out, inp):
        gate.wait()
        out.update_connections()
        inp.receive()  # opens the connection
        gate.wait()
        send, receive = _sender(out), _receiver(inp)
        trips = Trips(seconds)
        while trips.go_on():
            send(MESSAGE)
            receive()
        send(_END)
        gate.wait()
        return trips.result()


def pong(gate: Gate, link: Link, seconds: float) -> None:
    """Send every message back, up to the last one."""
    with _ends(link, "back", "there") as (out, inp):
        gate.wait()
        out.update_connections()
        inp.receive()
        gate.wait()
        send, receive = _sender(out), _receiver(inp)
        while (data := receive()) != _END:
            send(data)
        gate.wait()
