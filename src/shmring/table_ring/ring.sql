-- Functions that return a constant or an expression. `subscribed` and `holders` are the number and
-- the bits of the subscribers for which new messages wait; subscribing replaces both functions.
-- PostgreSQL writes their values into the plans of a push.

CREATE OR REPLACE FUNCTION {ring}_subscribed() RETURNS smallint LANGUAGE sql IMMUTABLE AS $$
    SELECT ({subscribed})::smallint $$;

CREATE OR REPLACE FUNCTION {ring}_holders() RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT ({holders})::bigint $$;

-- Return the slot of a number.
CREATE OR REPLACE FUNCTION {ring}_slot(number bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT {slot_of} $$;

-- Return the slots of the numbers from `first` to before `after`, as ranges, each with its first
-- number. Unless the ring is scattered, consecutive numbers have consecutive slots, up to the end
-- of the table.
CREATE OR REPLACE FUNCTION {ring}_ranges(first bigint, after bigint)
RETURNS TABLE (number bigint, low bigint, high bigint) LANGUAGE sql IMMUTABLE AS $$
    SELECT k, {ring}_slot(k), {ring}_slot(k) FROM generate_series(first, after - 1) k
    WHERE {stride} <> 1
    UNION ALL
    SELECT first, first % {slots}, least(first % {slots} + after - first, {slots}) - 1
    WHERE {stride} = 1
    UNION ALL
    SELECT first - first % {slots} + {slots}, 0, first % {slots} + after - first - 1 - {slots}
    WHERE {stride} = 1 AND first % {slots} + after - first > {slots} $$;

-- Return a subscriber's next number. While the subscriber may have leases, its sequence is higher
-- by {LEASED}, and so ahead of all pushes: the comparison that tells a pop whether there are
-- messages then fails, and the pop looks for leases.
CREATE OR REPLACE FUNCTION {ring}_next(pops regclass) RETURNS bigint LANGUAGE sql AS $$
    SELECT pg_sequence_last_value(pops) & ~{LEASED} $$;

UPDATE {ring}_ring SET functions = '{made}';
