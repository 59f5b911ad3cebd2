-- The functions that push. Subscribing replaces constants in their plans, which PostgreSQL then makes
-- again. A session learns of that when it locks a table that it has not locked in its transaction:
-- pg_relation_is_updatable(0, ...) locks table 0, which cannot be locked already, finds none and
-- unlocks it; its answer is never NULL.

-- Push a message, and return its number; NULL if no slot came free within `timeout` milliseconds.
-- Mostly, each statement of the first round runs once, and no other statement runs.
CREATE OR REPLACE FUNCTION {ring}_push_one(
    data bytea, written bigint, timeout integer, {mark} boolean DEFAULT NULL)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    number bigint;
    alone boolean;
BEGIN
    number := CASE WHEN pg_try_advisory_xact_lock_shared({key}, {PUSH}) THEN
        CASE WHEN pg_relation_is_updatable(0::oid::regclass, false) IS NOT NULL THEN
            nextval('{ring}_push'::regclass) - 1 END END;
    LOOP
        UPDATE {ring} s SET message_id = number, time = written, message = data,
            reference_count = {ring}_subscribed(), holders = {ring}_holders()
        WHERE s.slot = {ring}_slot(number) AND s.reference_count = 0 AND s.holders = 0
            AND coalesce(s.message_id, -1) < number
        -- A session that waits holds this lock alone. We share it until the commit: a session that
        -- begins to wait meanwhile looks again before it sleeps.
        RETURNING pg_try_advisory_xact_lock_shared({key}, {AWAIT_MESSAGE}) INTO alone;
        IF alone THEN
            RETURN number;
        END IF;
        IF FOUND THEN
            PERFORM pg_notify('{name}', '');
            RETURN number;
        END IF;
        IF number IS NULL THEN -- somebody looks, or pushes several
            PERFORM pg_advisory_xact_lock_shared({key}, {PUSH});
            number := CASE WHEN pg_relation_is_updatable(0::oid::regclass, false) IS NOT NULL THEN
                nextval('{ring}_push'::regclass) - 1 END;
            CONTINUE;
        END IF;
        IF EXISTS (SELECT FROM {ring} s
            WHERE s.slot = {ring}_slot(number) AND s.message_id >= number)
        THEN -- the slot has a later lap, or this number: the cursor was set back
            number := nextval('{ring}_push'::regclass) - 1;
            CONTINUE;
        END IF;
        IF timeout <= 0 THEN
            RETURN NULL; -- look_push takes the number back
        END IF;
        timeout := timeout - 1;
        PERFORM pg_sleep(0.001);
    END LOOP;
END $$;

-- Push several messages with consecutive numbers, and return the first number; NULL if they do not
-- fit. With two such pushes at a time, a free slot could belong to a number of the lap before, which
-- is taken but not filled yet: so the lock is kept until the slots are filled and committed.
CREATE OR REPLACE FUNCTION {ring}_push_many(
    data bytea[], written bigint, {mark} boolean DEFAULT NULL)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    wanted bigint := cardinality(data);
    first bigint;
    filled bigint;
BEGIN
    IF wanted > {slots} THEN
        RAISE '% messages can never fit {slots} slots', wanted
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM pg_advisory_xact_lock({key}, {PUSH});
    first := CASE WHEN pg_relation_is_updatable(0::oid::regclass, false) IS NOT NULL THEN
        pg_sequence_last_value('{ring}_push'::regclass) END;
    -- As a rule slots come free in the order of their numbers: ask the last one first.
    IF NOT EXISTS (SELECT FROM {ring} s
        WHERE s.slot = {ring}_slot(first + wanted - 1) AND s.reference_count = 0)
    THEN
        RETURN NULL;
    END IF;
    UPDATE {ring} s SET message_id = r.number + (s.slot - r.low), time = written,
        message = data[r.number + (s.slot - r.low) - first + 1],
        reference_count = {ring}_subscribed(), holders = {ring}_holders()
    FROM {ring}_ranges(first, first + wanted) r
    WHERE s.slot BETWEEN r.low AND r.high AND s.reference_count = 0 AND s.holders = 0;
    GET DIAGNOSTICS filled = ROW_COUNT;
    IF filled <> wanted THEN
        RAISE 'a slot is not free' USING ERRCODE = '{FULL_WITHIN}';
    END IF;
    PERFORM setval('{ring}_push'::regclass, first + wanted);
    IF NOT pg_try_advisory_xact_lock_shared({key}, {AWAIT_MESSAGE}) THEN
        PERFORM pg_notify('{name}', '');
    END IF;
    RETURN first;
END $$;
