-- Functions that read a position and repair its cursor. They hold the position's lock alone: so no
-- other call is between taking a number and its UPDATE, and the slots are up to date. These
-- functions need a transaction that is read committed: an older snapshot lacks slots that were
-- filled since, and the cursor would be set back too far.

-- Return whether the number's slot has a message that waits for the subscriber and is not leased:
-- the message of this number, or of a number of an earlier lap.
CREATE OR REPLACE FUNCTION {ring}_left(
    holder integer, number bigint, {mark} boolean DEFAULT NULL)
RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN EXISTS (SELECT FROM {ring} s WHERE s.slot = {ring}_slot(number)
        AND s.message_id <= number AND s.holders & (1::bigint << holder) <> 0
        AND NOT EXISTS (SELECT FROM {ring}_leases c WHERE c.subscriber = holder
            AND s.message_id BETWEEN c.first AND c.first + c.count - 1));
END $$;

-- Take back numbers that no slot has. Return the next number, and one of the slots of this number
-- and the `ahead` numbers after it: the first slot that is not free, or else the last slot.
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
    PERFORM pg_relation_is_updatable(0::oid::regclass, false); -- renews the plans (see push_one)
    IF EXISTS (SELECT FROM {ring}_ring r
        WHERE r.subscribers <> {ring}_subscribed() OR r.holders <> {ring}_holders())
    THEN
        RAISE 'the functions that push know other subscribers than table {name}_ring;'
            ' TableRing.renew makes them again'
            USING ERRCODE = '{FOREIGN}';
    END IF;
    push := pg_sequence_last_value('{ring}_push'::regclass);
    -- A crash leaves an unlogged table without rows: then leave the number as it is. If a single
    -- row is missing, take its number back: the next push with this number reports the lost row.
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

-- Return the subscriber's next number, its slot, and whether a lease was given up; all NULL if
-- there is no such subscriber. Messages that were taken and not popped come again: messages just
-- below the cursor become the next messages, other messages become leases. With `whole`, search all
-- slots for messages to give again.
CREATE OR REPLACE FUNCTION {ring}_look_pop(
    reader text, holder integer, pops regclass, whole boolean, {mark} boolean DEFAULT NULL,
    OUT push bigint, OUT number bigint, OUT message_id bigint,
    OUT reference_count integer, OUT holders bigint, OUT known bigint, OUT returned boolean)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    mine bigint := 1::bigint << holder;
    own_bit integer := holder;
    missed bigint[];
