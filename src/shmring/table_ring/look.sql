-- The functions that read a position while they hold its lock alone, and repair a cursor: then no
-- call is between a number and its UPDATE, and the slots are right. They want a transaction that is
-- read committed: an older snapshot lacks slots that were filled since, and the cursor would be set
-- back too far.

-- Whether this number waits for the subscriber and is not claimed.
CREATE OR REPLACE FUNCTION {ring}_left(
    holder integer, number bigint, {mark} boolean DEFAULT NULL)
RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN EXISTS (SELECT FROM {ring} s WHERE s.slot = {ring}_slot(number)
        AND s.message_id = number AND s.holders & (1::bigint << holder) <> 0
        AND NOT EXISTS (SELECT FROM {ring}_claims c WHERE c.subscriber = holder
            AND number BETWEEN c.first AND c.first + c.count - 1));
END $$;

-- Take numbers back that no slot has, and return the next number and the slot `ahead` of it; or the
-- first slot up to there that is not free.
CREATE OR REPLACE FUNCTION {ring}_look_push(
    ahead bigint, {mark} boolean DEFAULT NULL, OUT push bigint, OUT number bigint,
    OUT message_id bigint, OUT reference_count integer, OUT holders bigint, OUT known bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE 'a look at a table ring wants a transaction that is read committed'
            USING ERRCODE = 'invalid_transaction_state';
    END IF;
    PERFORM pg_advisory_xact_lock({key}, {PUSH});
    PERFORM pg_relation_is_updatable(0::oid::regclass, false); -- see push.sql
    IF EXISTS (SELECT FROM {ring}_ring r
        WHERE r.subscribers <> {ring}_subscribed() OR r.holders <> {ring}_holders())
    THEN
        RAISE 'the functions that push know other subscribers than table {name}_ring;'
            ' TableRing.renew makes them again'
            USING ERRCODE = '{FOREIGN}';
    END IF;
    push := pg_sequence_last_value('{ring}_push'::regclass);
    -- A crash leaves an unlogged table without rows: nothing is known then. Of a row that is missing
    -- alone the number is taken back, so that whoever gets it again says that the row is lost.
    WHILE push > 0 AND EXISTS (SELECT FROM {ring}) AND coalesce((SELECT s.message_id FROM {ring} s
        WHERE s.slot = {ring}_slot(push - 1)), -1) < push - 1 LOOP
        push := setval('{ring}_push'::regclass, push - 1);
    END LOOP;
    SELECT k, s.message_id, s.reference_count, s.holders
    INTO number, message_id, reference_count, holders
    FROM generate_series(push, push + ahead) k LEFT JOIN {ring} s ON s.slot = {ring}_slot(k)
    WHERE s.reference_count IS DISTINCT FROM 0 OR s.holders IS DISTINCT FROM 0 OR k = push + ahead
    ORDER BY k LIMIT 1;
    known := (SELECT r.holders FROM {ring}_ring r WHERE r.id = 0);
END $$;

-- Return the subscriber's next number, its slot, and whether a claim was given up; all NULL if there
-- is no such subscriber. Messages that were taken and not popped come again: those just below the
-- cursor as the next ones, others as claims. `whole`: search all slots for them.
CREATE OR REPLACE FUNCTION {ring}_look_pop(
    reader text, holder integer, pops regclass, whole boolean, {mark} boolean DEFAULT NULL,
    OUT push bigint, OUT number bigint, OUT message_id bigint,
    OUT reference_count integer, OUT holders bigint, OUT known bigint, OUT returned boolean)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    mine bigint := 1::bigint << holder;
    place integer := holder;
    missed bigint[];
BEGIN
    IF NOT EXISTS (SELECT FROM {ring}_subscribers u WHERE u.name = reader AND u.holder = place) THEN
        RETURN;
    END IF;
    push := pg_sequence_last_value('{ring}_push'::regclass);
    number := pg_sequence_last_value(pops);
    IF whole OR number > push OR {ring}_left(place, number - 1)
        OR number < push AND NOT {ring}_left(place, number)
    THEN
        push := (SELECT l.push FROM {ring}_look_push(0) l);
        PERFORM pg_advisory_xact_lock({key}, place);
        number := least(pg_sequence_last_value(pops), push);
        -- Whatever the subscriber has not popped is of the last lap: it holds its slot.
        SELECT array_agg(k ORDER BY k) INTO missed
        FROM generate_series(number - CASE WHEN whole THEN {slots} ELSE {NEAR} END, number - 1) k
        JOIN {ring} s ON s.slot = {ring}_slot(k) AND s.message_id = k AND s.holders & mine <> 0
        WHERE {ring}_left(place, k);
        WHILE missed[cardinality(missed)] = number - 1 LOOP
            number := number - 1;
            missed := missed[:cardinality(missed) - 1];
        END LOOP;
        INSERT INTO {ring}_claims (subscriber, first, count)
        SELECT place, m, 1 FROM unnest(missed) m;
        -- What is in no slot below the highest number will never come.
        WHILE number < push AND EXISTS (SELECT FROM {ring} s
            WHERE s.slot = {ring}_slot(number)
                AND coalesce((number - s.message_id) % {slots} = 0, true)
                AND NOT (s.message_id = number AND s.holders & mine <> 0)) LOOP
            number := number + 1;
        END LOOP;
        PERFORM setval(pops, number);
    END IF;
    SELECT s.message_id, s.reference_count, s.holders INTO message_id, reference_count, holders
    FROM {ring} s WHERE s.slot = {ring}_slot(number);
    known := (SELECT r.holders FROM {ring}_ring r WHERE r.id = 0);
    PERFORM FROM {ring}_claims c WHERE c.subscriber = place LIMIT 1 FOR UPDATE SKIP LOCKED;
    returned := FOUND;
END $$;
