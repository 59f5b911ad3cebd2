"""The parts of which the bodies of the functions are made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from zlib import crc32

from shmring.table_ring.schema import Layout

__all__ = [
    "AWAIT_MESSAGE",
    "AWAIT_SLOT",
    "BIT",
    "FOREIGN",
    "FREE",
    "FULL_WITHIN",
    "IDLE",
    "NEAR",
    "PUSH",
    "RUNS",
    "VERSION",
    "Parts",
]

# To be raised with every change of a body.
VERSION = 13

# SQLSTATEs: a run of slots is free at its end but not before; a slot holds a foreign number; the
# end of the part of a transaction that holds a cursor's lock.
FULL_WITHIN = "SR001"
FOREIGN = "SR002"
TAKEN = "SR003"

# Advisory locks of a ring: the second key. That of a subscriber's cursor is its holder, which is
# below 64; that for runs of its numbers is RUNS above.
PUSH, AWAIT_MESSAGE, AWAIT_SLOT, RUNS = 64, 100, 200, 300

# How far below a cursor to search for numbers that were taken and not used: more than there are
# connections. The look that reads the whole table finds those further back.
NEAR = 300

# Milliseconds that a pop waits within the database for a message.
IDLE = 5

FREE = "s.reference_count = 0 AND s.holders = 0"
# The bit of the subscriber who pops, in functions that do not get it.
BIT = "(1::bigint << holder)"


@dataclass(frozen=True)
class Parts:
    """One ring, as SQL.

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
    def marked(self) -> str:
        """The declaration of the parameter that only functions of this version and layout have."""
        return f"{self._mark} boolean DEFAULT NULL"

    @property
    def mark(self) -> str:
        """The same parameter in a call."""
        return f"{self._mark} => NULL"

    @property
    def _mark(self) -> str:
        return f"v{VERSION}_{self.layout.slots}_{self.layout.stride}"

    def named(self, suffix: str = "") -> str:
        return f"{self.schema}.{self.name}{suffix}"

    def lock(self, which: str, shared: str = "") -> str:
        # The attempt is a plain expression, which costs a fraction of the statement that waits.
        return (
            f"IF NOT pg_try_advisory_xact_lock{shared}({self.key}, {which}) THEN"
            f" PERFORM pg_advisory_xact_lock{shared}({self.key}, {which}); END IF;"
        )

    def share(self, which: str) -> str:
        """Try to share a lock: an expression, a fraction of the cost of the waiting statement."""
        return f"pg_try_advisory_xact_lock_shared({self.key}, {which})"

    def share_at_last(self, which: str) -> str:
        return f"pg_advisory_xact_lock_shared({self.key}, {which})"

    def alone(self, which: str) -> str:
        """Wait until no call is between a number of this cursor and its UPDATE; block new calls."""
        return f"{self.lock(f'{which} + {RUNS}')} {self.lock(which)}"

    def briefly(self, body: str) -> str:
        """Hold these statements' locks only while they run, not until the transaction ends.

        Undoing a part of a transaction gives its locks back; a sequence is not undone.
        """
        return f"""
                BEGIN
                    {body}
                    RAISE SQLSTATE '{TAKEN}';
                EXCEPTION WHEN SQLSTATE '{TAKEN}' THEN
                    NULL;
                END;"""

    def wake(self, which: int) -> str:
        # A session that waits holds this lock alone. If none does, none is notified: with a NOTIFY
        # only one transaction of the whole server can commit at a time. We share the lock until the
        # commit: a session that begins to wait meanwhile looks again before it sleeps.
        return f"IF NOT {self.share(str(which))} THEN {self.notify} END IF;"

    @property
    def notify(self) -> str:
        return f"PERFORM pg_notify('{self.name}', '');"

    @property
    def take(self) -> str:
        """Take the number of the next push."""
        return f"(nextval('{self.named('_push')}'::regclass) - 1)"

    @property
    def held_by_all(self) -> str:
        """Let a slot wait for all subscribers.

        The two functions are constants, which subscribing and unsubscribing replace: PostgreSQL
        then makes the plans that use them again. Reading the ring's row would cost more than
        everything else except the UPDATE.
        """
        return (
            f"reference_count = {self.named('_subscribed')}(), holders = {self.named('_holders')}()"
        )

    @property
    def noticed(self) -> str:
        """Notice a subscription that was committed before the lock was taken; always true.

        A session learns of invalid plans when it locks a table that it has not locked in its
        transaction. This call locks table 0, finds that it does not exist, and unlocks it: an
        existing table could be locked already.
        """
        return "pg_relation_is_updatable(0::oid::regclass, false) IS NOT NULL"

    @property
    def pushed(self) -> str:
        """How many numbers were pushed."""
        return f"pg_sequence_last_value('{self.named('_push')}'::regclass)"

    def set_pushed(self, value: str) -> str:
        return f"setval('{self.named('_push')}'::regclass, {value})"

    def slot(self, number: str) -> str:
        return self.layout.place_sql(number)

    def run(self, first: str, after: str) -> tuple[str, str, str]:
        """Return SQL for the slots `s` of a run: the join, the condition, and a slot's number.

        Within a lap the slots lie in a row, unless they are scattered.
        """
        if self.layout.stride == 1:
            place = self.slot(first)
            where = f"s.slot >= {place} AND s.slot < {place} + ({after} - {first})"
            # A SELECT is computed once; a plain expression would be computed for each row.
            return "", where, f"(s.slot + (SELECT {first} - {place}))"
        return (
            f"generate_series({first}, {after} - 1) g(k)",
            f"s.slot = {self.slot('g.k')}",
            "g.k",
        )

    def lap(self, first: str, after: str) -> str:
        """Return the end of the lap of a run's first number, or of the run, if that is earlier."""
        slots = self.layout.slots
        return f"least({after}, {first} - {first} % {slots} + {slots})"

    def count(self, first: str, after: str, guard: Callable[[str], str]) -> str:
        """Return how many slots of a run pass a guard, which gets the slot's number."""
        lap = self.lap(first, after)

        def count(first: str, after: str) -> str:
            join, where, number = self.run(first, after)
            join = join and f", {join}"
            return (
                f"(SELECT count(*) FROM {self.named()} s{join} WHERE {where} AND {guard(number)})"
            )

        return f"({count(first, lap)} + {count(lap, after)})"

    @property
    def next(self) -> str:
        """The number of the subscriber's next pop."""
        return "pg_sequence_last_value(pops)"

    @property
    def take_next(self) -> str:
        return "nextval(pops) - 1"

    @property
    def has_claims(self) -> str:
        """Whether the subscriber has claims, open ones or such as were given up."""
        return f"EXISTS (SELECT FROM {self.named('_claims')} c WHERE c.subscriber = holder)"

    def claimed(self, number: str) -> str:
        return (
            f"EXISTS (SELECT FROM {self.named('_claims')} c WHERE c.subscriber = holder"
            f" AND {number} BETWEEN c.first AND c.first + c.count - 1)"
        )

    def left(self, number: str) -> str:
        """Whether this number waits for the subscriber and is not claimed."""
        return (
            f"EXISTS (SELECT FROM {self.named()} p WHERE p.slot = {self.slot(number)}"
            f" AND p.message_id = {number} AND p.holders & {BIT} <> 0"
            f" AND NOT {self.claimed(number)})"
        )

    def passed(self, number: str) -> str:
        """Whether a slot holds this number, or a number of a later lap."""
        ahead = f"s.message_id - {number}"
        return f"(s.message_id >= {number} AND ({ahead}) % {self.layout.slots} = 0)"

    def await_message(self, nothing: str) -> str:
        """Wait a little for a message, without locks."""
        return f"""
                idle := least({IDLE}, timeout);
                WHILE {self.next} >= {self.pushed} LOOP
                    IF idle <= 0 THEN
                        {nothing}
                    END IF;
                    idle := idle - 1;
                    PERFORM pg_sleep(0.001);
                END LOOP;"""

    def count_down(self, bit: str = BIT) -> str:
        """Clear the subscriber's bit; the guard has checked that it is set."""
        return (
            f"UPDATE {self.named()} s SET reference_count = s.reference_count - 1::smallint,"
            f" holders = s.holders # {bit}"
        )

    def waits(self, number: str, bit: str = BIT) -> str:
        """Find a slot by its number, and guard it."""
        return f"s.slot = {self.slot(number)} AND {self.unpopped(number, bit)}"

    def unpopped(self, number: str, bit: str = BIT) -> str:
        """Guard a slot: the message in it has this number and waits for the subscriber."""
        return f"s.message_id = {number} AND s.holders & {bit} <> 0 AND s.reference_count > 0"

    def end(self, first: str, after: str) -> str:
        """Return the first number of a run that is not pushed yet, or the run's end."""
        return (
            f"(SELECT coalesce(min(g.k), {after}) FROM generate_series({first}, {after} - 1) g(k)"
            f" LEFT JOIN {self.named()} s ON s.slot = {self.slot('g.k')}"
            f" WHERE {self.passed('g.k')} IS NOT TRUE)"
        )
