"""A ring made of database rows, for hosts that share a database instead of memory.

``ring`` is the ring, ``schema`` its tables, ``backend`` the calls that a database must offer. Each
database has a module of its own, which ``ring`` finds by URL.
"""

from shmring.common.extras import need

need("sqlalchemy", "TableRing", "sql")

from shmring.table_ring.backend import (  # noqa: E402
    LeaseOpen,
    PooledSession,
    SubscriberDropped,
    SubscriberNotFound,
)
from shmring.table_ring.results import Lease, TableRingStats  # noqa: E402
from shmring.table_ring.ring import TableRing  # noqa: E402

__all__ = [
    "Lease",
    "LeaseOpen",
    "PooledSession",
    "SubscriberDropped",
    "SubscriberNotFound",
    "TableRing",
    "TableRingStats",
]
