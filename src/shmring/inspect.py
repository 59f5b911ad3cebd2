"""Observing a ring without joining it: its queue table and its counters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shmring.common.extras import need_pyarrow
from shmring.errors import BranchNotFound
from shmring.ring.records import BranchLag, BranchRecord, RingStats

if TYPE_CHECKING:
    import pyarrow as pa

    from shmring.ring import Ring

__all__ = ["Row", "filled_rows", "stats", "table"]

# slot, message_id, time in ns, length, reference_count, kind, message
Row = tuple[int, int, int, int, int, int, bytes]

_ROWS_PER_CALL = 4096


def filled_rows(ring: Ring) -> list[Row]:
    """Return the rows of the queue table that hold a message (see Ring.rows), by message_id."""
    rows: list[Row] = []
    # Read some rows at a time: Python raises KeyboardInterrupt only between two calls.
    for first in range(0, ring.slots, _ROWS_PER_CALL):
        rows += ring.rows(first, first + _ROWS_PER_CALL)
    return sorted(rows, key=lambda row: row[1])


def _time(ns: int) -> int | None:
    # A message's time is 0 if the ring has no clock, and negative or huge if the file is damaged.
    return ns if 0 < ns < 2**63 else None


def table(ring: Ring) -> pa.Table:
    """Return the queue table: the messages in the ring, a row for each message.

    Returns
    -------
    table with the columns slot (where the message begins), message_id, time, message (at most its
    first 300 bytes) and reference_count (the number of branches that still have to release the
    message), in order of message_id
    """
    need_pyarrow("the queue table as a pyarrow.Table")
    import pyarrow as pa

    rows = filled_rows(ring)
    columns = {
        pa.field("slot", pa.int64(), nullable=False): [row[0] for row in rows],
        pa.field("message_id", pa.int64()): [row[1] for row in rows],
        pa.field("time", pa.timestamp("ns", "UTC")): [_time(row[2]) for row in rows],
        pa.field("message", pa.binary()): [row[6] for row in rows],
        pa.field("reference_count", pa.int32(), nullable=False): [row[4] for row in rows],
    }
    arrays = [pa.array(values, field.type) for field, values in columns.items()]
    return pa.table(arrays, schema=pa.schema(list(columns)))


def _waiting(ring: Ring, branch: BranchRecord) -> int:
    try:
        return ring.core.waiting(branch["id"])
    except BranchNotFound:  # the branch was dropped meanwhile
        return 0


def stats(ring: Ring) -> RingStats:
    """Return positions and counters.

    Returns
    -------
    dict with the keys of :class:`shmring.RingStats`. ``claimed`` and ``floor`` are sequences, and
    ``used`` is the number of slots between them. ``participants`` and ``holder`` are the results of
    :meth:`Ring.participants` and :meth:`Ring.holder`. ``branches`` is the result of
    :meth:`Ring.branches`, with two more keys for each branch, ``lag`` (in slots) and ``waiting``
    (in messages); the branch that lags most comes first
    """
    claimed = ring.claimed
    branches: list[BranchLag] = [
        {**branch, "lag": max(0, claimed - branch["position"]), "waiting": _waiting(ring, branch)}
        for branch in ring.branches()
    ]
    branches.sort(key=lambda branch: -branch["lag"])
    # Compute the floor: the ring raises its own floor only when a producer needs room.
    held = [b["released"] for b in branches if not b["drop_oldest"]]
    floor = max(ring.floor, min(held)) if held else ring.floor
    return {
        "name": ring.name,
        "path": ring.path,
        "slots": ring.slots,
        "claimed": claimed,
        "floor": floor,
        "used": max(0, claimed - floor),
        "holder": ring.holder(),
        "branches": branches,
        "participants": ring.participants(),
    }
