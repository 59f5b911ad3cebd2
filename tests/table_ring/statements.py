"""SQL that tests run beside a ring."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from shmring.table_ring import TableRing


def execute(url: str, *statements: str) -> list[Any]:
    """Run statements, and return what the last one finds."""
    engine = sa.create_engine(url, poolclass=sa.pool.NullPool, isolation_level="AUTOCOMMIT")
    found: list[Any] = []
    with engine.connect() as connection:
        for statement in statements:
            result = connection.execute(sa.text(statement))
            found = list(result.scalars()) if result.returns_rows else []
    return found


def slots(ring: TableRing) -> list[tuple[int, int | None, bytes | None, int]]:
    """A ring's rows in order; a free slot has no number and no message here."""
    engine = sa.create_engine(ring.url, poolclass=sa.pool.NullPool)
    query = f'SELECT slot, message_id, message, reference_count FROM "{ring.name}" ORDER BY slot'
    with engine.connect() as connection:
        rows = connection.execute(sa.text(query)).all()
    return [(s, n, d, count) if count else (s, None, None, 0) for s, n, d, count in rows]


def counts(ring: TableRing) -> list[int]:
    """The reference counts of a ring's slots, in order."""
    return [count for *_, count in slots(ring)]
