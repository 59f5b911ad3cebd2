"""The functions of a table ring that live in PostgreSQL; the `.sql` files here have them.

A ring called ``orders`` has, beside its tables:

``orders_push``, ``orders_pop_<n>``
    sequences: the number of the next push, and of each subscriber's next pop. A sequence is no row:
    it leaves no old versions behind, even while a session holds an old snapshot
``orders_claims``
    a row for each run of numbers that a subscriber's cursor has passed and that are not popped: an
    open claim, locked by its transaction, or a claim that was given up, for the next pop
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
from importlib.resources import files
from zlib import crc32

from shmring.table_ring.schema import Layout

# To be raised with every change of a body.
VERSION = 17

# SQLSTATEs: some messages have free slots, others not; a slot holds a foreign number.
FULL_WITHIN, FOREIGN = "SR001", "SR002"

# Advisory locks of a ring: the second key. That of a subscriber's cursor is its holder, below 64.
PUSH, AWAIT_MESSAGE, AWAIT_SLOT = 64, 100, 200

# How far below a cursor to search for messages that were taken and not popped: more than there are
# connections. The look that reads the whole table finds those further back.
NEAR = 300

# Milliseconds that a pop waits within the database for a message.
IDLE = 5

CONSTANTS, *_ = SCRIPTS = [
    (files("shmring.table_ring") / f"{name}.sql").read_text()
    for name in ("ring", "look", "pop", "push")
]
_NAMES = re.findall(r"FUNCTION \{ring\}(_\w+)\(", "".join(SCRIPTS))


def names(ring: str) -> list[str]:
    """Return the names of a ring's functions; `ring` is its name, with or without its schema."""
    return [ring + suffix for suffix in _NAMES]


def lock_key(ring: str) -> int:
    """Return the first key of a ring's advisory locks, the same after a restored dump."""
    return int.from_bytes(crc32(ring.encode()).to_bytes(4), signed=True)


def mark(layout: Layout) -> str:
    """Return the name of the parameter that only functions of this version and layout have."""
    return f"v{VERSION}_{layout.slots}_{layout.stride}"


def made(ring: str) -> str:
    """Return what the ring's row says of its functions."""
    return f"version {VERSION} for {ring}"


def fill_in(script: str, ring: str, layout: Layout, subscribed: int, holders: int) -> str:
    """Return the statements of a script for one ring, which is named with its schema."""
    values = {"ring": ring, "name": ring.rpartition(".")[2], "made": made(ring)}
    values |= {"slots": layout.slots, "stride": layout.stride, "place": layout.place_sql("number")}
    values |= {"subscribed": subscribed, "holders": holders, "key": lock_key(ring)}
    values |= {"mark": mark(layout), "NEAR": NEAR, "IDLE": IDLE, "PUSH": PUSH, "FOREIGN": FOREIGN}
    values |= {"AWAIT_MESSAGE": AWAIT_MESSAGE, "AWAIT_SLOT": AWAIT_SLOT}
    return script.format_map(values | {"FULL_WITHIN": FULL_WITHIN})
