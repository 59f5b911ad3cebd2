"""Payloads: 300-byte messages, batches of them, and Arrow batches."""

from __future__ import annotations

import functools
import itertools
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pyarrow as pa

MESSAGE_BYTES = 300
MESSAGE = bytes(i * 7 % 256 for i in range(MESSAGE_BYTES))

# Default of shmring.create(): 19.7 MB of payload.
DEFAULT_SLOTS = 65_536

# Messages in a batched push, and at most in a batched read.
BATCH = 1_024

# Number of this process's PID namespace: a process id says nothing in another namespace.
NAMESPACE = os.stat("/proc/self/ns/pid").st_ino

_numbers = itertools.count()


def unique_name() -> str:
    """A name for a ring, queue or folder of this run; run.py sweeps by its beginning."""
    return f"bench-{os.getpid()}-{NAMESPACE}-{next(_numbers)}"


def rows(count: int = BATCH) -> npt.NDArray[np.uint8]:
    """`count` messages as an array of one row each."""
    return np.frombuffer(MESSAGE * count, np.uint8).reshape(count, MESSAGE_BYTES)


@functools.cache
def block(nbytes: int) -> npt.NDArray[np.uint8]:
    """`nbytes` of messages behind each other."""
    return np.resize(np.frombuffer(MESSAGE, np.uint8), nbytes)


def read_every_byte(data: Any) -> int:
    """Sum a contiguous buffer, whose length is a multiple of four, as 32-bit words."""
    words = np.frombuffer(data, np.uint32)
    return int(np.add.reduce(words, dtype=np.uint32))


@functools.cache
def arrow_batch(nbytes: int) -> pa.RecordBatch:
    """A batch of `nbytes` in two columns without nulls: int64 and float64."""
    import pyarrow as pa

    numbers = np.arange(nbytes // 16)
    return pa.record_batch({"id": numbers, "value": numbers / 7})


def read_batch(batch: pa.RecordBatch, touch: bool) -> int:
    """Reads a batch as a reader does, and returns the number of its rows.

    Parameters
    ----------
    touch : read every byte; otherwise the batch is received and no value looked at
    """
    if touch:
        for column in batch.columns:
            read_every_byte(column.buffers()[1])
    return batch.num_rows
