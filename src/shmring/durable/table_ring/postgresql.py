"""The table ring on PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.pool import NullPool

from shmring.durable.table_ring.backend import Backend, Durability, Result
from shmring.durable.table_ring.schema import MESSAGE_BYTES, Layout, Tables
from shmring.errors import MissingExtra

__all__ = ["PostgresBackend"]


class PostgresBackend(Backend):
    """PostgreSQL through psycopg 3: one statement, and so one round trip, a push or pop.

    A statement of its own holds no lock while the client computes, is stopped or killed: the
    server begins, runs and commits it alone.

    With ``durability="sync"`` a second, empty transaction follows and waits for the disk. The
    statement itself commits without waiting, so the cursor row's lock is held for the microseconds
    of its execution and not for the length of a disk write: connections queue for the row but
    share the sync. That is safe because the log has one order: when the second transaction is on
    disk, so is everything committed before it, and a crash keeps a prefix of the numbers.
    """

    driver = "postgresql+psycopg"
    free_message = f"decode(repeat('00', {MESSAGE_BYTES}), 'hex')"

    def __init__(self, url: sa.URL, tables: Tables, durability: Durability) -> None:
        self._sync_level = "on"
        self._compiled: dict[str, str] = {}
        super().__init__(url, tables, durability)

    def _make_engine(self, url: sa.URL) -> sa.Engine:
        try:
            return sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
        except ImportError as error:
            raise MissingExtra(
                f"a table ring on PostgreSQL needs psycopg 3, which cannot be imported here "
                f"({error}): pip install 'shmring[postgresql]'"
            ) from error

    def _prepare_session(self, connection: Any, _record: Any) -> None:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute("SHOW synchronous_commit")
            # A site with stand-by servers may ask for more than "on": keep that.
            level = str(cursor.fetchone()[0])
            self._sync_level = "on" if level == "off" else level
            # The plan must not depend on statistics, which may have been taken of an empty ring:
            # every lookup goes by key, and planning once is half the time of a push.
            cursor.execute(
                "SET synchronous_commit = off;"
                "SET default_transaction_isolation = 'read committed';"
                "SET default_transaction_read_only = off;"
                f"SET lock_timeout = {int(self.lock_seconds * 1000)};"
                "SET plan_cache_mode = force_generic_plan;"
                "SET jit = off;"
                "SET enable_seqscan = off;"
                "SET enable_hashjoin = off;"
                "SET enable_mergejoin = off"
            )

    def use(self, layout: Layout) -> None:
        super().use(layout)
        slots, ring, subscribers = self._names()
        # All subqueries of a statement see the table as it was when the statement began, even if
        # it then waited for the cursor row, whose newest version it gets. So a slot may look taken
        # that has become free meanwhile (a miss; the caller looks again), but never the reverse:
        # only the holder of the push cursor's lock fills slots, and only at its position.
        head = f"SELECT position, subscribers FROM {ring} WHERE id = 0 FOR UPDATE"
        self._push_one = (
            f"WITH head AS MATERIALIZED ({head}), filled AS ("
            f"UPDATE {slots} SET message_id = head.position, time = :time_ns,"
            " reference_count = head.subscribers, message = :message FROM head"
            f" WHERE slot = {layout.place_sql('head.position')} AND reference_count = 0"
            " RETURNING message_id)"
            f" UPDATE {ring} SET position = filled.message_id + 1 FROM filled WHERE id = 0"
            " RETURNING filled.message_id"
        )
        # Slots are freed in the order of their numbers: if the last one of a run is free, all are.
        # Should that ever not hold, the division by zero undoes everything.
        number = "room.position + r.k - 1"
        self._push_many = (
            f"WITH head AS MATERIALIZED ({head}), room AS MATERIALIZED ("
            f"SELECT head.position, head.subscribers FROM head JOIN {slots} s ON s.slot ="
            f" {layout.place_sql('head.position + CAST(:count AS bigint) - 1')}"
            " WHERE s.reference_count = 0), filled AS ("
            f"UPDATE {slots} SET message_id = {number}, time = :time_ns,"
            " reference_count = room.subscribers, message = r.message"
            " FROM room, unnest(CAST(:rows AS bytea[])) WITH ORDINALITY AS r(message, k)"
            f" WHERE slot = {layout.place_sql(f'({number})')} AND reference_count = 0"
            " RETURNING 1), counted AS (SELECT count(*) AS n FROM filled)"
            f" UPDATE {ring} SET position = position + counted.n"
            " / CASE WHEN counted.n = :count THEN 1 ELSE 0 END"
            " FROM counted WHERE id = 0 AND counted.n > 0 RETURNING position - counted.n"
        )
        head = f"SELECT position FROM {subscribers} WHERE name = :subscriber FOR UPDATE"
        count_down = (
            "message_id = CASE WHEN reference_count > 1 THEN message_id END,"
            " reference_count = reference_count - 1"
        )
        self._pop_one = (
            f"WITH head AS MATERIALIZED ({head}), taken AS ("
            f"UPDATE {slots} SET {count_down} FROM head"
            f" WHERE slot = {layout.place_sql('head.position')} AND message_id = head.position"
            " RETURNING head.position AS number, message)"
            f" UPDATE {subscribers} SET position = taken.number + 1 FROM taken"
            " WHERE name = :subscriber RETURNING taken.message"
        )
        number = "head.position + k.k"
        self._pop_many = (
            f"WITH head AS MATERIALIZED ({head}), taken AS ("
            f"UPDATE {slots} SET {count_down} FROM head, {ring} r, generate_series(CAST(0 AS"
            " bigint), least(CAST(:limit AS bigint), r.position - head.position) - 1) AS k(k)"
            f" WHERE r.id = 0 AND slot = {layout.place_sql(f'({number})')}"
            f" AND message_id = {number} RETURNING {number} AS number, message), moved AS ("
            f"UPDATE {subscribers} SET position = counted.last + 1"
            " FROM (SELECT max(number) AS last FROM taken) counted"
            " WHERE name = :subscriber AND counted.last IS NOT NULL)"
            " SELECT message FROM taken ORDER BY number"
        )

    def push(self, rows: Sequence[bytes], time_ns: int) -> int | None:
        if len(rows) == 1:
            values = {"time_ns": time_ns, "message": rows[0]}
            found = self._change(self._push_one, values)
        else:
            values = {"time_ns": time_ns, "rows": list(rows), "count": len(rows)}
            found = self._change(self._push_many, values)
        return found[0][0] if found else None

    def pop(self, subscriber: str, limit: int) -> list[bytes]:
        if limit == 1:
            found = self._change(self._pop_one, {"subscriber": subscriber})
        else:
            found = self._change(self._pop_many, {"subscriber": subscriber, "limit": limit})
        return [row[0] for row in found]

    def lock_creation(self) -> None:
        self._run("SELECT pg_advisory_xact_lock(hashtext('shmring.table_ring'))")

    def lock_rows(self) -> str:
        return " FOR UPDATE"

    def is_lock_timeout(self, error: exc.DBAPIError) -> bool:
        return getattr(error.orig, "sqlstate", None) == "55P03"

    def is_deadlock(self, error: exc.DBAPIError) -> bool:
        return getattr(error.orig, "sqlstate", None) in ("40P01", "40001")

    def _change(self, sql: str, parameters: dict[str, Any]) -> Sequence[sa.Row[*tuple[Any, ...]]]:
        with self.translated():
            try:
                rows = self._run(sql, parameters).all()
            except exc.DBAPIError as error:
                if self.is_deadlock(error):
                    return []  # undone by the server: the same as a miss
                raise
            if rows and self.sync:
                self._run(
                    "SELECT set_config('synchronous_commit', :level, true),"
                    " pg_logical_emit_message(true, '', '')",
                    {"level": self._sync_level},
                )
        return rows

    def _begin(self) -> None:
        self._run("BEGIN")
        self._run(f"SET LOCAL synchronous_commit = {self._sync_level}")

    def _run(self, sql: str, parameters: Any = None) -> Result:
        # Translated to psycopg's placeholders once: text() would do it again at every call.
        compiled = self._compiled.get(sql)
        if compiled is None:
            compiled = str(sa.text(sql).compile(dialect=self.connection.dialect))
            self._compiled[sql] = compiled
        return self.connection.exec_driver_sql(compiled, parameters)
