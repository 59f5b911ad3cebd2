"""What a request costs in a sidecar's worker beside the function; and what its parts cost alone.

Run as a program it is what callgrind counts, and it prints its CPU time in nanoseconds:
``python worker_request.py WORK NAME ROWS REQUESTS ROUNDS``.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa

import shmring
from shmring.arrow.batches import BatchEncoder
from shmring.sidecars.wire import (
    KIND_REPLY,
    KIND_REQUEST,
    WORKERS_BRANCH,
    Head,
    request_ring_name,
)
from shmring.sidecars.worker import Worker

__all__ = ["MARK", "WORKS"]

MARK = "getloadavg"  # of libc: counting begins with it
WARM = 500  # requests until the interpreter has specialised its code


class Requests:
    """Two rings in one process: requests lie ready in one, and the other one has room for answers.

    Parameters
    ----------
    count, rounds : so many requests, so often; the time between two rounds does not count
    """

    def __init__(self, name: str, rows: int, count: int, rounds: int) -> None:
        column = pa.array(range(rows), pa.int64())
        self.batch = pa.record_batch({"x": column, "y": column.cast(pa.float64())})
        self.encoder = BatchEncoder(self.batch.schema)
        self.nbytes: int = pa.ipc.get_record_batch_size(self.batch)
        slots = 1 << (max(count, WARM) * (self.nbytes + 2048) // 300).bit_length()
        self.requests = shmring.create(request_ring_name(name), slots=slots, temporary=True)
        self.answers = shmring.create(f"{name}-answers", slots=slots, temporary=True)
        self.answered = self.answers.consumer("client", start="earliest")
        self._asked = self.requests.producer()
        self._count = count
        self._rounds = rounds
        self._left = iter(range(WARM - 1, -1, -1))
        self._warm = False
        self._begun = self._spent = 0
        self._fill(WARM)

    def _fill(self, count: int) -> None:
        for number in range(count):
            self.encoder.push(
                self._asked,
                self.batch,
                self.nbytes,
                prefix=Head.of(number, str(self.answers.name)).pack(),
                kind=KIND_REQUEST,
                timeout=0,
            )

    def function(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """What the worker calls: it returns the batch; the last call ends the process."""
        if not next(self._left):
            self._next_round()
        return batch

    def _next_round(self) -> None:
        if self._warm:
            self._spent += time.process_time_ns() - self._begun
            self._rounds -= 1
        if not self._rounds:
            print(self._spent, flush=True)
            self.requests.unlink()
            self.answers.unlink()
            os._exit(0)
        self._warm = True
        while self.answered.lag:
            self.answered.lease(timeout=0).release()
        self._fill(self._count)
        self._left = iter(range(self._count - 1, -1, -1))
        self._begun = time.process_time_ns()
        os.getloadavg()


def _worker(it: Requests, name: str) -> None:
    ring = shmring.attach(request_ring_name(name))
    Worker(it.function, "function", ring, os.getppid()).run()


def _function(it: Requests, name: str) -> None:
    del name
    for _ in itertools.repeat(None):
        it.function(it.batch)


def _arrow(it: Requests, name: str) -> None:
    """Pyarrow's part: the arrays are exported and imported."""
    del name
    array = ctypes.create_string_buffer(80)  # a struct ArrowArray
    address = ctypes.addressof(array)
    batch: Any = it.batch
    while True:
        batch._export_to_c(address)
        it.function(pa.RecordBatch._import_from_c(address, batch.schema))  # pyright: ignore[reportAttributeAccessIssue]


def _ring(it: Requests, name: str) -> None:
    """The ring's part: a request is taken, an answer of the same bytes is published."""
    del name
    inbox = it.requests.consumer(WORKERS_BRANCH, start="earliest")
    out = it.answers.producer()
    with inbox.lease(timeout=0) as first:
        answer = bytes(len(first))
    while True:
        it.function(it.batch)
        lease = inbox.lease(timeout=0)
        out.push(answer, kind=KIND_REPLY, timeout=0)
        lease.release()


WORKS: dict[str, Callable[[Requests, str], None]] = {
    "worker": _worker,
    "function": _function,
    "arrow": _arrow,
    "ring": _ring,
}


if __name__ == "__main__":
    work, name, *numbers = sys.argv[1:]
    WORKS[work](Requests(name, *map(int, numbers)), name)
