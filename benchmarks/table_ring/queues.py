"""The queues that question.py compares, as PostgreSQL runs them.

Each is a table and two functions: push(count) and pop(count), which move so many messages and
return how many they moved. pgmq's are its send_batch() and pop() as published, on bytes. The
inventors' is what the ring's first form was: two sequences and one guarded UPDATE a message, tried
again until the slot is free or the message there. It has one message a step, one subscriber, and
nothing for whoever dies with a number; so it says what the database can do, not what a queue can.
It stands within a function, as the ring does, and within the loop itself, which saves the calls.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any, Protocol

import psycopg

from benchmarks.payload import MESSAGE
from shmring.errors import Empty, Full
from shmring.table_ring import TableRing
from shmring.table_ring.postgresql import LONGEST_WAIT

__all__ = [
    "INVENTORS",
    "INVENTORS_INLINE",
    "NAIVE",
    "PGMQ",
    "QUEUES",
    "RING",
    "SCATTERED",
    "SKIP",
    "Client",
    "client",
    "fresh",
]

NAIVE, SKIP, PGMQ = "naive table", "naive, SKIP LOCKED", "pgmq's algorithm"
INVENTORS = "inventors' algorithm, in a function"
INVENTORS_INLINE = "inventors' algorithm, inline"
RING, SCATTERED = "TableRing", "TableRing, scattered"
QUEUES = (NAIVE, SKIP, PGMQ, INVENTORS, INVENTORS_INLINE, RING, SCATTERED)
# Of the rings. A phase that pushes more ends when they are full.
SLOTS = 100_000

_OLDEST = "SELECT id FROM naive ORDER BY id LIMIT {count} FOR UPDATE"
_POP = {
    NAIVE: f"DELETE FROM naive WHERE id IN ({_OLDEST}) RETURNING message",
    SKIP: f"DELETE FROM naive WHERE id IN ({_OLDEST} SKIP LOCKED) RETURNING message",
    PGMQ: (
        "WITH cte AS (SELECT msg_id FROM pgmq WHERE vt <= clock_timestamp()"
        " ORDER BY msg_id ASC LIMIT {count} FOR UPDATE SKIP LOCKED)"
        " DELETE FROM pgmq USING cte WHERE pgmq.msg_id = cte.msg_id RETURNING pgmq.message"
    ),
}
_PUSH = {
    NAIVE: "INSERT INTO naive (time, message) SELECT {time}, m FROM unnest({rows}) m",
    PGMQ: (
        "INSERT INTO pgmq (vt, message) SELECT clock_timestamp(), m FROM unnest({rows}) m"
        " RETURNING msg_id"
    ),
}
_PUSH[SKIP] = _PUSH[NAIVE]
# One row, as one would write it.
_PUSH_ONE = {
    NAIVE: "INSERT INTO naive (time, message) VALUES ({time}, {row})",
    PGMQ: ("INSERT INTO pgmq (vt, message) VALUES (clock_timestamp(), {row}) RETURNING msg_id"),
}
_PUSH_ONE[SKIP] = _PUSH_ONE[NAIVE]

_INVENTORS = {
    "push": (
        "UPDATE inventors SET message_id = number, time = 1, message = one, reference_count = 1"
        f" WHERE slot = number % {SLOTS} AND reference_count = 0"
    ),
    "pop": (
        f"UPDATE inventors SET reference_count = reference_count - 1 WHERE slot = number % {SLOTS}"
        " AND message_id = number AND reference_count > 0 RETURNING message INTO data"
    ),
}
# A number is kept for the next step until its slot was met.
_INLINE = tuple(
    f"IF number IS NULL THEN number := nextval('inventors_{which}') - 1; END IF;"
    f" {update}; GET DIAGNOSTICS found_count = ROW_COUNT;"
    " IF found_count > 0 THEN number := NULL; END IF;"
    for which, update in _INVENTORS.items()
)
_FUNCTIONS = tuple(
    f"CREATE OR REPLACE FUNCTION inventors_{which}_one({taken}kept bigint) RETURNS {kind}"
    " LANGUAGE plpgsql AS $$ DECLARE"
    f" number bigint := coalesce(kept, nextval('inventors_{which}') - 1); data bytea;"
    f" BEGIN {_INVENTORS[which]};"
    f" IF FOUND THEN RETURN {result}; END IF; RETURN NULL; END $$"
    for which, taken, kind, result in (
        ("push", "one bytea, ", "bigint", "number"),
        ("pop", "", "bytea", "data"),
    )
)

_TABLES = (
    "CREATE TABLE naive (id bigserial PRIMARY KEY, time bigint, message bytea)",
    "CREATE TABLE pgmq (msg_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,"
    " read_ct integer DEFAULT 0 NOT NULL, enqueued_at timestamptz DEFAULT now() NOT NULL,"
    " vt timestamptz NOT NULL, message bytea)",
    "CREATE INDEX ON pgmq (vt ASC)",
    "CREATE TABLE inventors (slot bigint PRIMARY KEY, message_id bigint, time bigint,"
    " reference_count smallint NOT NULL, message bytea) WITH (fillfactor = 45)",
    "INSERT INTO inventors SELECT n, NULL, NULL, 0, decode(repeat('00', 300), 'hex')"
    f" FROM generate_series(0, {SLOTS - 1}) n",
    "CREATE SEQUENCE inventors_push",
    "CREATE SEQUENCE inventors_pop",
    *_FUNCTIONS,
    "ANALYZE inventors",
)

# Each step is a transaction, as a client's statement would be one. The time is that of the last
# message, lest a queue be charged for what it had none for; and so many misses in a row end it.
_LOOP = """
    CREATE OR REPLACE PROCEDURE {name}(
        seconds float8, misses integer, INOUT moved bigint, INOUT lasted float8)
    LANGUAGE plpgsql AS $$
    DECLARE
        begun timestamptz := clock_timestamp();
        until timestamptz := begun + seconds * interval '1 second';
        dry timestamptz;
        missed integer := 0;
        one bytea := decode(repeat('61', {size}), 'hex');
        pushed bigint;
        rows_ bytea[] := array_fill(one, ARRAY[{count}]);
        number bigint;
        data bytea;
        step bigint := 0;
        found_count bigint;
    BEGIN
        moved := 0;
        LOOP
            {step}
            COMMIT;
            moved := moved + coalesce(found_count, 0);
            IF coalesce(found_count, 0) = 0 THEN
                dry := coalesce(dry, clock_timestamp());
                missed := missed + 1;
                EXIT WHEN missed >= misses;
                {miss}
                COMMIT;
                PERFORM pg_sleep(0.001);
            ELSIF missed > 0 THEN
                dry := NULL;
                missed := 0;
                number := NULL;
            END IF;
            step := step + 1;
            EXIT WHEN step % 10 = 0 AND clock_timestamp() > until;
        END LOOP;
        lasted := extract(epoch FROM coalesce(dry, clock_timestamp()) - begun);
    END $$"""


class Client(Protocol):
    """One connection; each call returns how many messages it moved, 0 when full or empty.

    Attributes
    ----------
    session : pid of the server's process
    """

    session: int

    def push(self, count: int) -> int: ...
    def pop(self, count: int) -> int: ...


class _RingClient:
    def __init__(self, url: str, durability: Any) -> None:
        name = f"bench-{os.getpid()}"
        self._ring = TableRing.attach(f"{url}&application_name={name}", durability=durability)
        query = b"SELECT pid FROM pg_stat_activity WHERE application_name = %s"
        with connect(url, durability) as connection:
            ((self.session,),) = connection.execute(query, (name,)).fetchall()

    def push(self, count: int) -> int:
        try:
            if count == 1:
                self._ring.push(MESSAGE, timeout=0.02)
            else:
                self._ring.push_many([MESSAGE] * count, timeout=0.02)
        except Full:
            return 0
        return count

    def pop(self, count: int) -> int:
        try:
            if count > 1:
                return len(self._ring.pop_many(count, timeout=0.02))
            self._ring.pop(timeout=0.02)
        except Empty:
            return 0
        return 1


class _PlainClient:
    """Prepared and binary, as the ring's own statements are."""

    def __init__(self, queue: str, url: str, durability: str) -> None:
        self._connection = connect(url, durability)
        self.session = self._connection.info.backend_pid
        self._cursor = self._connection.cursor(binary=True)
        self._push = _PUSH[queue].format(time="%s::bigint", rows="%s::bytea[]").encode()
        self._push_one = _PUSH_ONE[queue].format(time="%s", row="%s").encode()
        self._queue = queue

    def push(self, count: int) -> int:
        data = MESSAGE if count == 1 else [MESSAGE] * count
        values: Sequence[Any] = (data,) if self._queue == PGMQ else (time.time_ns(), data)
        self._cursor.execute(self._push_one if count == 1 else self._push, values, prepare=True)
        return count

    def pop(self, count: int) -> int:
        sql = _pop(self._queue, count).encode()
        found = len(self._cursor.execute(sql, prepare=True).fetchall())
        if not found:
            time.sleep(0.001)
        return found


