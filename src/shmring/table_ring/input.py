"""Checks of the arguments of a :class:`~shmring.table_ring.TableRing`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import sqlalchemy as sa

from shmring.errors import MessageTooLarge, RingNotFound
from shmring.table_ring.databases import backend_of
from shmring.table_ring.schema import MESSAGE_BYTES, check_slots, check_subscribers

__all__ = [
    "Making",
    "message",
    "messages",
    "not_found",
    "refuse_missing",
    "shown",
]


@dataclass
class Making:
    """The options with which a ring is created."""

    slots: int
    subscribers: Sequence[str]
    scattered: bool
    unlogged: bool
    must_create: bool

    def __post_init__(self) -> None:
        check_slots(self.slots)
        self.subscribers = check_subscribers(self.subscribers)


def message(data: bytes | bytearray | memoryview, which: str = "message") -> bytes:
    if type(data) is bytes and len(data) <= MESSAGE_BYTES:
        return data
    if not isinstance(data, (bytes, bytearray, memoryview)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"a message is bytes, not {type(data).__name__}; encode it first")
    if memoryview(data).nbytes > MESSAGE_BYTES:
        raise MessageTooLarge(
            f"{which} of {memoryview(data).nbytes} bytes; a row of the table holds at most"
            f" {MESSAGE_BYTES}, send parts or a reference"
        )
    return bytes(data)


def messages(rows: Any) -> list[bytes]:
    if isinstance(rows, (bytes, bytearray, str)):
        raise TypeError(f"rows is one {type(rows).__name__}, not a sequence; use push() for one")
    if hasattr(rows, "schema") and hasattr(rows, "column"):  # an Arrow batch or table
        if "message" not in rows.schema.names:
            raise TypeError(f"no column 'message' among {', '.join(rows.schema.names)}")
        rows = rows.column("message")
    dtype = getattr(rows, "dtype", None)
    if dtype is not None:  # a numpy array; its rows, not its items, are the messages
        shape = cast("tuple[int, ...]", getattr(rows, "shape", ()))
        if str(dtype) != "uint8" or len(shape) != 2:
            raise TypeError(f"an array of rows is uint8 of shape (n, k), not {dtype} of {shape}")
        rows = [row.tobytes() for row in rows]
    elif hasattr(rows, "to_pylist"):
        rows = rows.to_pylist()
    found = list(cast("Iterable[Any]", rows))
    if not found:
        raise ValueError("push_many needs at least one row")
    if set(map(type, found)) == {bytes} and max(map(len, found)) <= MESSAGE_BYTES:
        return found
    return [message(row, f"row {n}") for n, row in enumerate(found)]


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
