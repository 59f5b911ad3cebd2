"""Producers of streams: each runs in a process of its own, on a schedule or as fast as it can."""

from __future__ import annotations

import random
import struct
import time
from typing import Any

from benchmarks.payload import MESSAGE_BYTES
from benchmarks.processes import Gate

__all__ = ["feed_batches", "feed_times"]

_PATIENCE = 60.0


def _wait_for_branches(ring: Any, count: int) -> None:
    """Until the query reads: what is sent before is not held for it."""
    deadline = time.monotonic() + _PATIENCE
    while len(ring.branches()) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"no reader came to ring {ring.name} in {_PATIENCE:g} s")
        time.sleep(0.01)


def feed_batches(
    gate: Gate, name: str, columns: dict[str, Any], seconds: float, rate: float
) -> int:
    """Write the same batch for so long; how many rows that were.

    Parameters
    ----------
    columns : of the batch
    rate : rows a second; infinity is as fast as the ring takes them
    """
    import pyarrow as pa

    import shmring

    with shmring.attach(name) as ring, ring.arrow_writer() as writer:
        arrays = [pa.array(columns[f.name], f.type) for f in writer.schema]
        batch = pa.record_batch(arrays, schema=writer.schema)
        _wait_for_branches(ring, 1)
        gate.wait()
        began = time.monotonic()
        rows = 0
        while (now := time.monotonic() - began) < seconds:
            early = rows / rate - now
            if early > 0:
                time.sleep(early)
            writer.write(batch, timeout=_PATIENCE)
            rows += batch.num_rows
    return rows


def feed_times(gate: Gate, name: str, seconds: float, rate: float) -> int:
    """Push single messages that begin with the time; how many there were.

    The gaps are random, and the same in each run: on an even beat of 50 us a reader that spins as
    long before it sleeps never sleeps.
    """
    import shmring

    rest = bytes(MESSAGE_BYTES - 8)
    chance = random.Random(1)
    gaps = [int(chance.expovariate(rate) * 1e9) for _ in range(int(seconds * rate))]
    with shmring.attach(name) as ring, ring.producer() as producer:
        _wait_for_branches(ring, 2)  # the query's, and that of its reader
        gate.wait()
        due = time.monotonic_ns()
        for gap in gaps:
            due += gap
            while (now := time.monotonic_ns()) < due:
                pass
            producer.push(struct.pack("<q", now) + rest, timeout=_PATIENCE)
    return len(gaps)
