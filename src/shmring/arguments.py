"""Arguments of a ring's calls, checked, as the core takes them."""

from __future__ import annotations

import math
from operator import index
from typing import SupportsFloat, SupportsIndex

from shmring._shmring import AT_SEQUENCE
from shmring.choices import STARTS

__all__ = ["at_least_one", "branch_name", "integer", "patience_ns", "schema_bytes", "start_of"]

_LONGEST_HEAD_START = 60  # seconds


def integer(what: str, value: object, least: int = 0, most: int = 2**63 - 1) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{what} must be an int, not {value!r}")
    if not least <= value <= most:
        raise ValueError(f"{what} must be from {least} to {most}, not {value}")
    return value


def at_least_one(what: str, value: object) -> int:
    """An integer, also numpy's integers."""
    if not isinstance(value, SupportsIndex):
        raise TypeError(f"{what} must be an int, not {value!r}")
    if index(value) < 1:
        raise ValueError(f"{what} must be at least 1, not {value}")
    return int(index(value))  # True is one


def start_of(start: object) -> tuple[int, int]:
    if isinstance(start, int) and not isinstance(start, bool):
        return AT_SEQUENCE, integer("start", start)
    if isinstance(start, str) and start in STARTS:
        return STARTS[start], 0
    names = ", ".join(map(repr, STARTS))
    raise ValueError(f"start must be one of {names}, or a sequence, not {start!r}")


def patience_ns(seconds: object) -> int:
    if isinstance(seconds, bool) or not isinstance(seconds, SupportsFloat):
        raise TypeError(f"head_start_timeout must be a number of seconds, not {seconds!r}")
    value = float(seconds)
    if not 0 < value <= _LONGEST_HEAD_START:
        raise ValueError(
            f"head_start_timeout must be more than 0 and at most {_LONGEST_HEAD_START} seconds, "
            f"not {seconds!r}"
        )
    return math.ceil(value * 1e9)


def branch_name(branch: object) -> str:
    if not isinstance(branch, str):
        raise TypeError(f"a branch's name must be a str, not {branch!r}")
    if "\0" in branch:
        raise ValueError(f"a branch's name cannot hold a null character: {branch!r}")
    return branch


def schema_bytes(schema: object) -> bytes | None:
    if schema is None:
        return None
    serialize = getattr(schema, "serialize", None)
    if serialize is None:
        raise TypeError(f"schema must be a pyarrow.Schema, not {schema!r}")
    return bytes(serialize())
