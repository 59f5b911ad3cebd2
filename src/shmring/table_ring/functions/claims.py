"""The functions that claim: a row keeps the numbers until they are popped or given up."""

from __future__ import annotations

from shmring.table_ring.functions.parts import AWAIT_SLOT, Parts

__all__ = ["claim", "open_claim", "resume", "settle"]


def claim(ring: Parts) -> str:
    return f"""
        CREATE OR REPLACE FUNCTION {ring.named("_claim")}(
            holder integer, pops regclass, most bigint, {ring.marked})
        RETURNS boolean LANGUAGE plpgsql AS $$
        DECLARE
            number bigint;
            after bigint;
        BEGIN
            PERFORM FROM {ring.named("_claims")} c
            WHERE c.subscriber = holder AND {ring.next} IS NOT NULL -- fails if it was removed
            LIMIT 1 FOR UPDATE SKIP LOCKED;
            IF FOUND THEN
                RETURN true;
            END IF;
            {ring.alone("holder")}
            number := {ring.next};
            after := least(number + most, {ring.pushed});
            IF number >= after OR {ring.left("(number - 1)")} THEN
                RETURN false;
            END IF;
            after := {ring.end("number", "after")};
            IF number >= after THEN
                RETURN false;
            END IF;
            INSERT INTO {ring.named("_claims")} (subscriber, first, count)
            VALUES (holder, number, after - number);
            PERFORM setval(pops, after);
            RETURN true;
        END $$"""


def open_claim(ring: Parts) -> str:
    # The messages' rows stay unlocked while the claim is open: other subscribers pop them too.
    return f"""
        CREATE OR REPLACE FUNCTION {ring.named("_open")}(
            holder integer, pops regclass, most bigint, {ring.marked})
        RETURNS TABLE (claim bigint, message_id bigint, "time" bigint, message bytea)
        LANGUAGE plpgsql AS $$
        #variable_conflict use_column
        DECLARE
            claimed record;
        BEGIN
            -- Without its sequence the subscriber was removed: another one may have the holder.
            SELECT c.id, c.first, c.count INTO claimed FROM {ring.named("_claims")} c
            WHERE c.subscriber = holder AND EXISTS (SELECT FROM pg_class WHERE oid = pops)
            ORDER BY c.first LIMIT 1 FOR UPDATE SKIP LOCKED;
            RETURN QUERY SELECT claimed.id, s.message_id, s.time, s.message
            FROM generate_series(claimed.first, claimed.first + claimed.count - 1) g(k)
            JOIN {ring.named()} s ON {ring.waits("g.k")}
            ORDER BY 2 LIMIT most;
            IF NOT FOUND THEN
                -- All of them were popped before: the claim is nothing any more.
                DELETE FROM {ring.named("_claims")} c WHERE c.id = claimed.id;
            END IF;
        END $$"""


def settle(ring: Parts) -> str:
    return f"""
        CREATE OR REPLACE FUNCTION {ring.named("_settle")}(
            holder integer, claim bigint, last bigint, {ring.marked})
        RETURNS void LANGUAGE plpgsql AS $$
        DECLARE
            claimed record;
        BEGIN
            SELECT c.first, c.count INTO STRICT claimed FROM {ring.named("_claims")} c
            WHERE c.id = claim;
            {ring.count_down()} FROM generate_series(claimed.first, last) g(k)
            WHERE {ring.waits("g.k")};
            IF last < claimed.first + claimed.count - 1 THEN
                UPDATE {ring.named("_claims")} c
                SET first = last + 1, count = c.count - (last + 1 - c.first)
                WHERE c.id = claim;
            ELSE
                DELETE FROM {ring.named("_claims")} c WHERE c.id = claim;
            END IF;
            {ring.wake(AWAIT_SLOT)}
        END $$"""


def resume(ring: Parts) -> str:
    return f"""
        CREATE OR REPLACE FUNCTION {ring.named("_resume")}(
            holder integer, pops regclass, most bigint)
        RETURNS TABLE (message_id bigint, "time" bigint, message bytea) LANGUAGE plpgsql AS $$
        #variable_conflict use_column
        DECLARE
            claimed record;
        BEGIN
            SELECT max(o.claim) AS claim, max(o.message_id) AS last,
                array_agg(o.message_id) AS ids, array_agg(o.time) AS times,
                array_agg(o.message) AS data
            INTO claimed FROM {ring.named("_open")}(holder, pops, most) o;
            IF claimed.claim IS NOT NULL THEN
                PERFORM {ring.named("_settle")}(holder, claimed.claim, claimed.last);
                RETURN QUERY SELECT * FROM unnest(claimed.ids, claimed.times, claimed.data);
            END IF;
        END $$"""
