"""A request of several batches: its slices, and their answers, several as one."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

import pyarrow as pa

from shmring.sidecars.combining import joined
from shmring.sidecars.heartbeat import INTERVAL, Heartbeat, Request

_WORK = 2_000_000  # nanoseconds that a request should take at most
# Beyond so many a request's own cost hardly counts.
_MOST_BATCHES = 64
_MOST_BYTES = 1 << 20  # of answers that go as one, and of those that a request should have
SMALL = _MOST_BYTES // _MOST_BATCHES  # bytes of answers whose size bounds no request


def slices(batch: pa.RecordBatch, rows: int) -> list[pa.RecordBatch]:
    """What the function is to be called with, so many rows at a time; 0: all."""
    if not 0 < rows < batch.num_rows:
        return [batch]
    return [batch.slice(first, rows) for first in range(0, batch.num_rows, rows)]


def batches_wanted(batches: int, nanoseconds: int, nbytes: int) -> int:
    """How many batches a request may well have, where so many took so long and gave so much."""
    by_time = _WORK * batches // max(1, nanoseconds)
    by_bytes = _MOST_BYTES * batches // max(1, nbytes)
    return max(1, min(by_time, by_bytes, _MOST_BATCHES))


def in_turn(
    answers: Iterable[Iterator[pa.RecordBatch | None]],
    count: int,
    request: Request,
    heartbeat: Heartbeat,
) -> Iterator[pa.RecordBatch | None]:
    """The answers to the `count` slices of a request, each followed by None."""
    for number, of_slice in enumerate(answers, 1):
        try:
            yield from heartbeat.of(of_slice)
            yield None
            heartbeat.beat()
        except BaseException as error:
            error.add_note(f"in batch {number} of the {count} of {request.head.describe()}")
            raise


def together(answers: Iterable[pa.RecordBatch | None]) -> Iterator[pa.RecordBatch | None]:
    """The answers, each run of one schema as one batch; None, which is a slice's end, stays.

    If one cannot be had, those before it come first.
    """
    held: list[pa.RecordBatch] = []
    nbytes = 0
    since = time.monotonic()
    try:
        for answer in answers:
            if answer is None:
                if held and time.monotonic() - since > INTERVAL:
                    yield from _as_one(held)
                    held, nbytes, since = [], 0, time.monotonic()
                yield None
                continue
            if held and not answer.schema.equals(held[0].schema, check_metadata=True):
                yield from _as_one(held)
                held, nbytes, since = [], 0, time.monotonic()
            held.append(answer)
            # Not answer.nbytes: it crashes at an inner map of no rows that came without offsets.
            nbytes += pa.ipc.get_record_batch_size(answer)
            if nbytes >= _MOST_BYTES:
                yield from _as_one(held)
                held, nbytes, since = [], 0, time.monotonic()
    except GeneratorExit:
        raise
    except BaseException:  # sys.exit() in the user's function too
        yield from _as_one(held)
        raise
    yield from _as_one(held)


def _as_one(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    if len(batches) < 2 or not batches[0].num_columns:
        return batches
    try:
        return [joined(batches)]
    except (ValueError, pa.ArrowException):  # none with a row, or types that cannot be joined
        return batches
