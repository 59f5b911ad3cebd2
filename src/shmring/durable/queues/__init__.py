"""Two kinds of queues that outlive their process; each queue has one writer at a time.

A module uses the modules below it, and both kinds of queues use the package ``base``::

    persistent                              append_only
    session     recovery                    |
        line: the items in the queue            |
    transaction_log     data_files          append_only_file

`session` contains enqueue() and dequeue_many() for both kinds of queues.  The module that writes
a file describes the file's format in its docstring.
"""

from shmring.durable.queues.append_only import AppendOnlyQueue
from shmring.durable.queues.persistent import PersistentQueue
from shmring.durable.queues.session import Session

__all__ = ["AppendOnlyQueue", "PersistentQueue", "Session"]
