"""Queues of one process at a time that outlive it, on what ``durable/base`` gives both::

    persistent                              append_only
    session     recovery     compaction         |
        line: what is in the queue              |
    transaction_log     data_files          append_only_file

Items are put in through `intake`, which `session` and `append_only` share.  A file's format stands
at the top of the module that writes it.
"""

from shmring.durable.base.items import Items
from shmring.durable.queues.append_only import AppendOnlyQueue
from shmring.durable.queues.persistent import PersistentQueue
from shmring.durable.queues.session import Session

__all__ = ["AppendOnlyQueue", "Items", "PersistentQueue", "Session"]
