"""What one connection of a table ring did."""

from __future__ import annotations

import threading
from dataclasses import dataclass, fields

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
    """Counts for all threads of a handle."""

    def __init__(self) -> None:
        self._counts = dict.fromkeys((field.name for field in fields(TableRingStats)), 0)
        self._lock = threading.Lock()

    @property
    def stats(self) -> TableRingStats:
        with self._lock:
            return TableRingStats(**self._counts)

    def add(self, **added: int) -> None:
        with self._lock:
            for name, count in added.items():
                self._counts[name] += count
