"""What a :class:`~shmring.durable.table_ring.TableRing` is given, checked."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from typing import Any, cast

import sqlalchemy as sa

from shmring.durable.table_ring.databases import backend_of
from shmring.durable.table_ring.schema import MESSAGE_BYTES, check_slots, check_subscribers
from shmring.errors import MessageTooLarge, RingNotFound

__all__ = [
    "Deadline",
    "Making",
    "message",
    "messages",
    "not_found",
    "refuse_missing",
    "shown",
]

FIRST_WAIT = 0.0002
LONGEST_WAIT = 0.02


class Making:
    """What a ring is created with."""

    def __init__(
        self, slots: int, subscribers: Sequence[str], scattered: bool, *, must_create: bool
    ) -> None:
        self.slots = check_slots(slots)
        self.subscribers = check_subscribers(subscribers)
        self.scattered = scattered
        self.must_create = must_create


class Deadline:
    """Waits a little longer each time, and never beyond the caller's timeout."""

    def __init__(self, timeout: float | None) -> None:
        if timeout is not None and not timeout >= 0:
            raise ValueError(f"timeout must be None or 0 and more seconds, not {timeout}")
        self._end = None if timeout is None else time.monotonic() + timeout
        self._next = FIRST_WAIT
        self.waits = 0

    def wait(self) -> bool:
        """Sleep, or return False when the time is over."""
        self.waits += 1
        remaining = math.inf if self._end is None else self._end - time.monotonic()
        if remaining <= 0:
            return False
        time.sleep(min(self._next, remaining))
        self._next = min(2 * self._next, LONGEST_WAIT)
        return True


def message(data: bytes | bytearray | memoryview) -> bytes:
    if not isinstance(data, (bytes, bytearray, memoryview)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"a message is bytes, not {type(data).__name__}; encode it first")
    if memoryview(data).nbytes > MESSAGE_BYTES:
        raise MessageTooLarge(
            f"message of {memoryview(data).nbytes} bytes; a row holds at most {MESSAGE_BYTES}"
        )
    return bytes(data)


def messages(rows: Iterable[Any]) -> list[bytes]:
    if isinstance(rows, (bytes, bytearray, str)):
        raise TypeError(f"rows is one {type(rows).__name__}, not a sequence; use push() for one")
    dtype = getattr(rows, "dtype", None)
    if dtype is not None:  # a numpy array; its rows, not its items, are the messages
        shape = cast("tuple[int, ...]", getattr(rows, "shape", ()))
        if str(dtype) != "uint8" or len(shape) != 2:
            raise TypeError(f"an array of rows is uint8 of shape (n, k), not {dtype} of {shape}")
        found = [message(row.tobytes()) for row in rows]
    elif hasattr(rows, "to_pylist"):
        found = [message(row) for row in cast("Any", rows).to_pylist()]
    else:
        found = [message(row) for row in rows]
    if not found:
        raise ValueError("push_many needs at least one row")
    return found


def refuse_missing(url: sa.URL, name: str) -> None:
    if not backend_of(url).may_exist(url):
        raise RingNotFound(not_found(url, name))


def not_found(url: sa.URL, name: str) -> str:
    return (
        f"no table ring {name!r} in {shown(url)}; create it with"
        f" TableRing(url, name={name!r}, slots=...)"
    )


def shown(url: sa.URL) -> str:
    return url.render_as_string(hide_password=True)
