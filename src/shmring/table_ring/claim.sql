-- The functions that claim. A row of {ring}_claims keeps numbers that the subscriber's cursor has
-- passed until they are popped. An open claim's transaction has the row locked; a claim whose row is
-- not locked was given up, and is for the next pop. The messages' own rows stay unlocked while a
-- claim is open, because other subscribers pop them too.

-- Whether there is a claim to open: one that was given up, or a new one of at most so many messages.
CREATE OR REPLACE FUNCTION {ring}_claim(
    holder integer, pops regclass, most bigint, {mark} boolean DEFAULT NULL)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    number bigint;
    after bigint;
BEGIN
    PERFORM FROM {ring}_claims c
    WHERE c.subscriber = holder AND pg_sequence_last_value(pops) IS NOT NULL
    LIMIT 1 FOR UPDATE SKIP LOCKED;
    IF FOUND THEN
        RETURN true;
    END IF;
    number := pg_sequence_last_value(pops);
    PERFORM pg_advisory_xact_lock({key}, holder);
    number := pg_sequence_last_value(pops);
    after := {ring}_end(holder, number,
        least(number + most, pg_sequence_last_value('{ring}_push'::regclass)));
    IF (number < after) IS NOT TRUE THEN
        RETURN false;
    END IF;
    INSERT INTO {ring}_claims (subscriber, first, count) VALUES (holder, number, after - number);
    PERFORM setval(pops, after);
    RETURN true;
END $$;

-- Lock the first claim that nobody has locked, and return at most so many of its messages.
CREATE OR REPLACE FUNCTION {ring}_open(
    holder integer, pops regclass, most bigint, {mark} boolean DEFAULT NULL)
RETURNS TABLE (claim bigint, message_id bigint, "time" bigint, message bytea)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    claimed record;
BEGIN
    -- Without its sequence the subscriber was removed: another one may have the holder.
    SELECT c.id, c.first, c.count INTO claimed FROM {ring}_claims c
    WHERE c.subscriber = holder AND EXISTS (SELECT FROM pg_class WHERE oid = pops)
    ORDER BY c.first LIMIT 1 FOR UPDATE SKIP LOCKED;
    RETURN QUERY SELECT claimed.id, s.message_id, s.time, s.message
    FROM generate_series(claimed.first, claimed.first + claimed.count - 1) k
    JOIN {ring} s ON s.slot = {ring}_slot(k) AND s.message_id = k
        AND s.holders & (1::bigint << holder) <> 0
    ORDER BY 2 LIMIT most;
    IF NOT FOUND THEN
        -- All of them were popped before: the claim is nothing any more.
        DELETE FROM {ring}_claims c WHERE c.id = claimed.id;
    END IF;
END $$;

-- Pop the messages of a claim up to number `last`.
CREATE OR REPLACE FUNCTION {ring}_settle(
    holder integer, claim bigint, last bigint, {mark} boolean DEFAULT NULL)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    mine bigint := 1::bigint << holder;
    claimed record;
BEGIN
    SELECT c.first, c.count INTO STRICT claimed FROM {ring}_claims c WHERE c.id = claim;
    UPDATE {ring} s SET reference_count = s.reference_count - 1::smallint,
        holders = s.holders # mine
    FROM generate_series(claimed.first, last) k
    WHERE s.slot = {ring}_slot(k) AND s.message_id = k AND s.holders & mine <> 0;
    IF last < claimed.first + claimed.count - 1 THEN
        UPDATE {ring}_claims c SET first = last + 1, count = c.count - (last + 1 - c.first)
        WHERE c.id = claim;
    ELSE
        DELETE FROM {ring}_claims c WHERE c.id = claim;
    END IF;
    IF NOT pg_try_advisory_xact_lock_shared({key}, {AWAIT_SLOT}) THEN
        PERFORM pg_notify('{name}', '');
    END IF;
END $$;

-- Pop at most so many messages of a claim that was given up.
CREATE OR REPLACE FUNCTION {ring}_resume(
    holder integer, pops regclass, most bigint, {mark} boolean DEFAULT NULL)
RETURNS TABLE (message_id bigint, "time" bigint, message bytea) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    claimed record;
BEGIN
    SELECT max(o.claim) AS claim, max(o.message_id) AS last, array_agg(o.message_id) AS ids,
        array_agg(o.time) AS times, array_agg(o.message) AS data
    INTO claimed FROM {ring}_open(holder, pops, most) o;
    IF claimed.claim IS NOT NULL THEN
        PERFORM {ring}_settle(holder, claimed.claim, claimed.last);
        RETURN QUERY SELECT * FROM unnest(claimed.ids, claimed.times, claimed.data);
    END IF;
END $$;
