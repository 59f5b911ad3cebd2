"""Queues that outlive their process, and have one writer at a time; both kinds use ``base``::

    persistent                              append_only
    session     recovery                    |
        line: the items in the queue            |
    transaction_log     data_files          append_only_file

`session` has the two ends that both kinds of queues have.  The module that writes a file describes
the file's format at the top.
"""

from shmring.durable.queues.append_only import AppendOnlyQueue
from shmring.durable.queues.persistent import PersistentQueue
from shmring.durable.queues.session import Session

__all__ = ["AppendOnlyQueue", "PersistentQueue", "Session"]
