"""Results of a table ring's calls: leases, counters, and Arrow batches and tables of messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from shmring.table_ring.backend import Backend, Message

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class TableRingStats:
    """Counters of one connection since it was opened.

    Attributes
    ----------
    pushed, pushed_bytes : messages published, and their bytes
    popped, popped_bytes : messages taken, and their bytes
    full_waits, empty_waits : calls that found the ring full or empty at least once
    retries : attempts after the first one of a call
    """

    pushed: int = 0
    pushed_bytes: int = 0
    popped: int = 0
    popped_bytes: int = 0
    full_waits: int = 0
    empty_waits: int = 0
    retries: int = 0


class Lease:
    """A sequence of messages, made by :meth:`shmring.table_ring.TableRing.lease`.

    Attributes
    ----------
    connection : connection with the transaction that pops the messages. Everything else written
        through the connection is committed with the pop, or undone with it
    message_ids : the messages' numbers
    """

    def __init__(self, connection: sa.Connection, messages: Sequence[Message]) -> None:
        self.connection = connection
        self.message_ids = [number for number, _, _ in messages]
        self._messages = messages

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[bytes]:
        return (data for _, _, data in self._messages)

    def __getitem__(self, index: int) -> bytes:
        return self._messages[index][2]

    def batch(self) -> pa.RecordBatch:
        """Return the messages as an Arrow batch: message_id, time, message."""
        return to_batch(self._messages)


def to_batch(messages: Sequence[Message]) -> pa.RecordBatch:
    """Convert messages that were popped with their numbers and times."""
    import pyarrow as pa

    numbers, times, data = zip(*messages, strict=True)
    columns = {
        "message_id": pa.array(numbers, pa.int64()),
        "time": pa.array(times, pa.timestamp("ns", "UTC")),
        "message": pa.array(data, pa.binary()),
    }
    return pa.table(columns).to_batches()[0]


def slots_query(backend: Backend) -> sa.Select[*tuple[Any, ...]]:
    """Return the query of all slots in order, for to_table()."""
    columns = backend.tables.slots.c
    held = columns.reference_count > 0  # a free slot's old message is not shown
    return sa.select(
        columns.slot,
        sa.case((held, columns.message_id)).label("message_id"),
        columns.time,
        sa.case((held, columns.message)).label("message"),
        columns.reference_count,
    ).order_by(columns.slot)


def to_table(rows: Iterable[Sequence[Any]]) -> pa.Table:
    """Convert the rows of slots_query()."""
    import pyarrow as pa

    kinds: dict[str, pa.DataType] = {
        "slot": pa.int64(),
        "message_id": pa.int64(),
        "time": pa.timestamp("ns", "UTC"),
        "message": pa.binary(),
        "reference_count": pa.int16(),
    }
    found = list(zip(*rows, strict=True)) or [()] * len(kinds)
    named = zip(kinds.items(), found, strict=True)
    return pa.table({name: pa.array(values, kind) for (name, kind), values in named})
