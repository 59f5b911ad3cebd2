"""What the core has numbers for, by name: what one chooses, and what a message is."""

from __future__ import annotations

from typing import Any, Literal, get_args

from shmring import _shmring

__all__ = [
    "CLOCKS",
    "KIND_ARROW_BATCH",
    "KIND_ARROW_STREAM",
    "KIND_END",
    "STARTS",
    "WAITS",
    "WHEN_FULL",
    "Clock",
    "Start",
    "Wait",
    "WhenFull",
    "choose",
]

Clock = Literal["coarse", "precise", "off"]
Start = Literal["latest", "earliest"]
Wait = Literal["default", "spin", "yield", "sleep", "futex"]
WhenFull = Literal["block", "raise", "drop"]

KIND_END = 2
KIND_ARROW_BATCH = 3
KIND_ARROW_STREAM = 4


def _numbers(names: Any, prefix: str) -> dict[str, int]:
    return {name: getattr(_shmring, f"{prefix}_{name.upper()}") for name in get_args(names)}


CLOCKS = _numbers(Clock, "CLOCK")
STARTS = _numbers(Start, "START")
WAITS = _numbers(Wait, "WAIT")
WHEN_FULL = _numbers(WhenFull, "FULL")


def choose(table: dict[str, int], what: str, value: object) -> int:
    """The core's number for a name, or ValueError with the names there are."""
    if isinstance(value, str) and value in table:
        return table[value]
    raise ValueError(f"{what} must be one of {', '.join(map(repr, table))}, not {value!r}")