BEGIN
    IF NOT EXISTS (SELECT FROM {ring}_subscribers u WHERE u.name = reader AND u.holder = own_bit) THEN
        RETURN;
    END IF;
    push := pg_sequence_last_value('{ring}_push'::regclass);
    number := {ring}_next(pops);
    -- The number before may have been given up while its push was in its transaction. This function
    -- gets the lock when that transaction has ended: so a subscriber's only session gets the
    -- message before later messages.
    IF whole OR number > push OR {ring}_left(own_bit, number - 1)
        OR number > 0 AND NOT EXISTS (SELECT FROM {ring} s
            WHERE s.slot = {ring}_slot(number - 1) AND s.message_id >= number - 1)
        OR number < push AND NOT EXISTS (SELECT FROM {ring} s WHERE s.slot = {ring}_slot(number)
            AND s.message_id = number AND s.holders & mine <> 0)
        OR number = pg_sequence_last_value(pops) -- after a restored dump
            AND EXISTS (SELECT FROM {ring}_leases c WHERE c.subscriber = own_bit)
    THEN
        push := (SELECT l.push FROM {ring}_look_push(0) l);
        PERFORM pg_advisory_xact_lock({key}, own_bit);
        number := least({ring}_next(pops), push);
        -- Each slot belongs to one number of the last lap. The slot may hold a message that is laps
        -- older: later pushes give up a number whose slot is not free, and go on.
        SELECT array_agg(s.message_id ORDER BY s.message_id) INTO missed
        FROM generate_series(
            number - CASE WHEN whole THEN {slots} ELSE least({NEAR}, {slots}) END, number - 1) k
        JOIN {ring} s ON s.slot = {ring}_slot(k) AND s.message_id <= k AND s.holders & mine <> 0
        WHERE {ring}_left(own_bit, k);
        WHILE missed[cardinality(missed)] = number - 1 LOOP
            number := number - 1;
            missed := missed[:cardinality(missed) - 1];
        END LOOP;
        INSERT INTO {ring}_leases (subscriber, first, count)
        SELECT own_bit, m, 1 FROM unnest(missed) m;
        -- Pass over numbers below the highest one that no slot has: their messages never come.
        WHILE number < push AND EXISTS (SELECT FROM {ring} s
            WHERE s.slot = {ring}_slot(number)
                AND coalesce((number - s.message_id) % {slots} = 0, true)
                AND NOT (s.message_id = number AND s.holders & mine <> 0)) LOOP
            number := number + 1;
        END LOOP;
        PERFORM setval(pops, number | CASE WHEN pg_sequence_last_value(pops) >= {LEASED}
            OR EXISTS (SELECT FROM {ring}_leases c WHERE c.subscriber = own_bit)
            THEN {LEASED} ELSE 0 END);
    END IF;
    -- Read the slot and the ring's row in one statement: another session may remove a subscriber
    -- from both meanwhile.
    SELECT s.message_id, s.reference_count, s.holders,
        (SELECT r.holders FROM {ring}_ring r WHERE r.id = 0)
    INTO message_id, reference_count, holders, known
    FROM {ring} s WHERE s.slot = {ring}_slot(number);
    PERFORM FROM {ring}_leases c WHERE c.subscriber = own_bit LIMIT 1 FOR UPDATE SKIP LOCKED;
    returned := FOUND;
END $$;

-- Functions that pop. `holder` is the subscriber's bit of `holders`, and `pops` is its sequence.
-- The functions use the sequence before any lock: the sequence of a removed subscriber is missing,
-- and the session that removes a subscriber waits for the calls that use its sequence, never the
-- reverse.

-- Wait a little for a message, without locks; return whether there is one.
CREATE OR REPLACE FUNCTION {ring}_await_message(
    pops regclass, timeout integer, {mark} boolean DEFAULT NULL)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    idle integer := least({IDLE}, timeout);
BEGIN
    WHILE {ring}_next(pops) >= pg_sequence_last_value('{ring}_push'::regclass) LOOP
        IF idle <= 0 THEN
            RETURN false;
        END IF;
        idle := idle - 1;
        PERFORM pg_sleep(0.001);
    END LOOP;
    RETURN true;
END $$;

-- Pop a message; NULL if none came within `timeout` milliseconds. Mostly, only the first three
-- statements run. The caller computes `mine`, the subscriber's bit: PostgreSQL would prepare the
-- shift operator anew in each transaction.
CREATE OR REPLACE FUNCTION {ring}_pop_one(
    holder integer, mine bigint, pops regclass, timeout integer, {mark} boolean DEFAULT NULL)
RETURNS bytea LANGUAGE plpgsql AS $$
DECLARE
    number bigint;
    held bigint;
    data bytea;
    waits boolean;
    alone boolean;
BEGIN
    number := CASE
        WHEN pg_sequence_last_value(pops) < pg_sequence_last_value('{ring}_push'::regclass)
            AND pg_try_advisory_xact_lock_shared({key}, holder)
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
        IF number IS NULL THEN -- there may be leases, or no messages, or another session looks
            IF pg_sequence_last_value(pops) >= {LEASED} THEN
                SELECT r.message INTO data FROM {ring}_resume(holder, pops, 1, {mark}) r;
                IF FOUND THEN
                    RETURN data;
                END IF;
            END IF;
            IF NOT {ring}_await_message(pops, timeout) THEN
                RETURN NULL;
            END IF;
            PERFORM pg_advisory_xact_lock_shared({key}, holder);
        ELSIF number >= {LEASED} THEN -- a lease was added before this call had the lock
            number := number - {LEASED};
            CONTINUE;
        ELSE
            SELECT s.message_id, s.holders & mine <> 0 INTO held, waits
            FROM {ring} s WHERE s.slot = {ring}_slot(number);
            CONTINUE WHEN held = number AND waits; -- its push was committed since the UPDATE looked
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
        IF {ring}_next(pops) >= pg_sequence_last_value('{ring}_push'::regclass) THEN
            RETURN NULL;
        END IF;
        number := nextval(pops) - 1;
    END LOOP;
