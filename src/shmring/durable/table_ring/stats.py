"""What one connection of a table ring did."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Counters", "TableRingStats"]


@dataclass(frozen=True)
class TableRingStats:
    """What one connection did since it was opened.

    Attributes
    ----------
    pushed, pushed_bytes : messages published, and their bytes
    popped, popped_bytes : messages taken, and their bytes
    full_waits, empty_waits : calls that met a full or an empty ring at least once
    retries : attempts beyond the first of a call
    """

    pushed: int = 0
    pushed_bytes: int = 0
    popped: int = 0
    popped_bytes: int = 0
    full_waits: int = 0
    empty_waits: int = 0
    retries: int = 0


class Counters:
    """The same while they are counted, by whoever holds the handle's lock."""

    def __init__(self) -> None:
        self.pushed = self.pushed_bytes = self.popped = self.popped_bytes = 0
        self.full_waits = self.empty_waits = self.retries = 0

    def stats(self) -> TableRingStats:
        """Return them as they are now."""
        return TableRingStats(**vars(self))
