"""How long a call waits, and how long between two looks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

__all__ = ["Deadline", "Searches"]

# Attempts after the end: a look may have put right what the last attempt missed, and others may be
# faster for a while, but not for ever.
LATE = 100

# Seconds between two looks through the whole table: at first, and at most.
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 10.0


class Deadline:
    """Waits a little longer each time, and never beyond the caller's timeout."""

    def __init__(self, timeout: float | None) -> None:
        if timeout is not None and not timeout >= 0:
            raise ValueError(f"timeout must be None or 0 and more seconds, not {timeout}")
        self._end = math.inf if timeout is None else time.monotonic() + timeout
        self.waits = 0
        self._late = 0

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

    def again(self) -> bool:
        """Whether there is one more attempt after a look that shows what one waits for."""
        if time.monotonic() >= self._end:
            self._late += 1
        return self._late <= LATE


class Searches:
    """When a handle that finds no message looks through the whole table.

    At once where it has found none yet, as who attaches for each pop has no later call. Otherwise
    so long after the last message, however many calls that were, and then less and less often.
    """

    def __init__(self) -> None:
        self._pause = FIRST_PAUSE
        self._due = -math.inf

    def found(self) -> None:
        """Note that there was a message."""
        self._pause = FIRST_PAUSE
        self._due = time.monotonic() + FIRST_PAUSE

    def due(self) -> bool:
        """Whether one looks now; the next time is later."""
        now = time.monotonic()
        if now < self._due:
            return False
        self._due = now + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        return True