END $$;

-- Pop at most `most` messages, in an order that is not promised, up to the first number whose push
-- is not committed yet. The cursor's lock is kept until the commit.
CREATE OR REPLACE FUNCTION {ring}_pop_many(
    holder integer, pops regclass, most bigint, timeout integer, {mark} boolean DEFAULT NULL)
RETURNS TABLE (message_id bigint, "time" bigint, message bytea) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    mine bigint := 1::bigint << holder;
    first bigint;
    after bigint;
BEGIN
    IF pg_sequence_last_value(pops) >= {LEASED} THEN
        RETURN QUERY SELECT * FROM {ring}_resume(holder, pops, most, {mark});
        IF FOUND THEN
            RETURN;
        END IF;
    END IF;
    IF NOT {ring}_await_message(pops, timeout) THEN
        RETURN;
    END IF;
    PERFORM pg_advisory_xact_lock({key}, holder);
    LOOP
        first := {ring}_next(pops);
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
    PERFORM setval(pops, after | (pg_sequence_last_value(pops) & {LEASED}));
    IF NOT pg_try_advisory_xact_lock_shared({key}, {AWAIT_SLOT}) THEN
        PERFORM pg_notify('{name}', '');
    END IF;
END $$;

-- Return the first number from `first` on that is not pushed yet, or `after`. Return NULL if there
-- is nothing to take, or if the message before `first` still waits and a look has to take its
-- number back. The caller has the cursor's lock alone.
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

-- Functions that lease. A row of {ring}_leases keeps numbers that the subscriber's cursor has
-- passed until they are popped. An open lease's transaction has the row locked; a lease whose row
-- is not locked was given up, and is for the next pop. The messages' own rows stay unlocked while a
-- lease is open, because other subscribers pop them too.

-- Return whether there is a lease to open: a lease that was given up, or a new lease of at most
-- `most` messages.
CREATE OR REPLACE FUNCTION {ring}_lease(
    holder integer, pops regclass, most bigint, {mark} boolean DEFAULT NULL)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    number bigint;
    after bigint;
BEGIN
    PERFORM FROM {ring}_leases c
    WHERE c.subscriber = holder AND pg_sequence_last_value(pops) IS NOT NULL
    LIMIT 1 FOR UPDATE SKIP LOCKED;
    IF FOUND THEN
        RETURN true;
    END IF;
    number := {ring}_next(pops);
    PERFORM pg_advisory_xact_lock({key}, holder);
    number := {ring}_next(pops);
    after := {ring}_end(holder, number,
        least(number + most, pg_sequence_last_value('{ring}_push'::regclass)));
    IF (number < after) IS NOT TRUE THEN
        RETURN false;
    END IF;
    INSERT INTO {ring}_leases (subscriber, first, count) VALUES (holder, number, after - number);
    PERFORM setval(pops, after | {LEASED});
    RETURN true;
END $$;

-- Lock the first lease that no session has locked, and return at most `most` of its messages.
CREATE OR REPLACE FUNCTION {ring}_open(
    holder integer, pops regclass, most bigint, {mark} boolean DEFAULT NULL)
RETURNS TABLE (lease bigint, message_id bigint, "time" bigint, message bytea)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    leased record;
BEGIN
    -- A subscriber without its sequence was removed: another subscriber may have its bit.
    SELECT c.id, c.first, c.count INTO leased FROM {ring}_leases c
    WHERE c.subscriber = holder AND EXISTS (SELECT FROM pg_class WHERE oid = pops)
    ORDER BY c.first LIMIT 1 FOR UPDATE SKIP LOCKED;
    RETURN QUERY SELECT leased.id, s.message_id, s.time, s.message
    FROM generate_series(leased.first, leased.first + leased.count - 1) k
    JOIN {ring} s ON s.slot = {ring}_slot(k) AND s.message_id = k
        AND s.holders & (1::bigint << holder) <> 0
    ORDER BY 2 LIMIT most;
    IF NOT FOUND THEN
        -- All messages of the lease were popped before: the lease is empty.
        DELETE FROM {ring}_leases c WHERE c.id = leased.id;
    END IF;
