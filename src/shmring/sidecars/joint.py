"""Several requests as one batch: which ones, how they are joined, and how the answer is split."""

from __future__ import annotations

import time
from collections.abc import Sequence, Sized
from dataclasses import dataclass
from typing import Any, Generic, Protocol, Self, TypeVar

import pyarrow as pa

__all__ = ["Batching", "Gathering", "WrongRows", "combined", "joined", "split", "with_rows"]

_USUAL_WAIT = 5.0  # ms

_WITH_OFFSETS = frozenset(
    kind.id
    for kind in (
        *(pa.string(), pa.large_string(), pa.binary(), pa.large_binary()),
        *(pa.list_(pa.int8()), pa.large_list(pa.int8()), pa.map_(pa.int8(), pa.int8())),
    )
)


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
        ValueError : a number is too small, or only the second one was given
        """
        if max_batch_rows is None:
            if max_wait_ms is not None:
                raise ValueError("max_wait_ms is how long requests wait for max_batch_rows")
            return None
        if max_batch_rows < 1:
            raise ValueError(f"max_batch_rows must be at least 1, not {max_batch_rows}")
        wait = _USUAL_WAIT if max_wait_ms is None else max_wait_ms
        if not 0 <= wait < float("inf"):
            raise ValueError(f"max_wait_ms must be a time of 0 or more, not {wait:g}")
        return cls(max_batch_rows, wait / 1000)

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
Part = TypeVar("Part", bound=Sized)


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


def combined(table: Any) -> Any:
    """The table with each column copied into as few arrays as hold it; one chunk at most is empty.

    What a function answers may have inner arrays of no rows without offsets, over which
    combine_chunks() crashes; written and read again they have some.
    """
    kinds = enumerate(table.schema.types)
    columns = [i for i, kind in kinds if any(map(_has_offsets, _inner(kind)))]
    if any(_lacks_offsets(chunk) for i in columns for chunk in table.column(i).chunks):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        table = pa.ipc.open_stream(sink.getvalue()).read_all()
    return table.combine_chunks()


def with_rows(parts: Sequence[Part]) -> Sequence[Part]:
    """Those that are to be put together: an empty one may lack what combine_chunks() looks at."""
    return [part for part in parts if len(part)] or parts[:1]


def _inner(kind: Any) -> list[Any]:
    if isinstance(kind, pa.BaseExtensionType):
        return _inner(kind.storage_type)
    fields: Any = kind
    if pa.types.is_struct(kind) or pa.types.is_union(kind):
        return [fields.field(i).type for i in range(fields.num_fields)]
    if pa.types.is_map(kind):
        return [kind.key_type, kind.item_type]
    return [kind.value_type] if kind.num_fields else []


def _has_offsets(kind: Any) -> bool:
    """Whether arrays of this type have offsets, or some within them."""
    if isinstance(kind, pa.BaseExtensionType):
        return _has_offsets(kind.storage_type)
    return kind.id in _WITH_OFFSETS or any(map(_has_offsets, _inner(kind)))


def _lacks_offsets(array: Any) -> bool:
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return _lacks_offsets(array.storage)
    if kind.id in _WITH_OFFSETS and len(array) == 0 and array.buffers()[1] is None:
        return True
    if pa.types.is_struct(kind) or pa.types.is_union(kind):
        return any(_lacks_offsets(array.field(i)) for i in range(kind.num_fields))
    return kind.num_fields > 0 and _lacks_offsets(array.values)


def joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """The rows of all batches, which have one schema, in one."""
    table = combined(pa.Table.from_batches(with_rows(batches)))
    parts = table.to_batches()
    if len(parts) != 1:  # none with a row, or more text than fits one column
        raise ValueError(f"{table.num_rows} rows make {len(parts)} batches")
    return parts[0]


def split(parts: Sequence[pa.RecordBatch], rows: Sequence[int]) -> list[list[pa.RecordBatch]]:
    """An answer, cut into so many rows each; there is at least one."""
    table = pa.Table.from_batches(parts)
    first = 0
    cut: list[list[pa.RecordBatch]] = []
    for count in rows:
        cut.append(table.slice(first, count).to_batches() or [parts[0].slice(0, 0)])
        first += count
    return cut
