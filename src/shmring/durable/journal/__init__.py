"""The journal writes every message of a ring to disk, and reads the messages back.

``journaller`` is the branch of the ring that appends messages to files. ``log`` defines the format
of the files and manages their directory. ``reader`` reads the files.
"""

from shmring.durable.journal.journaller import Journal, Retention
from shmring.durable.journal.reader import replay, replay_batches, restore, truncate, verify

__all__ = ["Journal", "Retention", "replay", "replay_batches", "restore", "truncate", "verify"]
