"""Tables of a :class:`~shmring.durable.table_ring.TableRing`: columns, places, creation, drop.

A ring called ``orders`` has three tables:

``orders``
    the queue table, a row a slot, all of them there from the start:
    ``slot, message_id, time, reference_count, message``
``orders_ring``
    one row: how the ring was made, and ``position``, the number of the next push
``orders_subscribers``
    a row a subscriber: ``name`` and ``position``, the number of its next pop

The number n lives in slot ``place(n, ...)``. That function is the only mapping there is: the
statements of both databases are built from it, and it also runs on plain integers.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import sqlalchemy as sa

from shmring.errors import BranchNotFound, Damaged, LimitReached, VersionMismatch

__all__ = [
    "LAYOUT",
    "MAX_SLOTS",
    "MAX_SUBSCRIBERS",
    "MESSAGE_BYTES",
    "Layout",
    "Tables",
    "check_name",
    "check_slots",
    "check_subscribers",
    "place",
    "stride_for",
]

LAYOUT = 1
MESSAGE_BYTES = 300
# place() multiplies two numbers below `slots`: their product must stay below 2**63.
MAX_SLOTS = 2**31 - 1
# reference_count is a smallint; the ring in memory has the same limit.
MAX_SUBSCRIBERS = 64
# The last decimal digit of the number picks one of so many distant ranges.
SCATTER_RANGES = 10

_NAME = re.compile(r"[a-z_][a-z0-9_]{0,39}")
Number = TypeVar("Number", int, sa.ColumnElement[int])


def place(number: Number, slots: int, stride: int) -> Number:
    """Return the slot that holds a number; on an SQL expression, the SQL that computes it.

    Multiplying by a stride that shares no factor with `slots` permutes 0..slots-1, whatever
    `slots` is: ``a * stride == b * stride (mod slots)`` only if ``a == b (mod slots)``.
    """
    return number % slots * stride % slots


def stride_for(slots: int, *, scattered: bool) -> int:
    """Return the stride of a ring: 1, or a tenth of the ring so that neighbours lie far apart.

    Ten numbers in a row fall into ten ranges of the table, the eleventh lies near the first.
    """
    if not scattered:
        return 1
    return next(n for n in itertools.count(slots // SCATTER_RANGES + 1) if math.gcd(n, slots) == 1)


def check_name(name: str) -> str:
    """Return the ring's name, or raise ValueError where it cannot be a table's name."""
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"ring name {name!r} is no table name: use 1 to 40 of a-z, 0-9 and _, no digit first"
        )
    return name


def check_slots(slots: int) -> int:
    """Return the number of slots, or raise TypeError or ValueError."""
    if isinstance(slots, bool) or not isinstance(slots, int):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"slots must be an int, not {type(slots).__name__}")
    if not 1 <= slots <= MAX_SLOTS:
        raise ValueError(f"slots must be 1 to {MAX_SLOTS}, not {slots}")
    return slots


def check_subscribers(names: Sequence[str]) -> list[str]:
    """Return the subscribers' names, or raise TypeError or ValueError."""
    if isinstance(names, str):
        raise TypeError(f"subscribers must be a sequence of names, not the str {names!r}")
    if len(set(names)) != len(names):
        raise ValueError(f"subscribers must differ from each other: {list(names)}")
    if not 1 <= len(names) <= MAX_SUBSCRIBERS:
        raise ValueError(f"a ring has 1 to {MAX_SUBSCRIBERS} subscribers, not {len(names)}")
    for name in names:
        if not name or len(name) > 100:
            raise ValueError(f"a subscriber's name has 1 to 100 characters: {name!r}")
    return list(names)


@dataclass(frozen=True)
class Layout:
    """How a ring was made; never changes afterwards."""

    slots: int
    stride: int

    def place(self, number: int) -> int:
        """Return the slot of a number."""
        return place(number, self.slots, self.stride)

    def place_sql(self, number: str) -> str:
        """Return the SQL for the slot of a number given as SQL."""
        column: sa.ColumnElement[int] = sa.literal_column(number, sa.BigInteger())
        expression = place(column, self.slots, self.stride)
        return f"({expression.compile(compile_kwargs={'literal_binds': True})})"


