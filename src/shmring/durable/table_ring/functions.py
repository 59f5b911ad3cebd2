"""The functions of a table ring that live in PostgreSQL.

A ring called ``orders`` has, beside its tables:

``orders_push``, ``orders_pop_<n>``
    sequences: the number of the next push, and of each subscriber's next pop. A sequence is no row:
    no version of it stays behind, however old the snapshots are that somebody holds
``orders_claims``
    a row a run of numbers that a subscriber's cursor has passed and that are not popped: an open
    claim, locked by its transaction; or what was given up, for the next who pops
the functions below
    each runs in one statement, and so in one round trip

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

from collections.abc import Callable
from dataclasses import dataclass

from shmring.durable.table_ring.schema import Layout

__all__ = [
    "AWAIT_MESSAGE",
    "AWAIT_SLOT",
    "FOREIGN",
    "FULL_WITHIN",
    "IDLE",
    "POP",
    "PUSH",
    "VERSION",
    "Functions",
    "names",
]

# Raised whenever a body below changes.
VERSION = 4
# SQLSTATEs: a run of slots is free at its end and not before; a slot holds what is none of its own;
# and what ends the part of a transaction that holds a cursor's lock.
FULL_WITHIN = "SR001"
FOREIGN = "SR002"
TAKEN = "SR003"

# Advisory locks of a ring: the second key. Subscribers' numbers are below 64. The lock of those who
# have runs of a subscriber's numbers is RUNS above its cursor's.
PUSH, POP, AWAIT_MESSAGE, AWAIT_SLOT, RUNS = 0, 1, 100, 200, 300

# How far below a cursor one looks for numbers that somebody took and did not use: more than there
# are connections. What lies further back is found by the look that reads the whole table.
NEAR = 300

# Milliseconds that a pop waits within the database for a message.
IDLE = 5

_SUFFIXES = (
    "version resume claim open settle look_push look_pop push_one push_many pop_one pop_many"
)


def names(ring: str) -> list[str]:
    """Return the names of a ring's functions."""
    return [f"{ring}_{suffix}" for suffix in _SUFFIXES.split()]


