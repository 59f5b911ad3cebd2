"""This ring, by its Python API."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from itertools import repeat
from typing import Any, Literal, NamedTuple

import shmring
from benchmarks.payload import (
    BATCH,
    DEFAULT_SLOTS,
    MESSAGE,
    MESSAGE_BYTES,
    block,
    read_every_byte,
    rows,
    unique_name,
)
from benchmarks.peers.trips import Trips
from benchmarks.processes import Gate


class Link(NamedTuple):
    """Two rings: one for the way there, one for the way back."""

    there: str
    back: str
    single: bool
    wait: Literal["default", "spin"]
    nbytes: int


@contextlib.contextmanager
def link(
    *,
    slots: int = DEFAULT_SLOTS,
    single: bool = False,
    wait: Literal["default", "spin"] = "default",
    nbytes: int = MESSAGE_BYTES,
) -> Iterator[Link]:
    """A pair of rings; `single` for one producer and exclusive consumers (SP/SC).

    Parameters
    ----------
    nbytes : of a block
    """
    name = unique_name()
    with contextlib.ExitStack() as stack:
        for ring in (name, f"{name}-back"):
            stack.enter_context(shmring.create(ring, slots=slots, single_producer=single))
            stack.callback(shmring.unlink, ring)
        yield Link(name, f"{name}-back", single, wait, nbytes)


def send(gate: Gate, link: Link, count: int, data: Any = MESSAGE) -> float:
    """Push one at a time."""
    with shmring.attach(link.there) as ring, ring.producer(wait=link.wait) as out:
        push = out.push
        gate.wait()
        started = time.monotonic()
        for _ in repeat(None, count):
            push(data)
        return started


def receive(gate: Gate, link: Link, count: int) -> float:
    """Pop one at a time, as bytes."""
    with (
        shmring.attach(link.there) as ring,
        ring.consumer("bench", start="earliest", exclusive=link.single, wait=link.wait) as inp,
    ):
        pop = inp.pop
        data = b""
        gate.wait()
        for _ in repeat(None, count):
            data = pop()
        ended = time.monotonic()
    assert data == MESSAGE
    return ended


def send_batches(gate: Gate, link: Link, count: int) -> float:
    """Push arrays of messages."""
    array = rows()
    with shmring.attach(link.there) as ring, ring.producer(wait=link.wait) as out:
        push_many = out.push_many
        gate.wait()
        started = time.monotonic()
        for _ in repeat(None, count // BATCH):
            push_many(array)
        return started


def receive_batches(gate: Gate, link: Link, count: int) -> float:
    """Lease many messages and read every byte of them in place."""
    got = 0
    total = 0
    with (
        shmring.attach(link.there) as ring,
        ring.consumer("bench", start="earliest", exclusive=link.single, wait=link.wait) as inp,
    ):
        lease_many = inp.lease_many
        gate.wait()
        while got < count:
            with lease_many(BATCH) as batch:
                array = batch.array
                total += read_every_byte(array)
                got += len(array)
                del array
        ended = time.monotonic()
    assert total % 2**32 == read_every_byte(rows()) * (count // BATCH) % 2**32
    return ended


def send_blocks(gate: Gate, link: Link, count: int) -> float:
    """Push large messages."""
    return send(gate, link, count, block(link.nbytes))


def receive_blocks(gate: Gate, link: Link, count: int) -> float:
    """Lease each and read every byte of it in place."""
    total = 0
    with (
        shmring.attach(link.there) as ring,
        ring.consumer("bench", start="earliest", exclusive=link.single, wait=link.wait) as inp,
    ):
        gate.wait()
        for _ in repeat(None, count):
            with inp.lease() as lease:
                total += read_every_byte(lease.data)
        ended = time.monotonic()
    assert total == read_every_byte(block(link.nbytes)) * count
    return ended


def ping(gate: Gate, link: Link, seconds: float) -> dict[str, float]:
    """Send a message and wait for it to come back."""
    with (
        shmring.attach(link.there) as there,
        shmring.attach(link.back) as back,
        there.producer(wait=link.wait) as out,
        back.consumer("bench", start="earliest", exclusive=link.single, wait=link.wait) as inp,
    ):
        push, pop = out.push, inp.pop
        gate.wait()
        trips = Trips(seconds)
        while trips.go_on():
            push(MESSAGE)
            pop()
        push(b"")
        return trips.result()


def pong(gate: Gate, link: Link, seconds: float) -> None:
    """Send every message back, up to the empty one."""
    with (
        shmring.attach(link.there) as there,
        shmring.attach(link.back) as back,
        there.consumer("bench", start="earliest", exclusive=link.single, wait=link.wait) as inp,
        back.producer(wait=link.wait) as out,
    ):
        push, pop = out.push, inp.pop
        gate.wait()
        while data := pop():
            push(data)


assert len(MESSAGE) == MESSAGE_BYTES