END $$;

-- Pop the messages of a lease up to number `last`.
CREATE OR REPLACE FUNCTION {ring}_settle(
    holder integer, lease bigint, last bigint, {mark} boolean DEFAULT NULL)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    mine bigint := 1::bigint << holder;
    leased record;
BEGIN
    SELECT c.first, c.count INTO STRICT leased FROM {ring}_leases c WHERE c.id = lease;
    UPDATE {ring} s SET reference_count = s.reference_count - 1::smallint,
        holders = s.holders # mine
    FROM generate_series(leased.first, last) k
    WHERE s.slot = {ring}_slot(k) AND s.message_id = k AND s.holders & mine <> 0;
    IF last < leased.first + leased.count - 1 THEN
        UPDATE {ring}_leases c SET first = last + 1, count = c.count - (last + 1 - c.first)
        WHERE c.id = lease;
    ELSE
        DELETE FROM {ring}_leases c WHERE c.id = lease;
    END IF;
    IF NOT pg_try_advisory_xact_lock_shared({key}, {AWAIT_SLOT}) THEN
        PERFORM pg_notify('{name}', '');
    END IF;
END $$;

-- Pop at most `most` messages of a lease that was given up.
CREATE OR REPLACE FUNCTION {ring}_resume(
    holder integer, pops regclass, most bigint, {mark} boolean DEFAULT NULL)
RETURNS TABLE (message_id bigint, "time" bigint, message bytea) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    leased record;
BEGIN
    SELECT max(o.lease) AS lease, max(o.message_id) AS last, array_agg(o.message_id) AS ids,
        array_agg(o.time) AS times, array_agg(o.message) AS data
    INTO leased FROM {ring}_open(holder, pops, most) o;
    IF leased.lease IS NOT NULL THEN
        PERFORM {ring}_settle(holder, leased.lease, leased.last);
        RETURN QUERY SELECT * FROM unnest(leased.ids, leased.times, leased.data);
    ELSIF NOT EXISTS (SELECT FROM {ring}_leases c WHERE c.subscriber = holder)
        -- Not in a longer transaction: other sessions would wait for the lock, and a rollback would
        -- bring back a lease that was popped before.
        AND {mark} AND pg_try_advisory_xact_lock({key}, holder)
    THEN
        -- A session that adds a lease holds the lock until its commit: a new snapshot sees the
        -- lease.
        IF NOT EXISTS (SELECT FROM {ring}_leases c WHERE c.subscriber = holder) THEN
            PERFORM setval(pops, {ring}_next(pops));
        END IF;
    END IF;
END $$;

-- Functions that push. Subscribing replaces constants in their plans, which PostgreSQL then makes
-- again. A session learns of the change when it locks a table that it has not locked in its
-- transaction: pg_relation_is_updatable(0, ...) locks table 0, which no session can have locked,
-- finds no such table and unlocks it; its answer is never NULL.

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
        -- A waiting session holds this lock alone. The push shares the lock until its commit: a
        -- session that begins to wait meanwhile looks again before it sleeps.
        RETURNING pg_try_advisory_xact_lock_shared({key}, {AWAIT_MESSAGE}) INTO alone;
        IF alone THEN
            RETURN number;
        END IF;
        IF FOUND THEN
            PERFORM pg_notify('{name}', '');
            RETURN number;
        END IF;
        IF number IS NULL THEN -- another session looks, or pushes several messages
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
-- fit. The lock is kept until the slots are committed: otherwise a free slot could belong to a
-- number of the lap before, taken but not filled yet by another session that pushes several
-- messages.
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
    -- Check the last slot first: slots mostly come free in the order of their numbers.
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
