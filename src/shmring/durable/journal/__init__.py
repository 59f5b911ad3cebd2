"""The journal: it writes every message of a ring to disk, and reads them again.

``journaller`` is the ring's branch that writes, ``log`` the directory to which it appends, with the
format of its files, and ``reader`` reads them.
"""

from shmring.durable.journal.journaller import Journal, Retention
from shmring.durable.journal.reader import replay, replay_batches, restore, truncate, verify

__all__ = ["Journal", "Retention", "replay", "replay_batches", "restore", "truncate", "verify"]
