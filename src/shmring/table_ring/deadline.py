"""How long a call waits, and how long it pauses between two looks at the ring."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from shmring.arguments import seconds_of

__all__ = ["Deadline", "Searches"]

# Attempts after the deadline: a look may have repaired what the last attempt missed, and other
# connections may be faster for a while, but not for ever.
LATE = 100

# Seconds between two searches of the whole table: at first, and at most.
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 10.0


class Deadline:
    """Waits a little longer each time, but never beyond the caller's timeout."""

    def __init__(self, timeout: float | None) -> None:
        self._end = math.inf
        if timeout is not None:
            self._end = time.monotonic() + seconds_of("timeout", timeout)
        self.waits = 0
        self._late = 0

    @property
    def remaining(self) -> float:
        """Seconds until the end."""
        return max(0.0, self._end - time.monotonic())

    def wait(self, sleep: Callable[[float], None], first: float, longest: float) -> bool:
        """Sleep, or return False if the time is over."""
        remaining = self._end - time.monotonic()
        if remaining <= 0:
            return False
        sleep(min(first * 2**self.waits, remaining, longest))
        # No wait lasts for more doublings.
        self.waits = min(self.waits + 1, 60)
        return True

    def again(self) -> bool:
        """Whether one more attempt is left, after a look that shows a message or a free slot."""
        if time.monotonic() >= self._end:
            self._late += 1
        return self._late <= LATE


class Searches:
    """When a handle that finds no message searches the whole table.

    A handle that has found no message yet searches at once: a program that attaches for each pop
    makes no later call. Other handles search some time after the last message, whatever the
    number of calls, and then less and less often.
    """

    def __init__(self) -> None:
        self._pause = FIRST_PAUSE
        self._due = -math.inf

    def found(self) -> None:
        """Note that there was a message."""
        self._pause = FIRST_PAUSE
        self._due = time.monotonic() + FIRST_PAUSE

    def due(self) -> bool:
        """Whether to search now; this also sets the time of the next search."""
        now = time.monotonic()
        if now < self._due:
            return False
        self._due = now + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        return True
