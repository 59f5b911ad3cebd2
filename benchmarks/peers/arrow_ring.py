"""Arrow batches through a ring: arrow_writer and arrow_reader."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from itertools import repeat
from typing import NamedTuple

import shmring
from benchmarks.payload import arrow_batch, read_batch, unique_name
from benchmarks.processes import Gate


class Link(NamedTuple):
    """A ring and what goes through it."""

    name: str
    nbytes: int
    touch: bool


@contextlib.contextmanager
def link(*, nbytes: int, slots: int, touch: bool) -> Iterator[Link]:
    """A ring with the schema in its header."""
    name = unique_name()
    with shmring.create(name, slots=slots, schema=arrow_batch(nbytes).schema):
        try:
            yield Link(name, nbytes, touch)
        finally:
            shmring.unlink(name)


def send(gate: Gate, link: Link, count: int) -> float:
    """Write the same batch again and again, then the end marker."""
    batch = arrow_batch(link.nbytes)
    with shmring.attach(link.name) as ring, ring.arrow_writer(batch.schema) as writer:
        gate.wait()
        started = time.monotonic()
        for _ in repeat(None, count):
            writer.write(batch)
        writer.end()
        return started


def receive(gate: Gate, link: Link, count: int) -> float:
    """Take every batch in place."""
    rows = 0
    with (
        shmring.attach(link.name) as ring,
        ring.arrow_reader("bench", start="earliest") as reader,
    ):
        gate.wait()
        for batch in reader:
            rows += read_batch(batch, link.touch)
            del batch
        ended = time.monotonic()
    assert rows == count * arrow_batch(link.nbytes).num_rows
    return ended
