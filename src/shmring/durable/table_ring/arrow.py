"""The rows of a :class:`~shmring.durable.table_ring.TableRing` as an Arrow table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import sqlalchemy as sa

from shmring.durable.table_ring.schema import Tables

__all__ = ["query", "to_arrow"]


def query(tables: Tables) -> sa.Select[*tuple[Any, ...]]:
    """Select the columns of the Arrow table; a free slot's old message is not shown."""
    columns = tables.slots.c
    return sa.select(
        columns.slot,
        columns.message_id,
        columns.time,
        sa.case((columns.message_id.is_not(None), columns.message)).label("message"),
        columns.reference_count,
    ).order_by(columns.slot)


def to_arrow(rows: Sequence[Sequence[Any]]) -> pa.Table:
    """Convert the rows that :func:`query` finds."""
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
