"""Checks of the arguments of a ring's calls, and names for the core's numbers.

This module is the only place in Python code that names the choices of an option (for example, the
wait strategies) and the kinds of messages. The options of the command line and the error messages
take the names from here.
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Iterable
from operator import index
from typing import Any, Literal, SupportsIndex, cast, get_args

from shmring import _shmring
from shmring._shmring import AT_SEQUENCE, KIND_ARROW_BATCH, KIND_ARROW_STREAM

Clock = Literal["coarse", "precise", "off"]
Start = Literal["earliest", "latest"]
# CHANGE: edit this for a new wait strategy
Wait = Literal["default", "spin", "yield", "sleep", "futex"]
WhenFull = Literal["block", "raise", "drop"]

MOST_IN_FLIGHT = 2**31 - 1  # limit of the option `in_flight`: an int in Java
LEAST_SLOTS, _MOST_SLOTS = 1024, 2**31  # the core's limits
MAX_BRANCH_BYTES = 47  # limit of a branch's name in the core

ARROW_KINDS = (KIND_ARROW_BATCH, KIND_ARROW_STREAM)
DEFAULT_START: Start = "earliest"


def _numbers(names: Any, prefix: str) -> dict[str, int]:
    return {name: getattr(_shmring, prefix + name.upper()) for name in get_args(names)}


CLOCKS = _numbers(Clock, "CLOCK_")
STARTS = _numbers(Start, "")
WAITS = _shmring.WAITS
WHEN_FULL = _numbers(WhenFull, "FULL_")


def choose(table: dict[str, int], what: str, value: object) -> int:
    """Return the core's number for a name; the text of the ValueError lists the valid names."""
    if isinstance(value, str) and value in table:
        return table[value]
    raise ValueError(f"{what} must be one of {', '.join(map(repr, table))}, not {value!r}")


def _index(what: str, value: object) -> int:
    if not isinstance(value, SupportsIndex) or isinstance(value, bool):
        raise TypeError(f"{what} must be an int, not {value!r}")
    return index(value)


def integer(what: str, value: object, least: int = 0, most: int = 2**63 - 1) -> int:
    """Return the value if it is an integer (Python's or numpy's) in the range, else raise."""
    number = _index(what, value)
    if not least <= number <= most:
        raise ValueError(f"{what} must be from {least} to {most}, not {value}")
    return number


def slots_of(what: str, value: object) -> int:
    """Check a ring's number of slots before the ring is made."""
    slots = _index(what, value)
    if not LEAST_SLOTS <= slots <= _MOST_SLOTS or slots & (slots - 1):
        text = f"{what} must be a power of two from {LEAST_SLOTS} to {_MOST_SLOTS}, not {value}"
        raise ValueError(text)
    return slots


def seconds_of(what: str, value: float, most: float = math.inf) -> float:
    """Check a time in seconds; refuse nan, with which a wait would never end."""
    return _time(what, value, most, "seconds")


def milliseconds_of(what: str, value: float) -> float:
    """Check a time in milliseconds, which must be finite."""
    return _time(what, value, sys.float_info.max, "milliseconds")


def _time(what: str, value: float, most: float, unit: str) -> float:
    if type(value) is not float and (isinstance(value, bool) or not hasattr(value, "__float__")):
        raise TypeError(f"{what} must be a number of {unit}, not {value!r}")
    # float(): a numpy number would warn if the limit does not fit its type.
    if not 0 <= float(value) <= most:
        raise ValueError(f"{what} must be from 0 to {most:g} {unit}, not {value}")
    return value


def number_of(text: str) -> int:
    """Parse a number as people write it: 65536, 1_000, 64k or 64M (k is 1024, M is 1024 k)."""
    match = re.fullmatch(r"([0-9][0-9_,]*)([kKMGT]?)(?:i?B)?", text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no number such as 65536 or 64M")
    digits, letter = match.groups()
    power = " kMGT".index(letter.replace("K", "k") or " ")
    return int(re.sub("[_,]", "", digits)) * 1024**power


def start_of(start: object) -> tuple[int, int]:
    if isinstance(start, int) and not isinstance(start, bool):
        return AT_SEQUENCE, integer("start", start)
    if isinstance(start, str) and start in STARTS:
        return STARTS[start], 0
    names = ", ".join(map(repr, STARTS))
    raise ValueError(f"start must be one of {names}, or a sequence, not {start!r}")


def branch_name(branch: object) -> str:
    if not isinstance(branch, str):
        raise TypeError(f"a branch's name must be a str, not {branch!r}")
    if "\0" in branch:
        raise ValueError(f"a branch's name cannot hold a null character: {branch!r}")
    return branch


def can_name_a_branch(name: str) -> bool:
    """Return whether the core would make a branch of this name."""
    return 1 <= len(os.fsencode(name)) <= MAX_BRANCH_BYTES


def branch_names(what: str, names: object) -> tuple[str, ...]:
    """Check names that branches can have; refuse a single str, whose items would be characters."""
    if isinstance(names, (str, bytes)) or not isinstance(names, Iterable):
        raise TypeError(f"{what} must be a tuple of names, not {names!r}")
    checked = tuple(branch_name(name) for name in cast("Iterable[object]", names))
    for name in checked:
        if not can_name_a_branch(name):
            raise ValueError(
                f"{what}: a branch's name has 1 to {MAX_BRANCH_BYTES} bytes, not {name!r}"
            )
    return checked


def schema_bytes(schema: object) -> bytes | None:
    if schema is None:
        return None
    serialize = getattr(schema, "serialize", None)
    if serialize is None:
        raise TypeError(f"schema must be a pyarrow.Schema, not {schema!r}")
    return bytes(serialize())
