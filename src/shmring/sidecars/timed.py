"""How long a worker is at a request: its client is told with each piece of the answer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Generic, Self, TypeVar

__all__ = ["Timed"]

Item = TypeVar("Item")


class Timed(Generic[Item]):
    """An iterator that counts how long its items took to make.

    Parameters
    ----------
    items : made as they are asked for
    spent : nanoseconds that went into them before
    """

    def __init__(self, items: Iterator[Item], spent: int = 0) -> None:
        self._items = items
        self._spent = spent

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Item:
        begun = time.perf_counter_ns()
        try:
            return next(self._items)
        finally:
            self._spent += time.perf_counter_ns() - begun

    def spent(self) -> int:
        """Nanoseconds since this was called last."""
        spent, self._spent = self._spent, 0
        return spent
