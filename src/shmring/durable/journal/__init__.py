"""The journal: every message of a ring on disk, and what is read from there.

``journaller`` is the ring's branch that writes, ``log`` the directory it appends to, ``reader``
what reads again, ``segments`` the format of the files.
"""

from shmring.durable.journal.journaller import Journal, Retention
from shmring.durable.journal.reader import replay, replay_batches, restore, truncate, verify

__all__ = ["Journal", "Retention", "replay", "replay_batches", "restore", "truncate", "verify"]
