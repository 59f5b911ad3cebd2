"""The functions that read a position while they hold its locks alone, and repair a cursor."""

from __future__ import annotations

from shmring.table_ring.functions.parts import (
    BIT,
    FOREIGN,
    NEAR,
    PUSH,
    Parts,
)

__all__ = ["look_pop", "look_push"]

# An older snapshot lacks slots that were filled since: the cursor would be set back too far.
_SEES_ALL = """
            IF current_setting('transaction_isolation') <> 'read committed' THEN
                RAISE 'a look at a table ring wants a transaction that is read committed'
                    USING ERRCODE = 'invalid_transaction_state';
            END IF;"""


def look_push(ring: Parts) -> str:
    return f"""
        CREATE OR REPLACE FUNCTION {ring.named("_look_push")}(
            ahead bigint, {ring.marked}, OUT push bigint, OUT number bigint, OUT message_id bigint,
            OUT reference_count integer, OUT holders bigint, OUT known bigint)
        LANGUAGE plpgsql AS $$
        #variable_conflict use_column
        DECLARE
            highest bigint;
        BEGIN{_SEES_ALL}
            {ring.lock(str(PUSH))}
            PERFORM {ring.noticed};
            IF EXISTS (SELECT FROM {ring.named("_ring")} r
                WHERE r.subscribers <> {ring.named("_subscribed")}()
                    OR r.holders <> {ring.named("_holders")}())
            THEN
                RAISE 'the functions that push know other subscribers than table {ring.name}_ring'
                    USING ERRCODE = '{FOREIGN}';
            END IF;
            push := {ring.pushed};
            IF push > 0 AND NOT EXISTS (SELECT FROM {ring.named()} s
                WHERE s.slot = {ring.slot("(push - 1)")} AND s.message_id = push - 1)
            THEN
                SELECT max(s.message_id) INTO highest
                FROM generate_series(greatest(push - {NEAR}, 0), push - 1) g(k)
                JOIN {ring.named()} s ON s.slot = {ring.slot("g.k")} AND s.message_id = g.k;
                IF highest IS NULL THEN
                    -- A crash leaves an unlogged table without rows: nothing is known then.
                    SELECT CASE WHEN count(*) > 0 THEN coalesce(max(s.message_id), -1) END
                    INTO highest FROM {ring.named()} s;
                END IF;
                IF highest + 1 < push THEN
                    push := highest + 1;
                    PERFORM {ring.set_pushed("push")};
                END IF;
            END IF;
            number := push + ahead;
            SELECT s.message_id, s.reference_count, s.holders, r.holders
            INTO message_id, reference_count, holders, known
            FROM {ring.named("_ring")} r
            LEFT JOIN {ring.named()} s ON s.slot = {ring.slot("number")}
            WHERE r.id = 0;
            IF ahead > 0 AND reference_count = 0 AND holders = 0 THEN
                SELECT g.k, s.message_id, s.reference_count, s.holders
                INTO number, message_id, reference_count, holders
                FROM generate_series(push, push + ahead) g(k)
                LEFT JOIN {ring.named()} s ON s.slot = {ring.slot("g.k")}
                WHERE s.reference_count IS DISTINCT FROM 0 OR s.holders IS DISTINCT FROM 0
                    OR g.k = push + ahead
                ORDER BY g.k LIMIT 1;
            END IF;
        END $$"""


def look_pop(ring: Parts) -> str:
    me = f"{ring.name}_look_pop"
    return f"""
        CREATE OR REPLACE FUNCTION {ring.named("_look_pop")}(
            subscriber text, holder integer, pops regclass, whole boolean, {ring.marked},
            OUT push bigint, OUT number bigint, OUT message_id bigint,
            OUT reference_count integer, OUT holders bigint, OUT known bigint,
            OUT returned boolean)
        LANGUAGE plpgsql AS $$
        #variable_conflict use_column
        DECLARE
            missed bigint[];
        BEGIN{_SEES_ALL}
            IF NOT EXISTS (SELECT FROM {ring.named("_subscribers")} u
                WHERE u.name = {me}.subscriber AND u.holder = {me}.holder) THEN
                RETURN;
            END IF;
            push := {ring.pushed};
            number := {ring.next};
            IF whole OR number > push OR {ring.left("(number - 1)")} OR (number < push
                AND NOT EXISTS (SELECT FROM {ring.named()} s WHERE {ring.waits("number")}))
            THEN
                push := (SELECT l.push FROM {ring.named("_look_push")}(0) l);
                {ring.alone("holder")}
                number := least({ring.next}, push);
                IF whole THEN
                    SELECT array_agg(s.message_id ORDER BY s.message_id) INTO missed
                    FROM {ring.named()} s
                    WHERE s.message_id < number AND s.holders & {BIT} <> 0
                        AND NOT {ring.claimed("s.message_id")};
                ELSE
                    SELECT array_agg(g.k ORDER BY g.k) INTO missed
                    FROM generate_series(greatest(number - {NEAR}, 0), number - 1) g(k)
                    WHERE {ring.left("g.k")};
                END IF;
                -- Numbers in a row up to the cursor are the next again; others come as claims.
                WHILE missed[cardinality(missed)] = number - 1 LOOP
                    number := number - 1;
                    missed := missed[:cardinality(missed) - 1];
                END LOOP;
                IF cardinality(missed) > 0 THEN
                    INSERT INTO {ring.named("_claims")} (subscriber, first, count)
                    SELECT holder, m, 1 FROM unnest(missed) m;
                END IF;
                -- What is in no slot below the highest number will never come.
                WHILE number < push AND EXISTS (SELECT FROM {ring.named()} s
                    WHERE s.slot = {ring.slot("number")}
                        AND coalesce((number - s.message_id) % {ring.layout.slots} = 0, true)
                        AND NOT (s.message_id = number AND s.holders & {BIT} <> 0)) LOOP
                    number := number + 1;
                END LOOP;
                PERFORM setval(pops, number);
            END IF;
            SELECT s.message_id, s.reference_count, s.holders, r.holders
            INTO message_id, reference_count, holders, known
            FROM {ring.named("_ring")} r
            LEFT JOIN {ring.named()} s ON s.slot = {ring.slot("number")}
            WHERE r.id = 0;
            PERFORM FROM {ring.named("_claims")} c WHERE c.subscriber = {me}.holder
            LIMIT 1 FOR UPDATE SKIP LOCKED;
            returned := FOUND;
        END $$"""
