"""The functions of a table ring that live in PostgreSQL.

A ring called ``orders`` has, beside its tables:

``orders_push``, ``orders_pop_<n>``
    sequences: the number of the next push, and of each subscriber's next pop. A sequence is no row:
    no version of it stays behind, however old the snapshots are that somebody holds
``orders_claims``
    a row a run of numbers that a subscriber's cursor has passed and that are not popped: an open
    claim, locked by its transaction; or what was given up, for the next who pops
``orders_subscribed``, ``orders_holders``
    functions without a parameter: how many subscribers there are, and which bits of `holders` are
    theirs. A constant in the plans of those who push
``orders_version``, ``orders_made``
    functions without a parameter: of which version the functions are, and for which ring they were
    made
the functions of `push`, `pop`, `claims` and `looks`
    each runs in one statement, and so in one round trip. The last parameter of those that a client
    calls means nothing, and is named after the version and the layout: PostgreSQL looks for it when
    it reads the client's statement, and again when the functions are replaced, or the ring is
    dropped and made again in another size

Who takes one number takes it from the sequence and makes one guarded UPDATE of its slot; until the
end of that transaction it holds the cursor's advisory lock shared. Who pushes a run holds the lock
alone. Who pops a run holds a second lock shared until the end, and the cursor's alone while it
looks at the run's slots and moves the sequence, and no longer: what is not popped yet keeps its
slots. Who puts a cursor right holds all of its locks alone: then nobody is between a number and its
UPDATE, and the slots tell the truth. A number below the highest pushed one that is in no slot will
never come, and is passed over; numbers above it are taken back. A sequence is not undone with its
transaction and may jump after a crash of the server, so it can be ahead of the slots, never behind.
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
    POP,
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
    "POP",
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
    """Return the statements after which messages wait for these subscribers."""
    return [constants.subscribed(ring, subscribed), constants.holders(ring, holders)]
