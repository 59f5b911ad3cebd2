"""Queues of one process at a time that outlive it.

``persistent`` and its sessions stand on a ``transaction_log`` and ``data_files``, ``append_only``
on one ``append_only_file``.
"""

from shmring.durable.queues.append_only import AppendOnlyQueue
from shmring.durable.queues.persistent import PersistentQueue
from shmring.durable.queues.session import Session

__all__ = ["AppendOnlyQueue", "PersistentQueue", "Session"]
