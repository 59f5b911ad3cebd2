"""Looking on: the queue table and the counters of a ring, without joining it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from shmring.ring import Ring

__all__ = ["stats", "table"]

TABLE_SCHEMA = pa.schema(
    [
        pa.field("slot", pa.int64(), nullable=False),
        pa.field("message_id", pa.int64()),
        pa.field("time", pa.timestamp("ns", tz="UTC")),
        pa.field("message", pa.binary()),
        pa.field("reference_count", pa.int32(), nullable=False),
    ]
)

COUNTERS = (
    "messages",
    "bytes",
    "full_waits",
    "empty_waits",
    "contended",
    "recovered",
    "lapsed",
    "dropped",
)

_ROWS_PER_CALL = 4096


def table(ring: Ring, *, filled: bool = True, capacity: int = 300) -> pa.Table:
    """The ring as the classic queue table.

    Parameters
    ----------
    filled : only slots in which a message begins that has not been overwritten;
        False gives every slot, with nulls where there is none
    capacity : bytes of each message to copy at most

    Returns
    -------
    table with the columns slot, message_id, time, message, reference_count (the
    branches that still have to release the message), in order of message_id
    (with ``filled=False`` in order of slot)
    """
    rows: list[tuple[int, int, int, int, int, int, bytes]] = []
    for first in range(0, ring.slots, _ROWS_PER_CALL):
        rows += ring.rows(first, first + _ROWS_PER_CALL, capacity)
    if filled:
        rows.sort(key=lambda row: row[1])
        slots = [row[0] for row in rows]
    else:
        slots = list(range(ring.slots))
    found = {row[0]: row for row in rows}
    picked = [found.get(slot) for slot in slots]
    columns: list[list[Any]] = [
        slots,
        [row[1] if row else None for row in picked],
        [row[2] or None if row else None for row in picked],
        [row[6] if row else None for row in picked],
        [row[4] if row else 0 for row in picked],
    ]
    return pa.table(
        [pa.array(c, f.type) for c, f in zip(columns, TABLE_SCHEMA, strict=True)],
        schema=TABLE_SCHEMA,
    )


def stats(ring: Ring) -> dict[str, Any]:
    """Positions and counters as they stand.

    Returns
    -------
    dict with ``claimed`` and ``floor`` (sequences), ``used`` (slots still held),
    ``slots``, ``branches`` and ``participants`` (as given by
    :meth:`Ring.branches` and :meth:`Ring.seats`, with the lag of each branch in slots
    behind the producers) and ``totals`` of the participants' counters by role
    """
    claimed = ring.claimed
    floor = ring.floor
    seats = ring.seats()
    branches = [
        branch | {"lag": max(0, claimed - branch["position"])} for branch in ring.branches()
    ]
    return {
        "name": ring.name,
        "path": ring.path,
        "slots": ring.slots,
        "claimed": claimed,
        "floor": floor,
        "used": claimed - floor,
        "branches": branches,
        "participants": seats,
        "totals": {
            role: {c: sum(s[c] for s in seats if s["role"] == role) for c in COUNTERS}
            for role in ("producer", "member")
        },
    }
