"""Tables of a :class:`~shmring.table_ring.TableRing`: columns, slots, creation.

A ring called ``orders`` has three tables, whatever the database:

``orders``
    the queue table, with one row for each slot from the start:
    ``slot, message_id, time, reference_count, holders, message``
``orders_ring``
    one row: how the ring was made, the number of subscribers, and their bits
``orders_subscribers``
    one row for each subscriber: its ``name`` and its bit, ``holder``

`holders` has a bit for each subscriber that has not popped the message, and `reference_count` is
the number of these bits: a slot is free when both are 0. The next numbers are in further columns
(SQLite) or in sequences (PostgreSQL).
"""

from __future__ import annotations

import contextlib
import itertools
import math
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

import sqlalchemy as sa
from sqlalchemy import event, exc

from shmring.errors import Damaged, LimitReached, NotARing, VersionMismatch

MESSAGE_BYTES = 300
# Maximum slots of a ring: slot_of() multiplies two numbers below `slots`, whose product must stay
# below 2**63.
MAX_SLOTS = 2**31 - 1
# Maximum subscribers: `holders` has a bit for each, and reference_count, a smallint, counts them.
# The ring in memory has the same limit of branches.
MAX_SUBSCRIBERS = 64
# Number of distant ranges in a scattered ring: the last decimal digit of a number selects its
# range.
SCATTER_RANGES = 10

_NAME = re.compile(r"[a-z_][a-z0-9_]{0,39}")
# Suffixes refused in a ring's name, because they name parts of another ring: on PostgreSQL,
# "orders_push" is a part of the ring "orders".
_SUFFIX = re.compile(r"_(ring|subscribers|leases|push|pop_\d+)$")


