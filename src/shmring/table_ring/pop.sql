-- The functions that pop. `holder` is the subscriber's bit of `holders`, and `pops` its sequence.
-- They use the sequence before any lock: the sequence of a removed subscriber is missing, and whoever
-- removes a subscriber waits for the calls that use its sequence, and not the other way round.

-- Wait a little for a message, without locks; whether there is one.
CREATE OR REPLACE FUNCTION {ring}_await_message(
    pops regclass, timeout integer, {mark} boolean DEFAULT NULL)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    idle integer := least({IDLE}, timeout);
BEGIN
    WHILE pg_sequence_last_value(pops) >= pg_sequence_last_value('{ring}_push'::regclass) LOOP
        IF idle <= 0 THEN
            RETURN false;
        END IF;
        idle := idle - 1;
        PERFORM pg_sleep(0.001);
    END LOOP;
    RETURN true;
END $$;

-- Pop a message; NULL if none came within `timeout` milliseconds. Mostly, only the first three
-- statements run. The caller says whether the subscriber has claims, which costs less within its own
-- statement, and gives the bit, because PostgreSQL prepares each operator anew in each transaction.
CREATE OR REPLACE FUNCTION {ring}_pop_one(
    holder integer, mine bigint, pops regclass, timeout integer,
    claimed boolean DEFAULT true, {mark} boolean DEFAULT NULL)
RETURNS bytea LANGUAGE plpgsql AS $$
DECLARE
    number bigint;
    held bigint;
    data bytea;
    alone boolean;
BEGIN
    number := CASE
        WHEN pg_sequence_last_value(pops) < pg_sequence_last_value('{ring}_push'::regclass)
            AND NOT claimed AND pg_try_advisory_xact_lock_shared({key}, holder)
        THEN nextval(pops) - 1 END;
    LOOP
        UPDATE {ring} s SET reference_count = s.reference_count - 1::smallint,
            holders = s.holders # mine
        WHERE s.slot = {ring}_slot(number) AND s.message_id = number AND s.holders & mine <> 0
        RETURNING s.message, pg_try_advisory_xact_lock_shared({key}, {AWAIT_SLOT})
        INTO data, alone;
        IF alone THEN -- nobody waits for a slot
            RETURN data;
        END IF;
        IF FOUND THEN
            PERFORM pg_notify('{name}', '');
            RETURN data;
        END IF;
        IF number IS NULL THEN -- there are claims, or no messages, or somebody looks
            IF claimed THEN
                SELECT r.message INTO data FROM {ring}_resume(holder, pops, 1) r;
                IF FOUND THEN
                    RETURN data;
                END IF;
            END IF;
            IF NOT {ring}_await_message(pops, timeout) THEN
                RETURN NULL;
            END IF;
            PERFORM pg_advisory_xact_lock_shared({key}, holder);
        ELSE
            SELECT s.message_id INTO held FROM {ring} s WHERE s.slot = {ring}_slot(number);
            IF NOT FOUND OR (held - number) % {slots} <> 0 THEN
                RAISE 'message % should be in slot %, which holds %', number,
                    {ring}_slot(number), coalesce(held::text, 'nothing')
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
        END IF;
        IF pg_sequence_last_value(pops) >= pg_sequence_last_value('{ring}_push'::regclass) THEN
            RETURN NULL;
        END IF;
        number := nextval(pops) - 1;
    END LOOP;
END $$;

-- Pop at most so many messages, in an order that is not promised; they end before the first number
-- whose push is in its transaction. The cursor's lock is kept until the commit.
CREATE OR REPLACE FUNCTION {ring}_pop_many(
    holder integer, pops regclass, most bigint, timeout integer, {mark} boolean DEFAULT NULL)
RETURNS TABLE (message_id bigint, "time" bigint, message bytea) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    mine bigint := 1::bigint << holder;
    first bigint;
    after bigint;
BEGIN
    IF EXISTS (SELECT FROM {ring}_claims c WHERE c.subscriber = holder)
        AND pg_sequence_last_value(pops) IS NOT NULL
    THEN
        RETURN QUERY SELECT * FROM {ring}_resume(holder, pops, most);
        IF FOUND THEN
            RETURN;
        END IF;
    END IF;
    IF NOT {ring}_await_message(pops, timeout) THEN
        RETURN;
    END IF;
    PERFORM pg_advisory_xact_lock({key}, holder);
    LOOP
        first := pg_sequence_last_value(pops);
        after := {ring}_end(holder, first,
            least(first + most, pg_sequence_last_value('{ring}_push'::regclass)));
        EXIT WHEN first < after;
        IF after IS NULL OR timeout <= 0 THEN
            RETURN;
        END IF;
        timeout := timeout - 1;
        PERFORM pg_sleep(0.001);
    END LOOP;
    RETURN QUERY UPDATE {ring} s SET reference_count = s.reference_count - 1::smallint,
        holders = s.holders # mine
    FROM {ring}_ranges(first, after) r
    WHERE s.slot BETWEEN r.low AND r.high AND s.message_id = r.number + (s.slot - r.low)
        AND s.holders & mine <> 0
    RETURNING s.message_id, s.time, s.message;
    PERFORM setval(pops, after);
    IF NOT pg_try_advisory_xact_lock_shared({key}, {AWAIT_SLOT}) THEN
        PERFORM pg_notify('{name}', '');
    END IF;
END $$;

-- The first number from `first` on that is not pushed yet, or `after`; NULL if there is nothing to
-- take, or the number before is left and wants a look. The caller has the cursor's lock alone.
CREATE OR REPLACE FUNCTION {ring}_end(
    holder integer, first bigint, after bigint, {mark} boolean DEFAULT NULL)
RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    IF first >= after OR {ring}_left(holder, first - 1) THEN
        RETURN NULL;
    END IF;
    IF after - first = (SELECT count(*) FROM {ring}_ranges(first, after) r
        JOIN {ring} s ON s.slot BETWEEN r.low AND r.high
            AND s.message_id >= r.number + (s.slot - r.low))
    THEN
        RETURN after;
    END IF;
    RETURN (SELECT coalesce(min(k), after) FROM generate_series(first, after - 1) k
        LEFT JOIN {ring} s ON s.slot = {ring}_slot(k) AND s.message_id >= k
            AND (s.message_id - k) % {slots} = 0
        WHERE s.slot IS NULL);
END $$;

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
