"""Checks of a :class:`~shmring.table_ring.TableRing`'s arguments; opens and changes its ring."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy import exc

from shmring.common.arguments import integer
from shmring.errors import Damaged, MessageTooLarge, MissingExtra, RingExists, RingNotFound
from shmring.table_ring.backend import Backend, SubscriberNotFound
from shmring.table_ring.schema import (
    MAX_SLOTS,
    MESSAGE_BYTES,
    Layout,
    check_name,
    check_new_name,
    check_subscribers,
    stride_for,
)


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
    if hasattr(rows, "schema") and hasattr(rows, "column"):  # `rows` is an Arrow batch or table
        if "message" not in rows.schema.names:
            raise TypeError(f"no column 'message' among {', '.join(rows.schema.names)}")
        rows = rows.column("message")
    dtype = getattr(rows, "dtype", None)
    if dtype is not None:  # `rows` is a numpy array; each row of the array is a message
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


@dataclass
class Making:
    """The options with which a ring is created."""

    slots: int
    subscribers: Sequence[str]
    scattered: bool
    unlogged: bool
    must_create: bool

    def __post_init__(self) -> None:
        integer("slots", self.slots, 1, MAX_SLOTS)
        self.subscribers = check_subscribers(self.subscribers)


def locate(url: str | sa.URL, name: str, *, missing: bool = False) -> tuple[type[Backend], sa.URL]:
    """Return the backend for a database, and the URL with the driver that is used.

    `missing`: whether the ring may be missing; if not, a missing database raises RingNotFound.
    """
    check_name(name)
    try:
        found = sa.make_url(url)
    except exc.ArgumentError:
        raise ValueError(
            f"{url!r} is no database URL; write sqlite:///file or postgresql://user@host/database"
        ) from None
    match found.drivername:
        case "sqlite" | "sqlite+pysqlite":
            from shmring.table_ring.sqlite import SqliteBackend as backend
        case "postgres" | "postgresql" | "postgresql+psycopg":
            try:
                from shmring.table_ring.postgresql import PostgresBackend as backend
            except ImportError as error:
                raise MissingExtra(
                    "a table ring on PostgreSQL needs psycopg 3, which cannot be imported here"
                    f" ({error}): pip install 'shmring[postgresql]'"
                ) from error
        case other:
            raise ValueError(f"no table ring on {other!r}; use sqlite:///file or postgresql://...")
    where = backend.address(found)
    if not missing and not backend.may_exist(where):
        raise RingNotFound(not_found(where, name))
    return backend, where


def not_found(url: sa.URL, name: str) -> str:
    return (
        f"no table ring {name!r} in {shown(url)}; create it with"
        f" TableRing(url, name={name!r}, slots=...)"
    )


def shown(url: sa.URL) -> str:
    return url.render_as_string(hide_password=True)


def create_or_read(backend: Backend, making: Making | None) -> Layout:
    """Return the ring's layout; create the ring if it is missing and `making` is given."""
    url, name = backend.connection.engine.url, backend.tables.name

    def open_ring(connection: sa.Connection) -> Layout:
        exists = backend.exist(connection)
        if making is not None and not exists:
            backend.lock_creation()
            exists = backend.exist(connection)
        if making is not None:
            backend.tables.check_own(connection)
        if not exists:
            if making is None:
                raise RingNotFound(not_found(url, name))
            check_new_name(name)
            layout = Layout(making.slots, stride_for(making.slots, scattered=making.scattered))
            backend.create(connection, layout, making.subscribers)
            return layout
        if making and making.must_create:
            raise RingExists(
                f"table ring {name!r} is there already in {shown(url)};"
                " TableRing.attach opens it, TableRing.drop deletes it"
            )
        layout = backend.tables.read(connection)
        if making and making.slots != layout.slots:
            raise ValueError(
                f"table ring {name!r} has {layout.slots} slots, not {making.slots};"
                " leave `slots` out to attach"
            )
        backend.adopt(connection, layout)
        return layout

    return backend.transact(open_ring)


def choose_subscriber(backend: Backend, wanted: str | None) -> str:
    """Make the connection pop the messages of a subscriber, and return the subscriber's name.

    `wanted`: the name that the user gave; if None, the subscriber is "main", or the first by name
    if the ring has no "main".
    """
    name = backend.tables.name
    with backend.translated():
        holders = backend.tables.bits(backend.connection)
    if not holders:
        raise Damaged(f"table ring {name!r} lost its subscribers; TableRing.drop it")
    chosen = wanted
    if chosen is None:
        # Choose a subscriber if the user names none: a handle that only pushes can have any.
        chosen = "main" if "main" in holders else min(holders)
    if chosen not in holders:
        raise SubscriberNotFound(
            f"table ring {name!r} has no subscriber {chosen!r}, only"
            f" {', '.join(map(repr, sorted(holders)))}; add it with ring.subscribe({chosen!r})"
        )
    if backend.serve(chosen, holders[chosen]):
        return chosen
    return choose_subscriber(backend, wanted)  # the chosen subscriber was just removed: try again


def change_ring(
    url: str | sa.URL, name: str, change: Callable[[Backend, sa.Connection], None]
) -> None:
    """Call `change` in a transaction that keeps others from creating or dropping rings.

    Before the call, raise RingNotFound if the ring is missing, and NotARing if a table of another
    program has the name of one of the ring's tables.
    """
    kind, where = locate(url, name)
    backend = kind(where, name, "sync", False)

    def change_it(connection: sa.Connection) -> None:
        backend.lock_creation()
        if not backend.exist(connection):
            raise RingNotFound(not_found(where, name))
        backend.tables.check_own(connection)
        change(backend, connection)

    with contextlib.closing(backend):
        backend.transact(change_it)
