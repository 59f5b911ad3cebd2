"""Counters of one connection of a table ring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shmring.table_ring.backend import Message

__all__ = [
    "Counters",
    "TableRingStats",
    "count_many",
    "count_none",
    "count_one",
    "count_rows",
]


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


class Counters:
    """The same counters as they change; the thread that holds the handle's lock counts."""

    def __init__(self) -> None:
        self.pushed = self.pushed_bytes = self.popped = self.popped_bytes = 0
        self.full_waits = self.empty_waits = self.retries = 0

    def stats(self) -> TableRingStats:
        """Return the present values."""
        return TableRingStats(**vars(self))


def count_one(data: bytes) -> tuple[int, int]:
    """Return the number of messages taken, and their bytes."""
    return 1, len(data)


def count_many(messages: Sequence[bytes]) -> tuple[int, int]:
    return len(messages), sum(map(len, messages))


def count_rows(rows: Sequence[Message]) -> tuple[int, int]:
    return len(rows), sum(len(data) for _, _, data in rows)


def count_none(_: object) -> tuple[int, int]:
    """Return zeros: nothing is taken before the claim ends."""
    return 0, 0
