"""Names for the core's numbers: of options that one chooses, and of kinds of messages.

Python has these names in this module only: options of the command line and error messages are made
from them.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

from shmring import _shmring
from shmring._shmring import KIND_ARROW_BATCH, KIND_ARROW_STREAM

Clock = Literal["coarse", "precise", "off"]
Start = Literal["earliest", "latest"]
# CHANGE: a new wait strategy
Wait = Literal["default", "spin", "yield", "sleep", "futex"]
WhenFull = Literal["block", "raise", "drop"]

ARROW_KINDS = (KIND_ARROW_BATCH, KIND_ARROW_STREAM)
DEFAULT_START: Start = "earliest"


def _numbers(names: Any, prefix: str) -> dict[str, int]:
    return {name: getattr(_shmring, prefix + name.upper()) for name in get_args(names)}


CLOCKS = _numbers(Clock, "CLOCK_")
STARTS = _numbers(Start, "")
WAITS = _numbers(Wait, "WAIT_")
WHEN_FULL = _numbers(WhenFull, "FULL_")


def choose(table: dict[str, int], what: str, value: object) -> int:
    """Return the core's number for a name; the text of the ValueError lists the valid names."""
    if isinstance(value, str) and value in table:
        return table[value]
    raise ValueError(f"{what} must be one of {', '.join(map(repr, table))}, not {value!r}")