def connect(url: str, durability: str) -> psycopg.Connection[Any]:
    """Open a connection of the driver's to the server of a URL as SQLAlchemy writes them."""
    address = url.replace("postgresql+psycopg://", "postgresql://")
    connection = psycopg.connect(address, autocommit=True)
    level = "on" if durability == "sync" else "off"
    # As TableRing sets its own sessions, lest a plan be kept that was made for an empty table.
    connection.execute(
        f"SET synchronous_commit = {level}; SET plan_cache_mode = force_generic_plan;"
        "SET jit = off; SET enable_seqscan = off; SET enable_hashjoin = off;"
        "SET enable_mergejoin = off".encode()
    )
    return connection


def client(queue: str, url: str, durability: str) -> Client:
    """Open one client's connection to a queue."""
    if queue in (RING, SCATTERED):
        return _RingClient(url, durability)
    return _PlainClient(queue, url, durability)


def fresh(queue: str, url: str) -> None:
    """Begin with an empty queue, and with its loops for the server."""
    with connect(url, "delayed") as connection:
        if connection.execute("SELECT to_regclass('shmring')").fetchone() != (None,):
            TableRing.drop(url)
        connection.execute("DROP TABLE IF EXISTS naive, pgmq, inventors")
        connection.execute("DROP SEQUENCE IF EXISTS inventors_push, inventors_pop")
        if queue in (RING, SCATTERED):
            TableRing.create(url, slots=SLOTS, scattered=queue == SCATTERED).close()
        else:
            for statement in _TABLES:
                connection.execute(statement.encode())
        for count in (1,) if queue in (INVENTORS, INVENTORS_INLINE) else (1, 100):
            for which, step, miss in zip(("push", "pop"), *_steps(queue, count), strict=True):
                name = f"loop_{which}_{count}"
                body = _LOOP.format(name=name, size=len(MESSAGE), count=count, step=step, miss=miss)
                connection.execute(body.encode())
        # All begin with nothing of the one before still to be written.
        connection.execute("CHECKPOINT")


