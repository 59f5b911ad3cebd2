"""The functions that pop."""

from __future__ import annotations

from shmring.table_ring.functions.parts import AWAIT_SLOT, FOREIGN, RUNS, Parts

__all__ = ["pop_many", "pop_one"]


def pop_one(ring: Parts) -> str:
    """Return the function that pops a message.

    Mostly, only its first three statements run. The caller says whether the subscriber has claims:
    within its own statement this is a fraction of what it would cost here. The caller gives the
    subscriber's bit too, because PostgreSQL prepares each operator anew in each transaction.
    """
    return f"""
        CREATE OR REPLACE FUNCTION {ring.named("_pop_one")}(
            holder integer, mine bigint, pops regclass, timeout integer,
            claimed boolean DEFAULT true, {ring.marked})
        RETURNS bytea LANGUAGE plpgsql AS $$
        DECLARE
            number bigint;
            held bigint;
            idle integer;
            found_data bytea;
            alone boolean;
        BEGIN
            number := CASE WHEN {ring.next} < {ring.pushed} AND NOT claimed
                AND {ring.share("holder")} THEN {ring.take_next} END;
            LOOP
                {ring.count_down("mine")} WHERE {ring.waits("number", "mine")}
                RETURNING s.message, {ring.share(str(AWAIT_SLOT))} INTO found_data, alone;
                IF alone THEN
                    RETURN found_data;
                END IF;
                IF FOUND THEN
                    {ring.notify}
                    RETURN found_data;
                END IF;
                IF number IS NULL THEN -- there are claims, or no messages, or somebody looks
                    IF claimed THEN
                        SELECT r.message INTO found_data
                        FROM {ring.named("_resume")}(holder, pops, 1) r;
                        IF FOUND THEN
                            RETURN found_data;
                        END IF;
                    END IF;
                    {ring.await_message("RETURN NULL;")}
                    PERFORM {ring.share_at_last("holder")};
                    IF {ring.next} >= {ring.pushed} THEN
                        RETURN NULL;
                    END IF;
                    number := {ring.take_next};
                    CONTINUE;
                END IF;
                SELECT s.message_id INTO held FROM {ring.named()} s
                WHERE s.slot = {ring.slot("number")};
                IF NOT FOUND OR (held - number) % {ring.layout.slots} <> 0 THEN
                    RAISE 'message % should be in slot %, which holds %', number,
                        {ring.slot("number")}, coalesce(held::text, 'nothing')
                        USING ERRCODE = '{FOREIGN}';
                END IF;
                IF (held >= number) IS NOT TRUE THEN -- a push is in its transaction
                    IF timeout <= 0 THEN
                        RETURN NULL; -- look_pop takes the number back
                    END IF;
                    timeout := timeout - 1;
                    PERFORM pg_sleep(0.001);
                    CONTINUE;
                END IF;
                IF {ring.next} >= {ring.pushed} THEN
                    RETURN NULL;
                END IF;
                number := {ring.take_next};
            END LOOP;
        END $$"""


def pop_many(ring: Parts) -> str:
    """Return the function that pops a run."""
    join, where, number = ring.run("first", "lap")
    waiting = ring.count("number", "after", ring.unpopped)
    take = f"""{ring.lock("holder")}
                number := {ring.next};
                after := least(number + most, {ring.pushed});
                -- While others have runs, what they have not popped yet is not left.
                left_over := number < after
                    AND pg_try_advisory_xact_lock({ring.key}, holder + {RUNS})
                    AND {ring.left("(number - 1)")};
                IF number < after AND NOT left_over THEN
                    IF {waiting} < after - number THEN
                        after := {ring.end("number", "after")};
                    END IF;
                    IF after > number THEN
                        PERFORM setval(pops, after);
                    END IF;
                END IF;"""
    return f"""
        CREATE OR REPLACE FUNCTION {ring.named("_pop_many")}(
            holder integer, pops regclass, most bigint, timeout integer, {ring.marked})
        RETURNS TABLE (message_id bigint, "time" bigint, message bytea) LANGUAGE plpgsql AS $$
        #variable_conflict use_column
        DECLARE
            number bigint;
            after bigint;
            left_over boolean;
            first bigint;
            lap bigint;
            idle integer;
        BEGIN
            IF {ring.has_claims} AND {ring.next} IS NOT NULL THEN
                RETURN QUERY SELECT * FROM {ring.named("_resume")}(holder, pops, most);
                IF FOUND THEN
                    RETURN;
                END IF;
            END IF;
            {ring.await_message("RETURN;")}
            {ring.lock(f"holder + {RUNS}", "_shared")}
            LOOP
                {ring.briefly(take)}
                EXIT WHEN after > number AND NOT left_over;
                IF left_over OR timeout <= 0 OR number >= {ring.pushed} THEN
                    RETURN;
                END IF;
                -- A push is in the middle of its transaction.
                timeout := timeout - 1;
                PERFORM pg_sleep(0.001);
            END LOOP;
            first := number;
            WHILE first < after LOOP
                lap := {ring.lap("first", "after")};
                RETURN QUERY {ring.count_down()} {join and f"FROM {join}"}
                WHERE {where} AND {ring.unpopped(number)}
                RETURNING s.message_id, s.time, s.message;
                first := lap;
            END LOOP;
            {ring.wake(AWAIT_SLOT)}
        END $$"""
