"""Checks whether the content of a slot can be the ring's own."""

from __future__ import annotations

from shmring.errors import Damaged
from shmring.table_ring.backend import Peek, Which
from shmring.table_ring.schema import Layout

__all__ = ["check_message", "check_slot"]


def check_slot(peek: Peek, which: Which, name: str) -> None:
    """Raise if the slot is missing, or its holders are not subscribers of the ring."""
    if peek.reference_count is None or peek.holders is None:
        raise Damaged(
            f"table ring {name!r} lost a row: the slot of the next {which} is missing"
            f" from table {name}; if the ring is unlogged and its server crashed, attach"
            " again"
        )
    holders = peek.holders & (1 << 64) - 1
    if peek.reference_count != holders.bit_count() or peek.holders & ~peek.known:
        raise Damaged(
            f"table {name} says of the slot of number {peek.number} that"
            f" {peek.reference_count} subscribers hold the message, and names"
            f" {holders.bit_count()} (holders {holders:#x}, the ring's are"
            f" {peek.known & (1 << 64) - 1:#x}); another program wrote to the table"
        )


def check_message(peek: Peek, name: str, layout: Layout) -> None:
    """Raise if a message waits and its slot holds another number."""
    assert peek.number is not None
    # A later lap: others moved on between the reads of cursor and slot, so the caller looks again.
    ahead = (peek.message_id or 0) - peek.number
    passed = ahead > 0 and ahead % layout.slots == 0
    if peek.message_id != peek.number and not passed:
        raise Damaged(
            f"table ring {name!r}: message {peek.number} should be in slot"
            f" {layout.place(peek.number)}, which holds {peek.message_id}; another program"
            " wrote to the table"
        )
