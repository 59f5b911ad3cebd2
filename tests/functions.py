"""Functions that the tests let sidecars run."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc


def identity(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def double(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"x": pc.multiply(batch.column(0), 2)})


def with_pid(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.append_column("pid", pa.array([os.getpid()] * batch.num_rows))


def twice(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    yield batch
    yield batch


def nothing(batch: pa.RecordBatch) -> None:
    return None


def fail_on_seven(batch: pa.RecordBatch) -> pa.RecordBatch:
    if 7 in batch.column(0).to_pylist():
        raise ZeroDivisionError("seven is not allowed")
    return batch


def die_once(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Killed in the middle of the first request that any worker gets."""
    marker = os.environ["SHMRING_TEST_MARKER"]
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return batch
    os.kill(os.getpid(), signal.SIGKILL)
    return batch


def die_always(batch: pa.RecordBatch) -> pa.RecordBatch:
    os.kill(os.getpid(), signal.SIGKILL)
    return batch


def slow(batch: pa.RecordBatch) -> pa.RecordBatch:
    time.sleep(0.2)
    return batch


class Model:
    """Costs something to load, then answers with what it has loaded."""

    def __init__(self) -> None:
        self.weight = 3

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch({"x": pc.multiply(batch.column(0), self.weight)})
