"""Finding a table ring, and making it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator

import sqlalchemy as sa

from shmring.errors import Damaged, RingExists, RingNotFound
from shmring.table_ring.backend import Backend
from shmring.table_ring.databases import address, backend_of
from shmring.table_ring.errors import SubscriberNotFound
from shmring.table_ring.input import Making, not_found, refuse_missing, shown
from shmring.table_ring.schema import Layout, check_name, stride_for

__all__ = ["choose_subscriber", "create_or_read", "found", "if_there"]


def create_or_read(backend: Backend, making: Making | None) -> Layout:
    """Return the ring's layout; create the ring if it is missing and `making` is given."""
    url = backend.connection.engine.url

    def open_ring(connection: sa.Connection) -> Layout:
        exists = backend.exist(connection)
        if making is not None and not exists:
            backend.lock_creation()
            exists = backend.exist(connection)
        tables = backend.tables
        if exists and making and making.must_create:
            raise RingExists(
                f"table ring {tables.name!r} is there already in {shown(url)};"
                " TableRing.attach opens it, TableRing.drop deletes it"
            )
        if not exists:
            if making is None:
                raise RingNotFound(not_found(url, tables.name))
            layout = Layout(making.slots, stride_for(making.slots, scattered=making.scattered))
            backend.create(connection, layout, making.subscribers)
            return layout
        row = tables.read(connection)
        layout = tables.check(row)
        assert row is not None
        backend.adopt(connection, layout, row.unlogged)
        return layout

    layout = backend.transact(open_ring)
    if making and making.slots != layout.slots:
        raise ValueError(
            f"table ring {backend.tables.name!r} has {layout.slots} slots, not {making.slots};"
            " leave `slots` out to attach"
        )
    return layout


def choose_subscriber(backend: Backend, wanted: str | None) -> str:
    """Let a connection pop as a subscriber of the ring, and return the subscriber's name."""
    name, column = backend.tables.name, backend.tables.subscribers.c
    rows = backend.rows(sa.select(column.name, column.holder))
    holders: dict[str, int] = {row[0]: row[1] for row in rows}
    if not holders:
        raise Damaged(f"table ring {name!r} lost its subscribers; TableRing.drop it")
    chosen = wanted
    if chosen is None:
        # A handle that only pushes need not name one.
        chosen = "main" if "main" in holders else min(holders)
    if chosen not in holders:
        raise SubscriberNotFound(
            f"table ring {name!r} has no subscriber {chosen!r}, only"
            f" {', '.join(map(repr, sorted(holders)))}; add it with ring.subscribe({chosen!r})"
        )
    if backend.serve(chosen, holders[chosen]):
        return chosen
    return choose_subscriber(backend, wanted)  # it was removed meanwhile


@contextlib.contextmanager
def found(url: str | sa.URL, name: str) -> Generator[Backend]:
    """Connect to the database of a ring, to change the ring as a whole."""
    where = address(url)
    check_name(name)
    refuse_missing(where, name)
    backend = backend_of(where)(where, name, "sync", False)
    try:
        yield backend
    finally:
        backend.close()


def if_there(
    backend: Backend, connection: sa.Connection, change: Callable[[sa.Connection], None]
) -> None:
    """Change a ring within a transaction, or raise RingNotFound."""
    backend.lock_creation()
    if not backend.exist(connection):
        raise RingNotFound(not_found(connection.engine.url, backend.tables.name))
    change(connection)
