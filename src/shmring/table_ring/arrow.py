"""The rows of a :class:`~shmring.table_ring.TableRing` as an Arrow table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import sqlalchemy as sa

from shmring.table_ring.backend import Message
from shmring.table_ring.schema import Tables


def query(tables: Tables) -> sa.Select[*tuple[Any, ...]]:
    """Select the columns of the Arrow table; a free slot's old message is not shown."""
    columns = tables.slots.c
    held = columns.reference_count > 0
    return sa.select(
        columns.slot,
        sa.case((held, columns.message_id)).label("message_id"),
        columns.time,
        sa.case((held, columns.message)).label("message"),
        columns.reference_count,
    ).order_by(columns.slot)


def to_arrow(rows: Sequence[Sequence[Any]]) -> pa.Table:
    """Convert the rows that :func:`query` selects."""
    kinds: dict[str, pa.DataType] = {
        "slot": pa.int64(),
        "message_id": pa.int64(),
        "time": pa.timestamp("ns", "UTC"),
        "message": pa.binary(),
        "reference_count": pa.int16(),
    }
    columns = list(zip(*rows, strict=True)) or [()] * len(kinds)
    named = zip(kinds.items(), columns, strict=True)
    return pa.table({name: pa.array(values, kind) for (name, kind), values in named})


def to_batch(messages: Sequence[Message]) -> pa.RecordBatch:
    """Convert messages that were popped with their numbers and times."""
    numbers, times, data = zip(*messages, strict=True)
    columns = {
        "message_id": pa.array(numbers, pa.int64()),
        "time": pa.array(times, pa.timestamp("ns", "UTC")),
        "message": pa.array(data, pa.binary()),
    }
    return pa.table(columns).to_batches()[0]
