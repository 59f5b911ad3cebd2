"""Several requests as one batch: which ones, and how the answer is split."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeVar

import pyarrow as pa

from shmring.arguments import at_least_one

__all__ = ["Batching", "Gathering", "WrongRows", "split"]

_USUAL_WAIT = 5.0  # ms


class WrongRows(ValueError):
    """The function has not answered each row with one."""


@dataclass(frozen=True, slots=True)
class Batching:
    """How large a joint batch becomes, and how long its first request waits for others.

    Parameters
    ----------
    rows : at most, unless a single request has more
    wait : seconds
    """

    rows: int
    wait: float

    @classmethod
    def of(cls, max_batch_rows: int | None, max_wait_ms: float | None) -> Self | None:
        """What the user gave; None where each request is to be worked on alone.

        Raises
        ------
        TypeError, ValueError : a number is none, or too small, or only the second one was given
        """
        if max_batch_rows is None:
            if max_wait_ms is not None:
                raise ValueError("max_wait_ms is how long requests wait for max_batch_rows")
            return None
        rows = at_least_one("max_batch_rows", max_batch_rows)
        wait = _USUAL_WAIT if max_wait_ms is None else max_wait_ms
        if not 0 <= wait < float("inf"):
            raise ValueError(f"max_wait_ms must be a time of 0 or more, not {wait:g}")
        return cls(rows, wait / 1000)

    def as_arguments(self) -> list[str]:
        """For a worker's command line."""
        return [str(self.rows), str(self.wait * 1000)]

    @classmethod
    def from_arguments(cls, rows: str, wait: str) -> Self:
        """What as_arguments() says."""
        return cls(int(rows), float(wait) / 1000)

    def check(self, target: str, rows: int, answered: int) -> None:
        """Whether as many rows came out as went in.

        Raises
        ------
        WrongRows : they did not
        """
        if rows != answered:
            raise WrongRows(
                f"{target} answered {rows} rows with {answered}: with max_batch_rows it is given "
                f"the rows of several requests, and must return one for each, in their order"
            )


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
