"""A ring made of database rows, for hosts that share a database instead of memory.

``ring`` is the ring, ``schema`` its tables, ``backend`` the calls that a database must offer. Each
database has a module of its own, which ``ring`` finds by URL. ``functions`` is the part of the ring
that runs within PostgreSQL.
"""

try:
    import sqlalchemy as _  # noqa: F401
except ModuleNotFoundError as error:
    from shmring.errors import MissingExtra

    raise MissingExtra(
        "TableRing needs SQLAlchemy, which is not installed here: pip install 'shmring[sql]', or "
        "'shmring[postgresql]' for its driver too"
    ) from error

from shmring.table_ring.errors import PooledSession, SubscriberDropped, SubscriberNotFound
from shmring.table_ring.ring import TableRing
from shmring.table_ring.turns import Claim, TableRingStats

__all__ = [
    "Claim",
    "PooledSession",
    "SubscriberDropped",
    "SubscriberNotFound",
    "TableRing",
    "TableRingStats",
]