def stride_for(slots: int, *, scattered: bool) -> int:
    """Return the stride of a ring: 1, or in a scattered ring a little over a tenth of the slots.

    Ten consecutive numbers of a scattered ring fall into ten distant ranges of the table, and the
    eleventh number lies near the first.
    """
    if not scattered:
        return 1
    return next(n for n in itertools.count(slots // SCATTER_RANGES + 1) if math.gcd(n, slots) == 1)


def check_name(name: str) -> str:
    """Return the ring's name, or raise TypeError or ValueError if it cannot be a table's name."""
    if not isinstance(cast("object", name), str):
        raise TypeError(f"a ring's name must be a str, not {name!r}")
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"ring name {name!r} is no table name: use 1 to 40 of a-z, 0-9 and _, no digit first"
        )
    return name


def check_new_name(name: str) -> None:
    """Raise ValueError if a new ring's name could be the name of a part of another ring."""
    if found := _SUFFIX.search(name):
        raise ValueError(
            f"ring name {name!r} ends in {found[0]!r}, as parts of a ring {name[: found.start()]!r}"
            " do: use another name"
        )


def check_subscribers(given: object) -> list[str]:
    """Return the subscribers' names, or raise TypeError or ValueError."""
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise TypeError(f"subscribers must be a sequence of names, not {given!r}")
    names: list[str] = []
    for name in cast("Iterable[object]", given):
        if not isinstance(name, str):
            raise TypeError(f"a subscriber's name must be a str, not {name!r}")
        names.append(name)
    if len(set(names)) != len(names):
        raise ValueError(f"subscribers must differ from each other: {names}")
    if not 1 <= len(names) <= MAX_SUBSCRIBERS:
        raise ValueError(f"a ring has 1 to {MAX_SUBSCRIBERS} subscribers, not {len(names)}")
    for name in names:
        if not name or len(name) > 100 or "\0" in name:
            raise ValueError(
                f"a subscriber's name has 1 to 100 characters, none of them NUL: {name!r}"
            )
    return names


@dataclass(frozen=True)
class Layout:
    """The properties with which a ring was made; they never change."""

    slots: int
    stride: int

    def slot_of(self, number: int) -> int:
        """Return the slot that holds a number.

        Multiplying by a stride that shares no factor with `slots` permutes 0..slots-1, whatever
        `slots` is: ``a * stride == b * stride (mod slots)`` only if ``a == b (mod slots)``.
        """
        return number % self.slots * self.stride % self.slots

    def slot_sql(self, number: str) -> str:
        """Return the SQL that computes :meth:`slot_of` of a number given as SQL."""
        # Do not multiply by a stride of 1: the database would compute it for each row.
        scatter = f" * {self.stride} % {self.slots}" if self.stride != 1 else ""
        return f"({number} % {self.slots}{scatter})"


def _epoch() -> sa.Column[int]:
    """Return a column with a random number for each subscription.

    A handle remembers the number of its subscriber. If the subscriber is removed and added again,
    its name and bit may be the same, but its number differs, and the old handle finds nothing. On
    PostgreSQL, the oid of the subscriber's sequence serves the same purpose.
    """
    return sa.Column("epoch", sa.BigInteger, nullable=False, default=lambda: secrets.randbits(63))


def _leave_room(table: sa.Table, connection: sa.Connection, **_: object) -> None:
    """Let half of each page stay free for the next versions of its rows.

    PostgreSQL then updates within the page, touches no index, and clears the old versions without a
    vacuum. The statement is one of its own because Table() takes storage parameters only from
    SQLAlchemy 2.1 on.
    """
    if connection.dialect.name == "postgresql":
        name = connection.dialect.identifier_preparer.format_table(table)
        connection.exec_driver_sql(f"ALTER TABLE {name} SET (fillfactor = 45)")


class Tables:
    """The tables of one ring, in the given schema; if it is None, the database chooses one."""

    def __init__(
        self, name: str, *, cursor_rows: bool, unlogged: bool = False, schema: str | None = None
    ) -> None:
        self.name = name  # name of the ring and of the queue table
        # True: the server writes the queue table to no log, and empties the table after a crash.
        self.unlogged = unlogged
        self.metadata = sa.MetaData(schema=schema)
        # True: columns hold the numbers of the next push and pops; False: sequences hold them.
        self._cursor_rows = cursor_rows
        # Version of the columns. Rings of version 1 on SQLite lack the column `epoch`.
        self._version = 2 if cursor_rows else 1

        def position() -> list[sa.Column[int]]:
            return [sa.Column("position", sa.BigInteger, nullable=False)] if cursor_rows else []

        # In SQLite an INTEGER PRIMARY KEY is the row key; a BIGINT would get an index of its own.
        key = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
        # The message is the last column: a pop changes only the columns before it, and PostgreSQL
        # does not log the end of a row that an UPDATE leaves unchanged.
        self.slots = sa.Table(
            name,
            self.metadata,
            sa.Column("slot", key, primary_key=True, autoincrement=False),
            sa.Column("message_id", sa.BigInteger),
            sa.Column("time", sa.BigInteger),
            sa.Column("reference_count", sa.SmallInteger, nullable=False),
            sa.Column("holders", sa.BigInteger, nullable=False),
            sa.Column("message", sa.LargeBinary, nullable=False),
            # No CHECK: PostgreSQL would evaluate it at every UPDATE, which would double the cost.
            prefixes=["UNLOGGED"] if unlogged else [],
        )
        event.listen(self.slots, "after_create", _leave_room)
        self.ring = sa.Table(
            f"{name}_ring",
            self.metadata,
            sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
            sa.Column("layout", sa.Integer, nullable=False),
            sa.Column("slots", sa.BigInteger, nullable=False),
            sa.Column("stride", sa.BigInteger, nullable=False),
            sa.Column("subscribers", sa.SmallInteger, nullable=False),
            sa.Column("holders", sa.BigInteger, nullable=False),
            *(position() or [sa.Column("functions", sa.Text)]),
            sa.CheckConstraint("id = 0"),
        )
        self.subscribers = sa.Table(
            f"{name}_subscribers",
            self.metadata,
            sa.Column("name", sa.String(100), primary_key=True),
            sa.Column("holder", sa.SmallInteger, nullable=False, unique=True),
            *position(),
            *([_epoch()] if cursor_rows else []),
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
        self.fill(connection, layout, free_message)
        start = {"position": 0} if self._cursor_rows else {}
        ring = {"id": 0, "layout": self._version, "slots": layout.slots, "stride": layout.stride}
        held = {"subscribers": len(subscribers), "holders": signed((1 << len(subscribers)) - 1)}
        connection.execute(self.ring.insert(), {**ring, **held, **start})
        rows = [{"name": name, "holder": bit, **start} for bit, name in enumerate(subscribers)]
        connection.execute(self.subscribers.insert(), rows)

    def fill(self, connection: sa.Connection, layout: Layout, free_message: str) -> None:
        """Insert the slots, all of them free."""
        # Insert the rows in slot order, so that consecutive messages of a scattered ring lie on
        # different pages. Insert each row at full width, so that a page has room for its rows when
        # all of its slots hold messages.
        numbers = sa.text(
            "WITH RECURSIVE numbers(n) AS (SELECT CAST(0 AS BIGINT) UNION ALL"
            f" SELECT n + 1 FROM numbers WHERE n + 1 < {layout.slots})"
            f" SELECT n, 0, 0, {free_message} FROM numbers"
        )
        columns = ["slot", "reference_count", "holders", "message"]
        typed = numbers.columns(*(self.slots.c[name] for name in columns))
        connection.execute(self.slots.insert().from_select(columns, typed))

    def check_own(self, connection: sa.Connection) -> None:
        """Raise NotARing if a table of another program has the name of a table of this ring."""
        # Read the database's catalog: a statement on the tables would wait for their locks.
        inspector = sa.inspect(connection)
        for table in (self.slots, self.ring, self.subscribers):
            with contextlib.suppress(exc.NoSuchTableError):
                columns = inspector.get_columns(table.name, schema=table.schema)
                self._check_columns(table, [column["name"] for column in columns])

    def _check_columns(self, table: sa.Table, found: Iterable[str]) -> None:
        # Columns that rings of all versions have.
        own = {
            self.slots: ("slot", "message_id", "reference_count", "message"),
            self.ring: ("id", "layout", "slots", "stride"),
            self.subscribers: ("name", "holder"),
        }[table]
        if not set(own) <= set(found):
            raise NotARing(
                f"table {table.name!r} is there, and is no part of a table ring {self.name!r}: it"
                f" lacks columns of {', '.join(own)}; use another name for the ring, nothing was"
                " changed"
            )

    def exist(self, connection: sa.Connection) -> bool:
        """Return whether the ring exists.

        Looking for one table is enough, because all tables are created in one transaction.
        """
        return sa.inspect(connection).has_table(self.ring.name)

    def read(self, connection: sa.Connection) -> Layout:
        """Return the ring's layout; raise if the stored layout is missing, unknown or damaged."""
        query = sa.select(sa.text("*")).select_from(self.ring).limit(0)
        self._check_columns(self.ring, connection.execute(query).keys())
        # Read the layout's version first: it decides which other columns there are.
        version = connection.execute(sa.select(self.ring.c.layout)).scalar_one_or_none()
        if version is None:
            raise Damaged(f"table {self.ring.name} lost its row; TableRing.drop, create again")
        if version != self._version:
            raise VersionMismatch(
                f"table ring {self.slots.name!r} has layout {version}, this version"
                f" knows {self._version}; empty the ring with the version that made it, then"
                " TableRing.drop and create it again"
            )
        row = connection.execute(sa.select(self.ring.c.slots, self.ring.c.stride)).one()
        # Check `slots` and `stride`, which go into every statement: another program may have
        # changed them.
        if not 1 <= row.slots <= MAX_SLOTS or math.gcd(row.slots, row.stride) != 1:
            raise Damaged(
                f"table {self.ring.name} says slots {row.slots}, stride {row.stride}: no ring has"
                " these; TableRing.drop, create again"
            )
        return Layout(row.slots, row.stride)

    def bits(self, connection: sa.Connection) -> dict[str, int]:
        """Return each subscriber's bit of `holders`."""
        columns = self.subscribers.c
        rows = connection.execute(sa.select(columns.name, columns.holder))
        return {row.name: row.holder for row in rows}

    def add(self, connection: sa.Connection, name: str, start: int) -> int:
        """Add a subscriber in a transaction that blocks pushes, and return its bit."""
        bits = self.bits(connection)
        if name in bits:
            raise ValueError(f"table ring {self.slots.name!r} has a subscriber {name!r} already")
        if len(bits) >= MAX_SUBSCRIBERS:
            raise LimitReached(
                f"table ring {self.slots.name!r} has {len(bits)} subscribers, the most there can"
                " be; remove one with ring.unsubscribe(name)"
            )
        bit = min(set(range(MAX_SUBSCRIBERS)) - set(bits.values()))
        position = {"position": start} if self._cursor_rows else {}
        connection.execute(self.subscribers.insert(), {"name": name, "holder": bit, **position})
        self._tell(connection)
        return bit

    def lock(self, connection: sa.Connection, name: str) -> int | None:
        """Keep others from removing a subscriber; return its bit, or None if it is not there."""
        query = sa.select(self.subscribers.c.holder).where(self.subscribers.c.name == name)
        return connection.execute(query.with_for_update()).scalar_one_or_none()

    def remove(self, connection: sa.Connection, name: str, holder: int) -> None:
        """Remove a subscriber and its references, in a transaction that blocks pushes."""
        if len(self.bits(connection)) == 1:
            raise ValueError(
                f"{name!r} is the last subscriber of table ring {self.slots.name!r}; drop the"
                " ring, or subscribe another first"
            )
        held = self.slots.c.holders
        connection.execute(
            self.slots.update()
            .where(held.bitwise_and(mask(holder)) != 0)
            .values(
                reference_count=self.slots.c.reference_count - 1,
                holders=held.bitwise_and(~mask(holder)),
            )
        )
        connection.execute(self.subscribers.delete().where(self.subscribers.c.name == name))
        self._tell(connection)

    def _tell(self, connection: sa.Connection) -> None:
        bits = self.bits(connection).values()
        holders = signed(sum(1 << bit for bit in bits))
        connection.execute(self.ring.update(), {"subscribers": len(bits), "holders": holders})


def signed(bits: int) -> int:
    """Return 64 bits as a signed number for the database."""
    return bits - (1 << 64) if bits >> 63 else bits


def mask(bit: int) -> int:
    return signed(1 << bit)
