"""SQL that tests run beside a ring."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa


def execute(url: str, *statements: str) -> list[Any]:
    """Run statements, and return what the last one finds."""
    engine = sa.create_engine(url, poolclass=sa.pool.NullPool, isolation_level="AUTOCOMMIT")
    found: list[Any] = []
    with engine.connect() as connection:
        for statement in statements:
            result = connection.execute(sa.text(statement))
            found = list(result.scalars()) if result.returns_rows else []
    return found
