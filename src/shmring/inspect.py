"""Observing a ring without joining it: its queue table and its counters."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, cast

from shmring._shmring import SLOT_BYTES
from shmring.errors import BranchNotFound
from shmring.extras import need_pyarrow
from shmring.records import BranchLag, BranchRecord, Counters, ParticipantRecord, RingStats

if TYPE_CHECKING:
    import pyarrow as pa

    from shmring.ring import Ring

__all__ = ["Row", "filled_rows", "held_since", "stats", "table"]

# slot, message_id, time in ns, length, reference_count, kind, message
Row = tuple[int, int, int, int, int, int, bytes]

_ROWS_PER_CALL = 4096


def filled_rows(ring: Ring, capacity: int = SLOT_BYTES) -> list[Row]:
    """The rows of the queue table that hold a message, as in :meth:`Ring.rows`, by message_id."""
    rows: list[Row] = []
    for first in range(0, ring.slots, _ROWS_PER_CALL):  # in several calls, so that Ctrl-C works
        rows += ring.rows(first, first + _ROWS_PER_CALL, capacity)
    return sorted(rows, key=lambda row: row[1])


def _time(ns: int) -> int | None:
    return ns if 0 < ns < 2**63 else None  # the ring keeps no time, or the time is damaged


def table(ring: Ring, *, filled: bool = True, capacity: int = SLOT_BYTES) -> pa.Table:
    """Return the ring as the classic queue table.

    Parameters
    ----------
    filled : only the slots in which a message begins; False gives every slot, with nulls in the
        others
    capacity : the most bytes to copy of each message

    Returns
    -------
    table with the columns slot, message_id, time, message, reference_count (the
    branches that still have to release the message), in order of message_id
    (with ``filled=False`` in order of slot)
    """
    need_pyarrow("the queue table as a pyarrow.Table")
    import pyarrow as pa

    rows = filled_rows(ring, capacity)
    slots = [row[0] for row in rows] if filled else list(range(ring.slots))
    found = {row[0]: row for row in rows}
    picked = [found.get(slot) for slot in slots]
    columns: dict[str, tuple[list[Any], pa.DataType]] = {
        "slot": (slots, pa.int64()),
        "message_id": ([row[1] if row else None for row in picked], pa.int64()),
        "time": ([_time(row[2]) if row else None for row in picked], pa.timestamp("ns", "UTC")),
        "message": ([row[6] if row else None for row in picked], pa.binary()),
        "reference_count": ([row[4] if row else 0 for row in picked], pa.int32()),
    }
    required = ("slot", "reference_count")
    return pa.table(
        [pa.array(values, kind) for values, kind in columns.values()],
        schema=pa.schema(
            [
                pa.field(name, kind, nullable=name not in required)
                for name, (_, kind) in columns.items()
            ]
        ),
    )


def held_since(ring: Ring, branches: Sequence[BranchRecord]) -> int:
    """The lowest sequence still held; the ring's own floor moves only for a producer's need."""
    floor = ring.floor
    held = [b["released"] for b in branches if not b["drop_oldest"]]
    return max(floor, min(held)) if held else floor


def _waiting(ring: Ring, branch: BranchRecord) -> int:
    try:
        return ring.core.waiting(branch["id"])
    except BranchNotFound:  # it was dropped meanwhile
        return 0


def stats(ring: Ring) -> RingStats:
    """Return positions and counters.

    Returns
    -------
    dict with ``claimed`` and ``floor`` (sequences), ``used`` (slots still held),
    ``slots``, ``branches`` and ``participants`` (as given by
    :meth:`Ring.branches` and :meth:`Ring.participants`, with the lag of each branch in slots
    behind the producers and in messages; the branch that lags most first), ``holder`` (as given by
    :meth:`Ring.holder`) and ``totals`` of the participants' counters by role
    """
    claimed = ring.claimed
    participants = ring.participants()
    branches: list[BranchLag] = [
        {**branch, "lag": max(0, claimed - branch["position"]), "waiting": _waiting(ring, branch)}
        for branch in ring.branches()
    ]
    branches.sort(key=lambda branch: -branch["lag"])
    floor = held_since(ring, branches)
    return {
        "name": ring.name,
        "path": ring.path,
        "slots": ring.slots,
        "claimed": claimed,
        "floor": floor,
        "used": max(0, claimed - floor),
        "holder": ring.holder(),
        "branches": branches,
        "participants": participants,
        "totals": {
            "producer": _total(participants, "producer"),
            "consumer": _total(participants, "consumer"),
        },
    }


def _total(
    participants: list[ParticipantRecord], role: Literal["producer", "consumer"]
) -> Counters:
    names = tuple(Counters.__annotations__)
    those = [itemgetter(*names)(each) for each in participants if each["role"] == role]
    sums = map(sum, zip(*those, strict=True)) if those else [0] * len(names)
    return cast("Counters", dict(zip(names, sums, strict=True)))
