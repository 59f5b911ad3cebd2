"""The functions of a table ring that live in PostgreSQL; the `.sql` files here have most of them.

A ring called ``orders`` has, beside its tables:

``orders_push``, ``orders_pop_<n>``
    sequences: the number of the next push, and of each subscriber's next pop. A sequence is no row:
    it leaves no old versions behind, even while a session holds an old snapshot
``orders_claims``
    a row for each run of numbers that a subscriber's cursor has passed and that are not popped: an
    open claim, locked by its transaction, or a claim that was given up, for the next pop
``orders_version``, ``orders_made``, ``orders_slot``, ``orders_subscribed``, ``orders_holders``
    functions that are constants, or an expression: the version of the functions, the ring for which
    they were made, the slot of a number, and the number of subscribers and their bits of `holders`
the functions of the `.sql` files
    each runs in one statement, and so in one round trip. The last parameter of those that a client
    calls has no meaning; its name contains the version and the layout. PostgreSQL looks for this
    name when it reads the client's statement, and again when the functions are replaced, or the
    ring is dropped and made again in another size

A call that pushes or pops one message takes its number from the sequence and makes one guarded
UPDATE of the number's slot; until the end of the transaction it shares the cursor's advisory lock.
Calls for several messages, and calls that repair a cursor, hold this lock alone: then no other call
is between a number and its UPDATE, and the slots are right. A number below the highest pushed one
that is in no slot will never come, and is passed over; numbers above it are taken back. A sequence
is not undone with its transaction and may jump after a crash of the server, so it can be ahead of
the slots. It is behind them only where logical replication copied the rows, but no sequences: a pop
passes over a message that has lost the subscriber's bit.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from zlib import crc32

from shmring.table_ring.schema import Layout

# To be raised with every change of a body.
VERSION = 14

# SQLSTATEs: some messages have free slots, others not; a slot holds a foreign number.
FULL_WITHIN, FOREIGN = "SR001", "SR002"

# Advisory locks of a ring: the second key. That of a subscriber's cursor is its holder, below 64.
PUSH, AWAIT_MESSAGE, AWAIT_SLOT = 64, 100, 200

# How far below a cursor to search for numbers that were taken and not used: more than there are
# connections. The look that reads the whole table finds those further back.
NEAR = 300

# Milliseconds that a pop waits within the database for a message.
IDLE = 5

CONSTANTS = ["version", "made", "subscribed", "holders"]
_SCRIPTS = [
    (files("shmring.table_ring") / f"{name}.sql").read_text()
    for name in ("look", "claim", "pop", "push")
]


def names(ring: str) -> list[str]:
    """Return the names of a ring's functions."""
    scripted = re.findall(r"FUNCTION \{ring\}_(\w+)\(", "".join(_SCRIPTS))
    return [f"{ring}_{suffix}" for suffix in (*CONSTANTS, "slot", "ranges", *scripted)]


@dataclass(frozen=True)
class Functions:
    """The functions of one ring.

    Parameters
    ----------
    name : name of the ring
    schema : the schema with its tables, quoted for SQL
    """

    name: str
    schema: str
    layout: Layout

    @cached_property
    def key(self) -> int:
        """First key of the ring's advisory locks, the same after a restored dump."""
        return int.from_bytes(crc32(self.named().encode()).to_bytes(4), signed=True)

    @property
    def made(self) -> str:
        """The functions' record of their ring: its place, and how it was made."""
        return f"{self.named()}, {self.layout.slots} slots, stride {self.layout.stride}"

    @property
    def made_source(self) -> str:
        """The body of the function that returns this record."""
        return f"SELECT $ring${self.made}$ring$::text"

    @property
    def mark(self) -> str:
        """The parameter that only functions of this version and layout have."""
        return f"v{VERSION}_{self.layout.slots}_{self.layout.stride}"

    def named(self, suffix: str = "") -> str:
        return f"{self.schema}.{self.name}{suffix}"

    def create(self, subscribed: int, holders: int) -> list[str]:
        """Return the statements that create the functions."""
        values = {"ring": self.named(), "name": self.name, "slots": self.layout.slots}
        values |= {"key": self.key, "mark": self.mark, "NEAR": NEAR, "IDLE": IDLE, "PUSH": PUSH}
        values |= {"AWAIT_MESSAGE": AWAIT_MESSAGE, "AWAIT_SLOT": AWAIT_SLOT}
        values |= {"FOREIGN": FOREIGN, "FULL_WITHIN": FULL_WITHIN}
        return [
            self._constant("version()", "integer", f"SELECT ({VERSION})::integer"),
            self._constant("made()", "text", self.made_source),
            self._constant(
                "slot(number bigint)", "bigint", f"SELECT {self.layout.place_sql('number')}"
            ),
            self._ranges(),
            *self.tell(subscribed, holders),
            *(script.format_map(values) for script in _SCRIPTS),
        ]

    def tell(self, subscribed: int, holders: int) -> list[str]:
        """Return the statements that make new messages wait for these subscribers."""
        return [
            self._constant("subscribed()", "smallint", f"SELECT ({subscribed})::smallint"),
            self._constant("holders()", "bigint", f"SELECT ({holders})::bigint"),
        ]

    def _ranges(self) -> str:
        """Return the function that gives the slots of numbers: ranges, and their first numbers.

        Numbers in a row have slots in a row, up to the end of the table, unless they are scattered.
        """
        slots, slot = self.layout.slots, self.layout.place_sql("k")
        body = f"SELECT k, {slot}, {slot} FROM generate_series(first, after - 1) k"
        if self.layout.stride == 1:
            last = f"first % {slots} + (after - first) - 1"
            body = (
                f"SELECT first, first % {slots}, least({last}, {slots - 1}) UNION ALL"
                f" SELECT first - first % {slots} + {slots}, 0, {last} - {slots}"
                f" WHERE {last} >= {slots}"
            )
        return (
            f"CREATE OR REPLACE FUNCTION {self.named('_ranges')}(first bigint, after bigint)"
            " RETURNS TABLE (number bigint, low bigint, high bigint) LANGUAGE sql IMMUTABLE"
            f" AS $body${body}$body$"
        )

    def _constant(self, signature: str, kind: str, body: str) -> str:
        return (
            f"CREATE OR REPLACE FUNCTION {self.named(f'_{signature}')} RETURNS {kind}"
            f" LANGUAGE sql IMMUTABLE AS $body${body}$body$"
        )
