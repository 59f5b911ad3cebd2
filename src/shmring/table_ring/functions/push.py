"""The functions that push."""

from __future__ import annotations

from shmring.table_ring.functions.parts import (
    AWAIT_MESSAGE,
    FREE,
    FULL_WITHIN,
    PUSH,
    Parts,
)

__all__ = ["push_many", "push_one"]


def push_one(ring: Parts) -> str:
    """Return the function that pushes a message.

    Mostly, each statement of its first round runs once, and no other statement runs.
    """
    return f"""
        CREATE OR REPLACE FUNCTION {ring.named("_push_one")}(
            data bytea, written bigint, timeout integer, {ring.marked})
        RETURNS bigint LANGUAGE plpgsql AS $$
        DECLARE
            number bigint;
            alone boolean;
        BEGIN
            number := CASE WHEN {ring.share(str(PUSH))} THEN
                CASE WHEN {ring.noticed} THEN {ring.take} END END;
            LOOP
                UPDATE {ring.named()} s SET message_id = number, time = written, message = data,
                    {ring.held_by_all}
                WHERE s.slot = {ring.slot("number")} AND {FREE}
                    AND coalesce(s.message_id, -1) < number
                RETURNING {ring.share(str(AWAIT_MESSAGE))} INTO alone;
                IF alone THEN
                    RETURN number;
                END IF;
                IF FOUND THEN
                    {ring.notify}
                    RETURN number;
                END IF;
                IF number IS NULL THEN -- somebody looks
                    PERFORM {ring.share_at_last(str(PUSH))};
                    number := CASE WHEN {ring.noticed} THEN {ring.take} END;
                    CONTINUE;
                END IF;
                IF EXISTS (SELECT FROM {ring.named()} s
                    WHERE s.slot = {ring.slot("number")} AND s.message_id >= number)
                THEN -- the slot has a later lap, or this number: the cursor was set back
                    number := {ring.take};
                    CONTINUE;
                END IF;
                IF timeout <= 0 THEN
                    RETURN NULL; -- look_push takes the number back
                END IF;
                timeout := timeout - 1;
                PERFORM pg_sleep(0.001);
            END LOOP;
        END $$"""


def push_many(ring: Parts) -> str:
    """Return the function that pushes a run."""
    # With two pushes at a time, a free slot could belong to a number of the lap before, which is
    # taken but not filled yet: so the lock is kept until the slots are filled and committed.
    join, where, number = ring.run("first", "lap")
    return f"""
        CREATE OR REPLACE FUNCTION {ring.named("_push_many")}(
            data bytea[], written bigint, {ring.marked})
        RETURNS bigint LANGUAGE plpgsql AS $$
        DECLARE
            wanted bigint := cardinality(data);
            number bigint;
            first bigint;
            lap bigint;
            filled bigint;
        BEGIN
            IF wanted > {ring.layout.slots} THEN
                RAISE '% messages can never fit {ring.layout.slots} slots', wanted
                    USING ERRCODE = 'invalid_parameter_value';
            END IF;
            {ring.lock(str(PUSH))}
            number := CASE WHEN {ring.noticed} THEN {ring.pushed} END;
            -- As a rule slots come free in the order of their numbers: ask the last one first.
            IF NOT EXISTS (SELECT FROM {ring.named()} s
                WHERE s.slot = {ring.slot("(number + wanted - 1)")} AND s.reference_count = 0)
            THEN
                RETURN NULL;
            END IF;
            first := number;
            WHILE first < number + wanted LOOP
                lap := {ring.lap("first", "number + wanted")};
                UPDATE {ring.named()} s SET message_id = {number}, time = written,
                    message = data[{number} - number + 1],
                    {ring.held_by_all}
                {join and f"FROM {join}"}
                WHERE {where} AND {FREE};
                GET DIAGNOSTICS filled = ROW_COUNT;
                IF filled <> lap - first THEN
                    RAISE 'a slot is not free' USING ERRCODE = '{FULL_WITHIN}';
                END IF;
                first := lap;
            END LOOP;
            PERFORM {ring.set_pushed("number + wanted")};
            {ring.wake(AWAIT_MESSAGE)}
            RETURN number;
        END $$"""
