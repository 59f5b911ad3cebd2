-- The functions that are constants or an expression. `subscribed` and `holders` say for whom new
-- messages wait; subscribing makes them again. PostgreSQL writes them into the plans of a push.

CREATE OR REPLACE FUNCTION {ring}_subscribed() RETURNS smallint LANGUAGE sql IMMUTABLE AS $$
    SELECT ({subscribed})::smallint $$;

CREATE OR REPLACE FUNCTION {ring}_holders() RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT ({holders})::bigint $$;

-- The slot of a number.
CREATE OR REPLACE FUNCTION {ring}_slot(number bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT {place} $$;

-- The slots of numbers: ranges, and their first numbers. Numbers in a row have slots in a row, up to
-- the end of the table, unless they are scattered.
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

-- A subscriber's next number. While it may have claims, its sequence is ahead of all pushes by {CLAIMED}:
-- so the comparison that tells a pop of messages also tells it of claims.
CREATE OR REPLACE FUNCTION {ring}_next(pops regclass) RETURNS bigint LANGUAGE sql AS $$
    SELECT pg_sequence_last_value(pops) & ~{CLAIMED} $$;

UPDATE {ring}_ring SET functions = '{made}';