class Tables:
    """The three tables of one ring."""

    def __init__(self, name: str) -> None:
        self.metadata = sa.MetaData()
        # INTEGER PRIMARY KEY is SQLite's own row key; BIGINT would get an index beside it.
        key = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
        # Half of each page stays free for the next version of its rows: PostgreSQL then updates
        # within the page, touches no index, and clears the old versions without a vacuum. The
        # message is last: a pop changes what is before it, and the log skips an equal tail.
        self.slots = sa.Table(
            name,
            self.metadata,
            sa.Column("slot", key, primary_key=True, autoincrement=False),
            sa.Column("message_id", sa.BigInteger),
            sa.Column("time", sa.BigInteger),
            sa.Column("reference_count", sa.SmallInteger, nullable=False),
            sa.Column("message", sa.LargeBinary, nullable=False),
            sa.CheckConstraint(f"length(message) <= {MESSAGE_BYTES}"),
            sa.CheckConstraint("reference_count >= 0"),
            postgresql_with={"fillfactor": 45},
        )
        # Two tables for the cursors, so that push and pop never share a page.
        self.ring = sa.Table(
            f"{name}_ring",
            self.metadata,
            sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
            sa.Column("layout", sa.Integer, nullable=False),
            sa.Column("slots", sa.BigInteger, nullable=False),
            sa.Column("stride", sa.BigInteger, nullable=False),
            sa.Column("subscribers", sa.SmallInteger, nullable=False),
            sa.Column("position", sa.BigInteger, nullable=False),
            sa.CheckConstraint("id = 0"),
            postgresql_with={"fillfactor": 10},
        )
        self.subscribers = sa.Table(
            f"{name}_subscribers",
            self.metadata,
            sa.Column("name", sa.String(100), primary_key=True),
            sa.Column("position", sa.BigInteger, nullable=False),
            postgresql_with={"fillfactor": 10},
        )

    def create(
        self,
        connection: sa.Connection,
        layout: Layout,
        subscribers: Sequence[str],
        free_message: str,
    ) -> None:
        """Create and fill the tables within the caller's transaction."""
        self.metadata.create_all(connection, checkfirst=False)
        # Rows are stored in slot order, so scattered neighbours really lie on different pages, and
        # at full width, so that no page is fuller than it will be with messages.
        rows = (
            "WITH RECURSIVE numbers(n) AS"
            " (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n + 1 < :slots)"
            f" INSERT INTO {self.slots.name} (slot, message_id, time, reference_count, message)"
            f" SELECT n, NULL, NULL, 0, {free_message} FROM numbers"
        )
        connection.execute(sa.text(rows), {"slots": layout.slots})
        values = {"slots": layout.slots, "stride": layout.stride, "subscribers": len(subscribers)}
        connection.execute(self.ring.insert(), {"id": 0, "layout": LAYOUT, "position": 0, **values})
        connection.execute(
            self.subscribers.insert(), [{"name": name, "position": 0} for name in subscribers]
        )

    def exist(self, connection: sa.Connection) -> bool:
        """Whether the ring is there; its one-row table is created with the others or not at all."""
        return sa.inspect(connection).has_table(self.ring.name)

    def read(self, connection: sa.Connection) -> sa.Row[*tuple[Any, ...]] | None:
        """Return the ring's one row, or None where somebody emptied the table."""
        return connection.execute(self.ring.select()).one_or_none()

    def check(self, row: sa.Row[*tuple[Any, ...]] | None) -> Layout:
        """Return the layout that the ring's row tells, or raise where no ring is made so."""
        if row is None:
            raise Damaged(f"table {self.ring.name} lost its row; TableRing.drop, create again")
        if row.layout != LAYOUT:
            raise VersionMismatch(
                f"table ring {self.slots.name!r} has layout {row.layout}, this version"
                f" knows {LAYOUT}"
            )
        # Both go into every statement: trust nothing that place() could not have been made with.
        if not 1 <= row.slots <= MAX_SLOTS or math.gcd(row.slots, row.stride) != 1:
            raise Damaged(
                f"table {self.ring.name} says slots {row.slots}, stride {row.stride}: no ring is"
                " made so; TableRing.drop, create again"
            )
        return Layout(row.slots, row.stride)

    def drop(self, connection: sa.Connection) -> None:
        """Drop the tables within the caller's transaction."""
        self.metadata.drop_all(connection)

    def subscribe(self, connection: sa.Connection, name: str, lock: str) -> None:
        """Add a subscriber at the push position, within the caller's transaction."""
        position, count = self._hold_push(connection, lock)
        if self._position(connection, name, lock) is not None:
            raise ValueError(f"table ring {self.slots.name!r} has a subscriber {name!r} already")
        if count >= MAX_SUBSCRIBERS:
            raise LimitReached(
                f"table ring {self.slots.name!r} has {count} subscribers, the most there can be;"
                " remove one with ring.unsubscribe(name)"
            )
        connection.execute(self.subscribers.insert(), {"name": name, "position": position})
        connection.execute(self.ring.update(), {"subscribers": count + 1})

    def unsubscribe(self, connection: sa.Connection, name: str, lock: str) -> None:
        """Remove a subscriber and count down what it had before it, within a transaction."""
        _, count = self._hold_push(connection, lock)
        position = self._position(connection, name, lock)
        if position is None:
            raise BranchNotFound(f"table ring {self.slots.name!r} has no subscriber {name!r}")
        if count == 1:
            raise ValueError(
                f"{name!r} is the last subscriber of table ring {self.slots.name!r}; drop the"
                " ring, or subscribe another first"
            )
        columns = self.slots.c
        connection.execute(
            self.slots.update()
            .where(columns.message_id >= position)
            .values(
                message_id=sa.case((columns.reference_count > 1, columns.message_id)),
                reference_count=columns.reference_count - 1,
            )
        )
        connection.execute(self.subscribers.delete().where(self.subscribers.c.name == name))
        connection.execute(self.ring.update(), {"subscribers": count - 1})

    def _hold_push(self, connection: sa.Connection, lock: str) -> tuple[int, int]:
        # Nobody pushes until the transaction ends: each message's reference_count is the number
        # of subscribers whose position is not beyond it.
        sql = f"SELECT position, subscribers FROM {self.ring.name} WHERE id = 0{lock}"
        row = connection.execute(sa.text(sql)).one()
        return row[0], row[1]

    def _position(self, connection: sa.Connection, name: str, lock: str) -> int | None:
        sql = f"SELECT position FROM {self.subscribers.name} WHERE name = :name{lock}"
        return connection.execute(sa.text(sql), {"name": name}).scalar_one_or_none()
