"""The functions of a table ring that live in PostgreSQL.

A ring called ``orders`` has, beside its tables:

``orders_push``, ``orders_pop_<n>``
    sequences: the number of the next push, and of each subscriber's next pop. A sequence is no row:
    it leaves no old versions behind, even while a session holds an old snapshot
``orders_claims``
    a row for each run of numbers that a subscriber's cursor has passed and that are not popped: an
    open claim, locked by its transaction, or a claim that was given up, for the next pop
``orders_subscribed``, ``orders_holders``
    functions without a parameter: the number of subscribers, and their bits of `holders`. Both are
    constants in the plans of pushes
``orders_version``, ``orders_made``
    functions without a parameter: the version of the functions, and the ring for which they were
    made
the functions of `push`, `pop`, `claims` and `looks`
    each runs in one statement, and so in one round trip. The last parameter of those that a client
    calls has no meaning; its name contains the version and the layout. PostgreSQL looks for this
    name when it reads the client's statement, and again when the functions are replaced, or the
    ring is dropped and made again in another size

A call that takes one number takes it from the sequence and makes one guarded UPDATE of its slot;
until the end of the transaction it shares the cursor's advisory lock. A call that pushes a run
holds this lock alone. A call that pops a run shares a second lock until the end; it holds the
cursor's lock alone only while it reads the run's slots and moves the sequence, because messages
that are not popped yet keep their slots. A call that repairs a cursor holds all of its locks alone:
then no other call is between a number and its UPDATE, and the slots are right. A number below the
highest pushed one that is in no slot will never come, and is passed over; numbers above it are
taken back. A sequence is not undone with its transaction and may jump after a crash of the server,
so it can be ahead of the slots, but never behind.
"""

from __future__ import annotations

from shmring.table_ring.functions import claims, constants, looks, pop, push
from shmring.table_ring.functions.constants import made_source
from shmring.table_ring.functions.parts import (
    AWAIT_MESSAGE,
    AWAIT_SLOT,
    FOREIGN,
    FULL_WITHIN,
    IDLE,
    PUSH,
    RUNS,
    VERSION,
    Parts,
)

__all__ = [
    "AWAIT_MESSAGE",
    "AWAIT_SLOT",
    "CONSTANTS",
    "FOREIGN",
    "FULL_WITHIN",
    "IDLE",
    "PUSH",
    "RUNS",
    "VERSION",
    "Parts",
    "create",
    "made_source",
    "names",
    "tell",
]

CONSTANTS = ["version", "made", "subscribed", "holders"]
_OTHERS = "resume claim open settle look_push look_pop push_one push_many pop_one pop_many"


def names(ring: str) -> list[str]:
    """Return the names of a ring's functions."""
    return [f"{ring}_{suffix}" for suffix in (*CONSTANTS, *_OTHERS.split())]


def create(ring: Parts, subscribed: int, holders: int) -> list[str]:
    """Return the statements that create the functions, each after those that it calls."""
    return [
        constants.version(ring, VERSION),
        constants.made(ring),
        *tell(ring, subscribed, holders),
        claims.open_claim(ring),
        claims.settle(ring),
        claims.resume(ring),
        claims.claim(ring),
        looks.look_push(ring),
        looks.look_pop(ring),
        push.push_one(ring),
        push.push_many(ring),
        pop.pop_one(ring),
        pop.pop_many(ring),
    ]


def tell(ring: Parts, subscribed: int, holders: int) -> list[str]:
    """Return the statements that make new messages wait for these subscribers."""
    return [
        constants.subscribed(ring, subscribed),
        constants.holders(ring, holders),
    ]
