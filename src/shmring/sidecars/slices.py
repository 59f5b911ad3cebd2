"""A request of several batches: its slices, and their answers, several as one."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

import pyarrow as pa

from shmring.sidecars.joint import joined

__all__ = ["slices", "together", "welcome"]

_WORK = 2_000_000  # nanoseconds that a request should take at most
# Beyond so many a request's own cost hardly counts.
_MOST_BATCHES = 64
# Answers that have waited for others for so long, or have so many bytes, wait no longer: the client
# is to see that something happens.
_LONGEST_WAIT = 0.1
_MOST_BYTES = 1 << 20


def slices(batch: pa.RecordBatch, rows: int) -> list[pa.RecordBatch]:
    """What the function is to be called with, so many rows at a time; 0: all."""
    if not 0 < rows < batch.num_rows:
        return [batch]
    return [batch.slice(first, rows) for first in range(0, batch.num_rows, rows)]


def welcome(batches: int, nanoseconds: int) -> int:
    """How many batches a request may well have, where so many have taken so long."""
    return min(max(1, _WORK * batches // max(1, nanoseconds)), _MOST_BATCHES)


def together(answers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The answers, each run of one schema as one batch.

    If one cannot be had, those before it come first.
    """
    held: list[pa.RecordBatch] = []
    nbytes = 0
    since = time.monotonic()
    try:
        for answer in answers:
            if held and not answer.schema.equals(held[0].schema, check_metadata=True):
                yield from _as_one(held)
                held, nbytes, since = [], 0, time.monotonic()
            held.append(answer)
            nbytes += _size(answer)
            if nbytes >= _MOST_BYTES or time.monotonic() - since > _LONGEST_WAIT:
                yield from _as_one(held)
                held, nbytes, since = [], 0, time.monotonic()
    except GeneratorExit:
        raise
    except BaseException:  # sys.exit() in the user's function too
        yield from _as_one(held)
        raise
    yield from _as_one(held)


def _size(batch: pa.RecordBatch) -> int:
    try:
        return batch.nbytes
    except pa.ArrowException:  # a type whose slices pyarrow cannot measure
        return batch.get_total_buffer_size()


def _as_one(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    if len(batches) < 2 or not batches[0].num_columns:
        return batches
    try:
        return [joined(batches)]
    except (ValueError, pa.ArrowException):  # none with a row, or types that cannot be joined
        return batches
