"""How long a call waits, and how long between two looks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

__all__ = ["Deadline"]

# Seconds of waiting after which one looks through the whole table, and again so much later.
FIRST_SEARCH, NEXT_SEARCH = 1.0, 10.0


class Deadline:
    """Waits a little longer each time, and never beyond the caller's timeout."""

    def __init__(self, timeout: float | None) -> None:
        if timeout is not None and not timeout >= 0:
            raise ValueError(f"timeout must be None or 0 and more seconds, not {timeout}")
        begun = time.monotonic()
        self._end = math.inf if timeout is None else begun + timeout
        self._search = begun + FIRST_SEARCH
        self.waits = 0

    @property
    def remaining(self) -> float:
        """Seconds until the end."""
        return max(0.0, self._end - time.monotonic())

    def wait(self, sleep: Callable[[float], None], first: float, longest: float) -> bool:
        """Sleep, or return False when the time is over."""
        remaining = self._end - time.monotonic()
        if remaining <= 0:
            return False
        sleep(min(first * 2**self.waits, remaining, longest))
        # More doublings than any wait lasts.
        self.waits = min(self.waits + 1, 60)
        return True

    def search(self) -> bool:
        """Whether it is time to look through the whole table."""
        due = time.monotonic() >= self._search
        if due:
            self._search = time.monotonic() + NEXT_SEARCH
        return due
