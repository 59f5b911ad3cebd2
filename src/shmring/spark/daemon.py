"""Spark's daemon of Python workers, whose workers take batches from rings where they are told to.

Functions over rings have workers of this daemon, and all others those of Spark's. It is Spark's own
but for rings, see :mod:`shmring.spark.exchange`, and for what :func:`_equipped_worker` says about
garbage.
"""

from __future__ import annotations

import gc
import socket
import sys

import pyspark.daemon

_worker = pyspark.daemon.worker
_modules = 0  # that were imported when what had outlived a task was left out


def _equipped_worker(sock: socket.socket, authenticated: bool) -> int:
    """Run one task.

    After each one the daemon collects garbage, and looks at every object of every module that was
    imported: 20 ms, which is most of what a small task costs. Modules are left out once they are
    there, with all else that has outlived the task that imported them: it goes when nothing refers
    to it, but as a part of a cycle it stays for as long as the worker.
    """
    global _modules
    from shmring.spark.exchange import equip  # after the fork: pyarrow has threads

    equip()
    code = _worker(sock, authenticated)
    if len(sys.modules) != _modules:
        _modules = len(sys.modules)
        gc.collect()
        gc.freeze()
    return code


pyspark.daemon.worker = _equipped_worker

if __name__ == "__main__":
    pyspark.daemon.manager()
