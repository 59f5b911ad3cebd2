"""SQL that tests run beside a ring, and calls that it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from shmring.table_ring import TableRing

CALLS: dict[str, Callable[[TableRing], Any]] = {
    "push": lambda ring: ring.push(b"8", timeout=0),
    "push_many": lambda ring: ring.push_many([b"8", b"9"], timeout=0),
    "pop": lambda ring: ring.pop(timeout=0),
    "pop_many": lambda ring: ring.pop_many(timeout=0),
    "pop_batch": lambda ring: ring.pop_batch(timeout=0),
    "lease": lambda ring: ring.lease(timeout=0).__enter__(),
    "positions": lambda ring: ring.positions(),
    "table": lambda ring: ring.table(),
    "subscribe": lambda ring: ring.subscribe("late"),
    "unsubscribe": lambda ring: ring.unsubscribe("main"),
}


def execute(url: str, *statements: str) -> list[Any]:
    """Run statements, and return what the last one finds."""
    engine = sa.create_engine(url, poolclass=sa.pool.NullPool, isolation_level="AUTOCOMMIT")
    found: list[Any] = []
    with engine.connect() as connection:
        for statement in statements:
            result = connection.execute(sa.text(statement))
            found = list(result.scalars()) if result.returns_rows else []
    return found


def refused(ring: TableRing, calls: str, error: type[Exception], said: str | None = None) -> None:
    """Check that each of these calls raises this error."""
    for call in calls.split():
        with pytest.raises(error, match=said):
            CALLS[call](ring)