@dataclass(frozen=True)
class Functions:
    """The functions of one ring, as SQL.

    Parameters
    ----------
    name : of the ring
    schema : that its tables are in, quoted as SQL wants it
    key : first key of the ring's advisory locks
    """

    name: str
    schema: str
    key: int
    layout: Layout

    def create(self) -> list[str]:
        """Return the statements that create the functions, each after those that it calls."""
        return [
            *(self._version, self._open, self._settle, self._resume, self._claim),
            *(self._look_push, self._look_pop),
            *(self._push_one, self._push_many, self._pop_one, self._pop_many),
        ]

    # -- what the bodies are made of -------------------------------------------------------------

    def _in(self, suffix: str = "") -> str:
        return f"{self.schema}.{self.name}{suffix}"

    def _lock(self, which: str, shared: str = "") -> str:
        # The attempt is a plain expression, a fraction of the statement that waits.
        return (
            f"IF NOT pg_try_advisory_xact_lock{shared}({self.key}, {which}) THEN"
            f" PERFORM pg_advisory_xact_lock{shared}({self.key}, {which}); END IF;"
        )

    def _alone(self, which: str) -> str:
        """Wait until nobody is between a number of this cursor and its UPDATE, and keep it so."""
        return f"{self._lock(f'{which} + {RUNS}')} {self._lock(which)}"

    def _take(self, which: str, body: str) -> str:
        """Hold the cursor's lock for these statements, and not until the transaction ends.

        What undoes a part of a transaction gives its locks back; a sequence is not undone.
        """
        return f"""
                BEGIN
                    {self._lock(which)}
                    {body}
                    RAISE SQLSTATE '{TAKEN}';
                EXCEPTION WHEN SQLSTATE '{TAKEN}' THEN
                    NULL;
                END;"""

    def _wake(self, which: int) -> str:
        # A session that waits holds this lock alone. Where none does, none is told: a NOTIFY lets
        # only one transaction of the whole server commit at a time. Held until the commit, our
        # share keeps a session that begins to wait meanwhile from sleeping before it has looked.
        return (
            f"IF NOT pg_try_advisory_xact_lock_shared({self.key}, {which}) THEN"
            f" PERFORM pg_notify('{self.name}', ''); END IF;"
        )

    def _last(self, sequence: str) -> str:
        return f"pg_sequence_last_value('{self._in(sequence)}'::regclass)"

    def _slot(self, number: str) -> str:
        return self.layout.place_sql(number)

    def _run(self, first: str, after: str) -> tuple[str, str, str]:
        """Return the slots `s` of a run: what to join, the condition, and a slot's number.

        Within a lap they lie in a row, unless they are scattered.
        """
        if self.layout.stride == 1:
            place = self._slot(first)
            where = f"s.slot >= {place} AND s.slot < {place} + ({after} - {first})"
            return "", where, f"(s.slot - {place} + {first})"
        return (
            f"generate_series({first}, {after} - 1) g(k)",
            f"s.slot = {self._slot('g.k')}",
            "g.k",
        )

    def _lap(self, first: str, after: str) -> str:
        """Return where the lap of a run's first number ends, or the run."""
        slots = self.layout.slots
        return f"least({after}, {first} - {first} % {slots} + {slots})"

    def _count(self, first: str, after: str, guard: Callable[[str], str]) -> str:
        """Return how many slots of a run pass a guard, which gets the slot's number."""
        lap = self._lap(first, after)

        def count(first: str, after: str) -> str:
            join, where, number = self._run(first, after)
            join = join and f", {join}"
            return f"(SELECT count(*) FROM {self._in()} s{join} WHERE {where} AND {guard(number)})"

        return f"({count(first, lap)} + {count(lap, after)})"

    def _claimed(self, number: str) -> str:
        return (
            f"EXISTS (SELECT FROM {self._in('_claims')} c WHERE c.subscriber = holder"
            f" AND {number} BETWEEN c.first AND c.first + c.count - 1)"
        )

    def _left(self, number: str) -> str:
        """Whether this number waits for the subscriber, and nobody claimed it."""
        return (
            f"EXISTS (SELECT FROM {self._in()} p WHERE p.slot = {self._slot(number)}"
            f" AND p.message_id = {number} AND p.holders & mask <> 0"
            f" AND NOT {self._claimed(number)})"
        )

    def _passed(self, number: str, held: str = "s.message_id") -> str:
        """Whether a slot holds this number, or one of a later lap."""
        return f"({held} >= {number} AND ({held} - {number}) % {self.layout.slots} = 0)"

    def _await_message(self, nothing: str) -> str:
        """Wait a little for a message, and hold nothing meanwhile."""
        return f"""
                idle := least({IDLE}, patience);
                WHILE pg_sequence_last_value(pops) >= {self._last("_push")} LOOP
                    IF idle <= 0 THEN
                        {nothing}
                    END IF;
                    idle := idle - 1;
                    PERFORM pg_sleep(0.001);
                END LOOP;"""

    @property
    def _count_down(self) -> str:
        return (
            f"UPDATE {self._in()} s SET reference_count = s.reference_count - 1,"
            " holders = s.holders & ~mask"
        )

    def _waits(self, number: str) -> str:
        """Find a slot by its number, and guard it."""
        return f"s.slot = {self._slot(number)} AND {self._unpopped(number)}"

    def _unpopped(self, number: str) -> str:
        """Guard a slot: the message in it has this number and waits for the subscriber."""
        return f"s.message_id = {number} AND s.holders & mask <> 0 AND s.reference_count > 0"

    # -- push ------------------------------------------------------------------------------------

    @property
    def _push_one(self) -> str:
        return f"""
            CREATE OR REPLACE FUNCTION {self._in("_push_one")}(
                data bytea, written bigint, patience integer)
            RETURNS bigint LANGUAGE plpgsql AS $$
            DECLARE
                number bigint;
            BEGIN
                {self._lock(str(PUSH), "_shared")}
                number := nextval('{self._in("_push")}'::regclass) - 1;
                LOOP
                    UPDATE {self._in()} s SET message_id = number, time = written, message = data,
                        reference_count = r.subscribers, holders = r.holders
                    FROM {self._in("_ring")} r
                    WHERE r.id = 0 AND s.slot = {self._slot("number")}
                        AND s.reference_count = 0 AND s.holders = 0;
                    IF FOUND THEN
                        {self._wake(AWAIT_MESSAGE)}
                        RETURN number;
                    END IF;
                    IF patience <= 0 THEN
                        RETURN NULL; -- look_push takes the number back
                    END IF;
                    patience := patience - 1;
                    PERFORM pg_sleep(0.001);
                END LOOP;
            END $$"""

    @property
    def _push_many(self) -> str:
        # Beside another push a slot that is free could be one that a number of the lap before was
        # taken for: so the lock is kept until the slots are filled and committed.
        join, where, number = self._run("first", "lap")
        free = "s.reference_count = 0 AND s.holders = 0"
        return f"""
            CREATE OR REPLACE FUNCTION {self._in("_push_many")}(data bytea[], written bigint)
            RETURNS bigint LANGUAGE plpgsql AS $$
            DECLARE
                wanted bigint := cardinality(data);
                number bigint;
                first bigint;
                lap bigint;
                filled bigint;
                known record;
            BEGIN
                {self._lock(str(PUSH))}
                number := {self._last("_push")};
                -- As a rule slots come free in the order of their numbers: ask the last one first.
                IF NOT EXISTS (SELECT FROM {self._in()} s
                    WHERE s.slot = {self._slot("(number + wanted - 1)")} AND s.reference_count = 0)
                THEN
                    RETURN NULL;
                END IF;
                SELECT r.subscribers, r.holders INTO known
                FROM {self._in("_ring")} r WHERE r.id = 0;
                first := number;
                WHILE first < number + wanted LOOP
                    lap := {self._lap("first", "number + wanted")};
                    UPDATE {self._in()} s SET message_id = {number}, time = written,
                        message = data[{number} - number + 1],
                        reference_count = known.subscribers, holders = known.holders
                    {join and f"FROM {join}"}
                    WHERE {where} AND {free};
                    GET DIAGNOSTICS filled = ROW_COUNT;
                    IF filled <> lap - first THEN
                        RAISE 'a slot is not free' USING ERRCODE = '{FULL_WITHIN}';
                    END IF;
                    first := lap;
                END LOOP;
                PERFORM setval('{self._in("_push")}'::regclass, number + wanted);
                {self._wake(AWAIT_MESSAGE)}
                RETURN number;
            END $$"""

    @property
    def _look_push(self) -> str:
        return f"""
            CREATE OR REPLACE FUNCTION {self._in("_look_push")}(
                ahead bigint, OUT push bigint, OUT number bigint, OUT message_id bigint,
                OUT reference_count integer, OUT holders bigint, OUT known bigint)
            LANGUAGE plpgsql AS $$
            #variable_conflict use_column
            DECLARE
                highest bigint;
            BEGIN
                {self._lock(str(PUSH))}
                push := {self._last("_push")};
                IF push > 0 AND NOT EXISTS (SELECT FROM {self._in()} s
                    WHERE s.slot = {self._slot("(push - 1)")} AND s.message_id = push - 1)
                THEN
                    SELECT max(s.message_id) INTO highest
                    FROM generate_series(greatest(push - {NEAR}, 0), push - 1) g(k)
                    JOIN {self._in()} s ON s.slot = {self._slot("g.k")} AND s.message_id = g.k;
                    IF highest IS NULL THEN
                        -- A crash leaves an unlogged table without rows: nothing is known then.
                        SELECT CASE WHEN count(*) > 0 THEN coalesce(max(s.message_id), -1) END
                        INTO highest FROM {self._in()} s;
                    END IF;
                    IF highest + 1 < push THEN
                        push := setval('{self._in("_push")}'::regclass, highest + 1);
                    END IF;
                END IF;
                number := push + ahead;
                SELECT s.message_id, s.reference_count, s.holders, r.holders
                INTO message_id, reference_count, holders, known
                FROM {self._in("_ring")} r
                LEFT JOIN {self._in()} s ON s.slot = {self._slot("number")}
                WHERE r.id = 0;
                IF ahead > 0 AND reference_count = 0 AND holders = 0 THEN
                    SELECT g.k, s.message_id, s.reference_count, s.holders
                    INTO number, message_id, reference_count, holders
                    FROM generate_series(push, push + ahead) g(k)
                    LEFT JOIN {self._in()} s ON s.slot = {self._slot("g.k")}
                    WHERE s.reference_count IS DISTINCT FROM 0 OR s.holders IS DISTINCT FROM 0
                        OR g.k = push + ahead
                    ORDER BY g.k LIMIT 1;
                END IF;
            END $$"""

    # -- pop -------------------------------------------------------------------------------------

    @property
    def _pop_one(self) -> str:
        return f"""
            CREATE OR REPLACE FUNCTION {self._in("_pop_one")}(
                holder integer, pops regclass, patience integer)
            RETURNS bytea LANGUAGE plpgsql AS $$
            DECLARE
                mask bigint := 1::bigint << holder;
                number bigint;
                held bigint;
                idle integer;
                found_data bytea;
            BEGIN
                IF {self._last("_claims_id_seq")} IS NOT NULL THEN
                    SELECT r.message INTO found_data FROM {self._in("_resume")}(holder, 1) r;
                    IF FOUND THEN
                        RETURN found_data;
                    END IF;
                END IF;
                {self._await_message("RETURN NULL;")}
                {self._lock(f"{POP} + holder", "_shared")}
                LOOP
                    IF pg_sequence_last_value(pops) >= {self._last("_push")} THEN
                        RETURN NULL;
                    END IF;
                    number := nextval(pops) - 1;
                    LOOP
                        {self._count_down} WHERE {self._waits("number")}
                        RETURNING s.message INTO found_data;
                        IF FOUND THEN
                            {self._wake(AWAIT_SLOT)}
                            RETURN found_data;
                        END IF;
                        SELECT s.message_id INTO held FROM {self._in()} s
                        WHERE s.slot = {self._slot("number")};
                        IF NOT FOUND OR (held - number) % {self.layout.slots} <> 0 THEN
                            RAISE 'message % should be in slot %, which holds %', number,
                                {self._slot("number")}, coalesce(held::text, 'nothing')
                                USING ERRCODE = '{FOREIGN}';
                        END IF;
                        EXIT WHEN held >= number;
                        IF patience <= 0 THEN
                            RETURN NULL; -- look_pop takes the number back
                        END IF;
                        patience := patience - 1;
                        PERFORM pg_sleep(0.001);
                    END LOOP;
                END LOOP;
            END $$"""

    @property
    def _pop_many(self) -> str:
        join, where, number = self._run("first", "lap")
        cursor = f"{POP} + holder"
        waiting = self._count("number", "after", self._unpopped)
        take = f"""
                    number := pg_sequence_last_value(pops);
                    after := least(number + most, {self._last("_push")});
                    -- While others have runs, what they have not popped yet is not left.
                    left_over := number < after
                        AND pg_try_advisory_xact_lock({self.key}, {cursor} + {RUNS})
                        AND {self._left("(number - 1)")};
                    IF number < after AND NOT left_over THEN
                        IF {waiting} < after - number THEN
                            after := {self._end("number", "after")};
                        END IF;
                        IF after > number THEN
                            PERFORM setval(pops, after);
                        END IF;
                    END IF;"""
        return f"""
            CREATE OR REPLACE FUNCTION {self._in("_pop_many")}(
                holder integer, pops regclass, most bigint, patience integer)
            RETURNS TABLE (message_id bigint, "time" bigint, message bytea) LANGUAGE plpgsql AS $$
            #variable_conflict use_column
            DECLARE
                mask bigint := 1::bigint << holder;
                number bigint;
                after bigint;
                left_over boolean;
                first bigint;
                lap bigint;
                idle integer;
            BEGIN
                IF {self._last("_claims_id_seq")} IS NOT NULL THEN
                    RETURN QUERY SELECT * FROM {self._in("_resume")}(holder, most);
                    IF FOUND THEN
                        RETURN;
                    END IF;
                END IF;
                {self._await_message("RETURN;")}
                {self._lock(f"{cursor} + {RUNS}", "_shared")}
                LOOP
                    {self._take(cursor, take)}
                    EXIT WHEN after > number AND NOT left_over;
                    IF left_over OR patience <= 0 OR number >= {self._last("_push")} THEN
                        RETURN;
                    END IF;
                    -- A push is in the middle of its transaction.
                    patience := patience - 1;
                    PERFORM pg_sleep(0.001);
                END LOOP;
                first := number;
                WHILE first < after LOOP
                    lap := {self._lap("first", "after")};
                    RETURN QUERY {self._count_down} {join and f"FROM {join}"}
                    WHERE {where} AND {self._unpopped(number)}
                    RETURNING s.message_id, s.time, s.message;
                    first := lap;
                END LOOP;
                {self._wake(AWAIT_SLOT)}
            END $$"""

    def _end(self, first: str, after: str) -> str:
        """Return the first number of a run that is not pushed yet, or the run's end."""
        return (
            f"(SELECT coalesce(min(g.k), {after}) FROM generate_series({first}, {after} - 1) g(k)"
            f" LEFT JOIN {self._in()} s ON s.slot = {self._slot('g.k')}"
            f" WHERE {self._passed('g.k')} IS NOT TRUE)"
        )

    @property
    def _claim(self) -> str:
        return f"""
            CREATE OR REPLACE FUNCTION {self._in("_claim")}(
                holder integer, pops regclass, most bigint)
            RETURNS boolean LANGUAGE plpgsql AS $$
            DECLARE
                mask bigint := 1::bigint << holder;
                number bigint;
                after bigint;
            BEGIN
                PERFORM FROM {self._in("_claims")} c WHERE c.subscriber = holder
                LIMIT 1 FOR UPDATE SKIP LOCKED;
                IF FOUND THEN
                    RETURN true;
                END IF;
                {self._alone(f"{POP} + holder")}
                number := pg_sequence_last_value(pops);
                after := least(number + most, {self._last("_push")});
                IF number >= after OR {self._left("(number - 1)")} THEN
                    RETURN false;
                END IF;
                after := {self._end("number", "after")};
                IF number >= after THEN
                    RETURN false;
                END IF;
                INSERT INTO {self._in("_claims")} (subscriber, first, count)
                VALUES (holder, number, after - number);
                PERFORM setval(pops, after);
                RETURN true;
            END $$"""

    @property
    def _open(self) -> str:
        # The messages' rows stay unlocked while the claim is open: other subscribers pop them too.
        return f"""
            CREATE OR REPLACE FUNCTION {self._in("_open")}(holder integer, most bigint)
            RETURNS TABLE (claim bigint, message_id bigint, "time" bigint, message bytea)
            LANGUAGE plpgsql AS $$
            #variable_conflict use_column
            DECLARE
                mask bigint := 1::bigint << holder;
                claimed record;
            BEGIN
                SELECT c.id, c.first, c.count INTO claimed FROM {self._in("_claims")} c
                WHERE c.subscriber = holder ORDER BY c.first LIMIT 1 FOR UPDATE SKIP LOCKED;
                RETURN QUERY SELECT claimed.id, s.message_id, s.time, s.message
                FROM generate_series(claimed.first, claimed.first + claimed.count - 1) g(k)
                JOIN {self._in()} s ON {self._waits("g.k")}
                ORDER BY 2 LIMIT most;
                IF NOT FOUND THEN
                    -- All of them were popped before: the claim is nothing any more.
                    DELETE FROM {self._in("_claims")} c WHERE c.id = claimed.id;
                END IF;
            END $$"""

    @property
    def _settle(self) -> str:
        return f"""
            CREATE OR REPLACE FUNCTION {self._in("_settle")}(
                holder integer, claim bigint, last bigint)
            RETURNS void LANGUAGE plpgsql AS $$
            DECLARE
                mask bigint := 1::bigint << holder;
                claimed record;
            BEGIN
                SELECT c.first, c.count INTO STRICT claimed FROM {self._in("_claims")} c
                WHERE c.id = claim;
                {self._count_down} FROM generate_series(claimed.first, last) g(k)
                WHERE {self._waits("g.k")};
                IF last < claimed.first + claimed.count - 1 THEN
                    UPDATE {self._in("_claims")} c
                    SET first = last + 1, count = c.count - (last + 1 - c.first)
                    WHERE c.id = claim;
                ELSE
                    DELETE FROM {self._in("_claims")} c WHERE c.id = claim;
                END IF;
                {self._wake(AWAIT_SLOT)}
            END $$"""

    @property
    def _resume(self) -> str:
        return f"""
            CREATE OR REPLACE FUNCTION {self._in("_resume")}(holder integer, most bigint)
            RETURNS TABLE (message_id bigint, "time" bigint, message bytea) LANGUAGE plpgsql AS $$
            #variable_conflict use_column
            DECLARE
                claimed record;
            BEGIN
                SELECT max(o.claim) AS claim, max(o.message_id) AS last,
                    array_agg(o.message_id) AS ids, array_agg(o.time) AS times,
                    array_agg(o.message) AS data
                INTO claimed FROM {self._in("_open")}(holder, most) o;
                IF claimed.claim IS NOT NULL THEN
                    PERFORM {self._in("_settle")}(holder, claimed.claim, claimed.last);
                    RETURN QUERY SELECT * FROM unnest(claimed.ids, claimed.times, claimed.data);
                END IF;
            END $$"""

    @property
    def _look_pop(self) -> str:
        me = f"{self.name}_look_pop"
        return f"""
            CREATE OR REPLACE FUNCTION {self._in("_look_pop")}(
                subscriber text, holder integer, pops regclass, whole boolean,
                OUT push bigint, OUT number bigint, OUT message_id bigint,
                OUT reference_count integer, OUT holders bigint, OUT known bigint,
                OUT returned boolean)
            LANGUAGE plpgsql AS $$
            #variable_conflict use_column
            DECLARE
                mask bigint := 1::bigint << holder;
                missed bigint[];
            BEGIN
                IF NOT EXISTS (SELECT FROM {self._in("_subscribers")} u
                    WHERE u.name = {me}.subscriber AND u.holder = {me}.holder) THEN
                    RETURN;
                END IF;
                push := {self._last("_push")};
                number := pg_sequence_last_value(pops);
                IF whole OR number > push OR {self._left("(number - 1)")} OR (number < push
                    AND NOT EXISTS (SELECT FROM {self._in()} s WHERE {self._waits("number")}))
                THEN
                    push := (SELECT l.push FROM {self._in("_look_push")}(0) l);
                    {self._alone(f"{POP} + holder")}
                    number := least(pg_sequence_last_value(pops), push);
                    IF whole THEN
                        SELECT array_agg(s.message_id ORDER BY s.message_id) INTO missed
                        FROM {self._in()} s
                        WHERE s.message_id < number AND s.holders & mask <> 0
                            AND NOT {self._claimed("s.message_id")};
                    ELSE
                        SELECT array_agg(g.k ORDER BY g.k) INTO missed
                        FROM generate_series(greatest(number - {NEAR}, 0), number - 1) g(k)
                        WHERE {self._left("g.k")};
                    END IF;
                    -- Numbers in a row up to the cursor are the next again; others come as claims.
                    WHILE missed[cardinality(missed)] = number - 1 LOOP
                        number := number - 1;
                        missed := missed[:cardinality(missed) - 1];
                    END LOOP;
                    INSERT INTO {self._in("_claims")} (subscriber, first, count)
                    SELECT holder, m, 1 FROM unnest(missed) m;
                    -- What is in no slot below the highest number will never come.
                    WHILE number < push AND EXISTS (SELECT FROM {self._in()} s
                        WHERE s.slot = {self._slot("number")}
                            AND coalesce((number - s.message_id) % {self.layout.slots} = 0, true)
                            AND NOT (s.message_id = number AND s.holders & mask <> 0)) LOOP
                        number := number + 1;
                    END LOOP;
                    IF number <> pg_sequence_last_value(pops) THEN
                        PERFORM setval(pops, number);
                    END IF;
                END IF;
                SELECT s.message_id, s.reference_count, s.holders, r.holders
                INTO message_id, reference_count, holders, known
                FROM {self._in("_ring")} r
                LEFT JOIN {self._in()} s ON s.slot = {self._slot("number")}
                WHERE r.id = 0;
                PERFORM FROM {self._in("_claims")} c WHERE c.subscriber = {me}.holder
                LIMIT 1 FOR UPDATE SKIP LOCKED;
                returned := FOUND;
            END $$"""

    @property
    def _version(self) -> str:
        return (
            f"CREATE OR REPLACE FUNCTION {self._in('_version')}() RETURNS integer"
            f" LANGUAGE sql IMMUTABLE AS 'SELECT {VERSION}'"
        )
