"""The queues that question.py compares, as PostgreSQL runs them.

pgmq's statements are its send_batch() and pop() as published, on bytes. The inventors' algorithm is
what the ring's first form was: two sequences and one guarded UPDATE a message, tried again until
the slot is free or the message there. It has one message a step, one subscriber, and nothing for
whoever dies with a number; so it says what the database can do, not what a queue can.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import psycopg

from benchmarks.payload import MESSAGE
from shmring.errors import Empty, Full
from shmring.table_ring import TableRing

NAIVE, SKIP, PGMQ = "naive table", "naive, SKIP LOCKED", "pgmq's algorithm"
INVENTORS = "inventors' algorithm, in a function"
RING, SCATTERED = "TableRing", "TableRing, scattered"
QUEUES = (NAIVE, SKIP, PGMQ, INVENTORS, RING, SCATTERED)
# Slots of the rings. A phase that pushes more ends when they are full.
SLOTS = 100_000

_OLDEST = "DELETE FROM naive WHERE id IN (SELECT id FROM naive ORDER BY id LIMIT {count} FOR UPDATE"
_POP = {
    NAIVE: f"{_OLDEST}) RETURNING message",
    SKIP: f"{_OLDEST} SKIP LOCKED) RETURNING message",
    PGMQ: (
        "WITH cte AS (SELECT msg_id FROM pgmq WHERE vt <= clock_timestamp()"
        " ORDER BY msg_id ASC LIMIT {count} FOR UPDATE SKIP LOCKED)"
        " DELETE FROM pgmq USING cte WHERE pgmq.msg_id = cte.msg_id RETURNING pgmq.message"
    ),
}
_TABLES = f"""
    CREATE TABLE naive (id bigserial PRIMARY KEY, time bigint, message bytea);
    CREATE TABLE pgmq (msg_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        read_ct integer DEFAULT 0 NOT NULL, enqueued_at timestamptz DEFAULT now() NOT NULL,
        vt timestamptz NOT NULL, message bytea);
    CREATE INDEX ON pgmq (vt ASC);
    CREATE TABLE inventors (slot bigint PRIMARY KEY, message_id bigint, time bigint,
        reference_count smallint NOT NULL, message bytea) WITH (fillfactor = 45);
    INSERT INTO inventors SELECT n, NULL, NULL, 0, decode(repeat('00', 300), 'hex')
        FROM generate_series(0, {SLOTS - 1}) n;
    CREATE SEQUENCE inventors_push;
    CREATE SEQUENCE inventors_pop;
    CREATE FUNCTION inventors_push_one(one bytea, kept bigint) RETURNS bigint LANGUAGE plpgsql AS $$
    DECLARE number bigint := coalesce(kept, nextval('inventors_push') - 1);
    BEGIN
        UPDATE inventors SET message_id = number, time = 1, message = one, reference_count = 1
        WHERE slot = number % {SLOTS} AND reference_count = 0;
        IF FOUND THEN RETURN number; END IF;
        RETURN NULL;
    END $$;
    CREATE FUNCTION inventors_pop_one(kept bigint) RETURNS bytea LANGUAGE plpgsql AS $$
    DECLARE number bigint := coalesce(kept, nextval('inventors_pop') - 1); data bytea;
    BEGIN
        UPDATE inventors SET reference_count = reference_count - 1
        WHERE slot = number % {SLOTS} AND message_id = number AND reference_count > 0
        RETURNING message INTO data;
        IF FOUND THEN RETURN data; END IF;
        RETURN NULL;
    END $$;
    ANALYZE inventors"""

# Each step is a transaction, as a client's statement would be one. The time is that of the last
# message, lest a queue be charged for what it had none for; and so many misses in a row end it.
_LOOP = """
    CREATE OR REPLACE PROCEDURE loop_{which}(
        seconds float8, misses integer, INOUT moved bigint, INOUT lasted float8)
    LANGUAGE plpgsql AS $$
    DECLARE
        begun timestamptz := clock_timestamp();
        dry timestamptz;
        missed integer := 0;
        one bytea := decode(repeat('61', {size}), 'hex');
        number bigint;
        pushed bigint;
        data bytea;
        hit boolean;
    BEGIN
        moved := 0;
        WHILE missed < misses AND clock_timestamp() < begun + seconds * interval '1 second' LOOP
            FOR step IN 1..10 LOOP
                {step};
                COMMIT;
                IF hit THEN
                    moved := moved + 1;
                    missed := 0;
                    number := NULL;
                    dry := NULL;
                ELSE
                    missed := missed + 1;
                    dry := coalesce(dry, clock_timestamp());
                    {miss};
                    COMMIT;
                    PERFORM pg_sleep(0.001);
                END IF;
            END LOOP;
        END LOOP;
        lasted := extract(epoch FROM coalesce(dry, clock_timestamp()) - begun);
    END $$"""


class Client:
    """One connection. Statements are prepared and binary, as the ring's own are.

    Attributes
    ----------
    session : pid of the server's process
    """

    def __init__(self, queue: str, url: str, durability: Any, *, looping: bool) -> None:
        self._queue = queue
        self._connection = connect(url, durability)
        self._cursor = self._connection.cursor(binary=True)
        self.session = self._connection.info.backend_pid
        if queue in (RING, SCATTERED) and not looping:
            self._ring = TableRing.attach(
                f"{url}&application_name={os.getpid()}", durability=durability
            )
            query = b"SELECT pid FROM pg_stat_activity WHERE application_name = %s"
            ((self.session,),) = self._connection.execute(query, (str(os.getpid()),)).fetchall()

    def loop(self, job: str, batch: int, lasting: float, misses: int) -> tuple[int, float]:
        """Move messages in a loop of the server; return how many, and in how many seconds."""
        call = f"CALL loop_{job}({lasting}, {misses}, 0, 0)"
        return next(self._connection.execute(call.encode()))

    def run(self, job: str, batch: int, lasting: float, misses: int) -> tuple[int, float]:
        """Move messages, `batch` a call."""
        kind = "ring" if self._queue in (RING, SCATTERED) else "plain"
        call: Callable[[int], int] = getattr(self, f"_{kind}_{job}")
        begun = last = time.perf_counter()
        moved = missed = 0
        while (now := time.perf_counter()) - begun < lasting and missed < misses:
            try:
                moved, missed = moved + call(batch), 0
                last = time.perf_counter()
            except (Full, Empty):
                missed += 1
        return moved, (now if not missed else last) - begun

    def _plain_push(self, count: int) -> int:
        data = MESSAGE if count == 1 else [MESSAGE] * count
        values = (data,) if self._queue == PGMQ else (time.time_ns(), data)
        sql = _push(self._queue, count, "%s::bigint", "%s" if count == 1 else "%s::bytea[]")
        self._cursor.execute(sql.encode(), values, prepare=True)
        return count

    def _plain_pop(self, count: int) -> int:
        sql = _pop(self._queue, count).encode()
        if found := len(self._cursor.execute(sql, prepare=True).fetchall()):
            return found
        time.sleep(0.001)
        raise Empty

    def _ring_push(self, count: int) -> int:
        if count == 1:
            self._ring.push(MESSAGE, timeout=0.02)
        else:
            self._ring.push_many([MESSAGE] * count, timeout=0.02)
        return count

    def _ring_pop(self, count: int) -> int:
        if count > 1:
            return len(self._ring.pop_many(count, timeout=0.02))
        self._ring.pop(timeout=0.02)
        return 1


def connect(url: str, durability: str) -> psycopg.Connection[Any]:
    """Open a connection of the driver's to the server of a URL as SQLAlchemy writes them."""
    address = url.replace("postgresql+psycopg://", "postgresql://")
    connection = psycopg.connect(address, autocommit=True)
    level = "on" if durability == "sync" else "off"
    # TableRing's own settings: no plan is kept that was made for an empty table.
    connection.execute(
        f"SET synchronous_commit = {level}; SET plan_cache_mode = force_generic_plan;"
        "SET jit = off; SET enable_seqscan = off; SET enable_hashjoin = off;"
        "SET enable_mergejoin = off".encode()
    )
    return connection


