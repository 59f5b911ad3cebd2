"""The databases that a table ring can be in, and their URLs."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import exc

from shmring.table_ring.backend import Backend
from shmring.table_ring.postgresql import PostgresBackend
from shmring.table_ring.sqlite import SqliteBackend

__all__ = ["address", "backend_of"]

_BACKENDS: dict[str, type[Backend]] = {"sqlite": SqliteBackend, "postgresql": PostgresBackend}


def address(url: str | sa.URL) -> sa.URL:
    """Return the URL with the driver that is used, or raise ValueError."""
    try:
        found = sa.make_url(url)
    except exc.ArgumentError:
        raise ValueError(
            f"{url!r} is no database URL; write sqlite:///file or postgresql://user@host/database"
        ) from None
    wanted = "postgresql" if found.drivername == "postgres" else found.drivername
    for name, backend in _BACKENDS.items():
        if wanted in (name, backend.driver):
            return backend.address(found)
    raise ValueError(
        f"no table ring on {found.drivername!r}; use sqlite:///file or postgresql://..."
    )


def backend_of(url: sa.URL) -> type[Backend]:
    """Return the backend for the database of an :func:`address`."""
    return _BACKENDS[url.get_backend_name()]
