"""The functions that pop."""

from __future__ import annotations

from shmring.table_ring.functions.parts import AWAIT_SLOT, CLAIMED, FOREIGN, RUNS, Parts

__all__ = ["pop_many", "pop_one"]


def pop_one(ring: Parts, subscribers: int) -> str:
    """Return the function that pops a message.

    Mostly, only its first three statements run. The caller gives the subscriber's bit too:
    PostgreSQL prepares each operator anew in each transaction. For the same reason, in a ring with
    one subscriber, the first UPDATE pops only what waits for nobody else. A session may execute it
    while another one subscribes: a message that waits for both is left to the second UPDATE.
    """
    where = ring.waits("number", "mine")
    first, first_where = ring.count_down("mine"), where
    if subscribers == 1:
        first, first_where = ring.clear, ring.waits_only("number", "mine")
    return f"""
        CREATE OR REPLACE FUNCTION {ring.named("_pop_one")}(
            holder integer, mine bigint, pops regclass, timeout integer, {ring.marked})
        RETURNS bytea LANGUAGE plpgsql AS $$
        DECLARE
            number bigint;
            held bigint;
            idle integer;
            found_data bytea;
        BEGIN
            number := CASE WHEN pg_sequence_last_value(pops) < {ring.pushed_unless_full}
                AND {ring.share("holder")} THEN nextval(pops) - 1 END;
            {first} WHERE {first_where} RETURNING s.message INTO found_data;
            IF FOUND THEN
                RETURN found_data;
            END IF;
            LOOP
                IF number IS NULL THEN -- there are claims, or no messages, or somebody looks,
                    -- or somebody waits for a slot
                    IF {ring.may_have_claims} THEN
                        SELECT r.message INTO found_data
                        FROM {ring.named("_resume")}(holder, pops, 1) r;
                        IF FOUND THEN
                            RETURN found_data;
                        END IF;
                    END IF;
                    {ring.await_message("RETURN NULL;")}
                    IF {ring.pushed_unless_full} < 0 THEN
                        {ring.forget_full}
                    END IF;
                    PERFORM {ring.share_at_last("holder")};
                    IF {ring.next} >= {ring.pushed} THEN
                        RETURN NULL;
                    END IF;
                    number := {ring.take_next};
                ELSIF number >= {CLAIMED} THEN -- a claim was added before the number was taken
                    number := number - {CLAIMED};
                END IF;
                {ring.count_down("mine")} WHERE {where} RETURNING s.message INTO found_data;
                IF FOUND THEN
                    {ring.wake(AWAIT_SLOT)}
                    RETURN found_data;
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
                        PERFORM setval(pops, after | (pg_sequence_last_value(pops) & {CLAIMED}));
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
            IF {ring.may_have_claims} THEN
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
