"""Several requests as one batch: which ones, and how the answer is split."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

import pyarrow as pa

from shmring.sidecars.batching import Batching

__all__ = ["Gathering", "split"]


class HasBatch(Protocol):
    """A request."""

    @property
    def batch(self) -> pa.RecordBatch: ...


Request = TypeVar("Request", bound=HasBatch)


class Gathering(Generic[Request]):
    """Requests that wait for others."""

    def __init__(self, batching: Batching) -> None:
        self._batching = batching
        self._requests: list[Request] = []
        self._rows = 0
        self._due = 0.0

    def __bool__(self) -> bool:
        return bool(self._requests)

    @property
    def is_full(self) -> bool:
        return self._rows >= self._batching.rows

    @property
    def left(self) -> float:
        """Seconds that the requests may still wait."""
        return max(0.0, self._due - time.monotonic())

    def takes(self, batch: pa.RecordBatch) -> bool:
        """Whether the batch can be joined to what is here."""
        if not self._requests:
            return True
        return (
            batch.num_columns > 0
            and self._rows + batch.num_rows <= self._batching.rows
            # Their clients want answers of one type, too: the metadata tells.
            and batch.schema.equals(self._requests[0].batch.schema, check_metadata=True)
        )

    def add(self, request: Request) -> None:
        if not self._requests:
            self._due = time.monotonic() + self._batching.wait
        self._requests.append(request)
        self._rows += request.batch.num_rows

    def take(self) -> list[Request]:
        """All of them; they wait no longer."""
        taken, self._requests, self._rows = self._requests, [], 0
        return taken


def split(parts: Sequence[pa.RecordBatch], rows: Sequence[int]) -> list[list[pa.RecordBatch]]:
    """An answer, cut into so many rows each; there is at least one."""
    table = pa.Table.from_batches(parts)
    first = 0
    cut: list[list[pa.RecordBatch]] = []
    for count in rows:
        cut.append(table.slice(first, count).to_batches() or [parts[0].slice(0, 0)])
        first += count
    return cut
