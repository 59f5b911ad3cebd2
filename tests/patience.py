"""How long a test waits for an event, and how."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

# Seconds that a test waits for an event before it fails: most take milliseconds, a few start a
# Python or a JVM, and all of it may share the machine with ten times as much.
PATIENCE = 120.0


def wait_until(
    condition: Callable[[], object], what: str = "the condition", *, patience: float = PATIENCE
) -> None:
    """Return as soon as `condition()` is true."""
    deadline = time.monotonic() + patience
    clock = threading.Event()
    pause = 0.001
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come true in {patience} s"
        clock.wait(pause)
        pause = min(1.1 * pause, 0.01)  # to look at all processes takes milliseconds itself