def _pop(queue: str, count: int) -> str:
    sql = _POP[queue].format(count=count)
    return sql.replace("id IN (", "id = (") if count == 1 else sql


def _steps(queue: str, count: int) -> tuple[tuple[str, ...], tuple[str, str]]:
    """What one step of the loops does, and what it does when nothing was moved."""
    counted = "GET DIAGNOSTICS found_count = ROW_COUNT;"
    found = "found_count := ({} IS NOT NULL)::int;".format
    if queue == INVENTORS_INLINE:
        return _INLINE, ("NULL;", "NULL;")
    if queue == INVENTORS:
        kept = "number := currval('inventors_{}') - 1;".format
        push = "pushed := inventors_push_one(one, number);"
        pop = "data := inventors_pop_one(number);"
        return (push + found("pushed"), pop + found("data")), (kept("push"), kept("pop"))
    if queue not in (RING, SCATTERED):
        push = (_PUSH_ONE if count == 1 else _PUSH)[queue].format(time="1", row="one", rows="rows_")
        push = push.removesuffix(" RETURNING msg_id")
        pop = _pop(queue, count)
        pop = f"{pop} INTO data" if count == 1 else pop.partition(" RETURNING ")[0]
        return (f"{push}; {counted}", f"{pop}; {counted}"), ("NULL;", "NULL;")
    me = "0, 'shmring_pop_0'::regclass"
    misses = (
        "PERFORM shmring_look_push(0);",
        f"PERFORM shmring_look_pop('main', {me}, false);",
    )
    if count == 1:
        push = f"pushed := shmring_push_one(one, 1, {LONGEST_WAIT});"
        pop = f"data := shmring_pop_one(0, 1, 'shmring_pop_0'::regclass, {LONGEST_WAIT}, false);"
        return (push + found("pushed"), pop + found("data")), misses
    push = (
        "pushed := shmring_push_many(rows_, 1);"
        f" found_count := CASE WHEN pushed IS NULL THEN 0 ELSE {count} END;"
    )
    return (
        push,
        f"PERFORM FROM shmring_pop_many({me}, {count}, {LONGEST_WAIT}); {counted}",
    ), misses