def fresh(queue: str, url: str) -> None:
    """Begin with an empty queue, and with its loops for the server."""
    with connect(url, "delayed") as connection:
        connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        if queue in (RING, SCATTERED):
            TableRing.create(url, slots=SLOTS, scattered=queue == SCATTERED).close()
        else:
            connection.execute(_TABLES.encode())
        for which, (step, miss) in _steps(queue).items():
            loop = _LOOP.format(which=which, size=len(MESSAGE), step=step, miss=miss)
            connection.execute(loop.encode())
        # All begin with nothing of the one before still to be written.
        connection.execute("CHECKPOINT")


def _push(queue: str, count: int, now: str, data: str) -> str:
    table, now = ("pgmq (vt", "clock_timestamp()") if queue == PGMQ else ("naive (time", now)
    rows = f"VALUES ({now}, {data})" if count == 1 else f"SELECT {now}, m FROM unnest({data}) m"
    return f"INSERT INTO {table}, message) {rows}"


def _pop(queue: str, count: int) -> str:
    sql = _POP[queue].format(count=count)
    return sql.replace("id IN (", "id = (") if count == 1 else sql


def _steps(queue: str) -> dict[str, tuple[str, str]]:
    """SQL of one step of each loop, and SQL for a step that moved nothing."""
    if queue in _POP:
        push, pop = _push(queue, 1, "1", "one"), f"{_pop(queue, 1)} INTO data"
        return {"push": (f"{push}; hit := true", "NULL"), "pop": (f"{pop}; hit := FOUND", "NULL")}
    me = "0, 'shmring_pop_0'::regclass"
    calls = {
        INVENTORS: (
            ("inventors_push_one(one, number)", "number := currval('inventors_push') - 1"),
            ("inventors_pop_one(number)", "number := currval('inventors_pop') - 1"),
        )
    }
    ring = (
        ("shmring_push_one(one, 1, 50)", "PERFORM shmring_look_push(0)"),
        (
            "shmring_pop_one(0, 1, 'shmring_pop_0'::regclass, 50)",
            f"PERFORM shmring_look_pop('main', {me}, false)",
        ),
    )
    (push, full), (pop, empty) = calls.get(queue, ring)
    return {
        "push": (f"pushed := {push}; hit := pushed IS NOT NULL", full),
        "pop": (f"data := {pop}; hit := data IS NOT NULL", empty),
    }
