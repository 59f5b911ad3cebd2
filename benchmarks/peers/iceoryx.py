"""iceoryx2 from Python: publish and subscribe on slices of bytes, nothing dropped, polled.

Its Python API has no blocking receive on a subscriber, so the
reader polls. Each run has a prefix and a folder of its own, because the library leaves files
behind. Until the reader has polled for the first time the publisher drops what exceeds the
buffer, whatever its strategy: send() says so (0 recipients) and is repeated.
"""

from __future__ import annotations

import contextlib
import ctypes
import tempfile
import time
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

import iceoryx2 as iox2

from benchmarks.payload import BATCH, MESSAGE, MESSAGE_BYTES, read_every_byte, rows, unique_name
from benchmarks.processes import Gate

_BUFFER = 1_024
_BUFFER_OF_BATCHES = 8


class Link(NamedTuple):
    """Where the run's files are and what they begin with."""

    folder: str
    prefix: str


@contextlib.contextmanager
def link() -> Iterator[Link]:
    """A folder and a prefix; what is left of them is removed."""
    prefix = f"shmring.{unique_name()}-iox2-"
    with tempfile.TemporaryDirectory(prefix="shmring-bench-") as folder:
        try:
            yield Link(f"{folder}/", prefix)
        finally:
            for path in Path("/dev/shm").glob(f"{prefix}*"):
                path.unlink(missing_ok=True)


@contextlib.contextmanager
def _service(link: Link, depth: int) -> Iterator[Any]:
    iox2.set_log_level(iox2.LogLevel.Error)
    config = iox2.config.default()
    config.global_cfg.prefix = iox2.FileName.new(link.prefix)
    config.global_cfg.root_path = iox2.Path.new(link.folder)
    node = iox2.NodeBuilder.new().config(config).create(iox2.ServiceType.Ipc)
    yield (
        node.service_builder(iox2.ServiceName.new("bench"))
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
