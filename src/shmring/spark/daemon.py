"""Spark's daemon of Python workers, whose workers take batches from rings where they are told to.

Functions over rings have workers of this daemon, and all others those of Spark's. It is Spark's own
but for rings, see :mod:`shmring.spark.exchange`, for :mod:`shmring.spark.conversions`, and for what
:func:`_equipped_worker` says about garbage.
"""

from __future__ import annotations

import ctypes
import gc
import os
import socket
import sys
import time
from contextlib import suppress

import pyspark.daemon

import shmring

# Parameters of malloc.h, and the greatest value that glibc itself would set the second one to.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_MOST_MMAP_THRESHOLD = 32 << 20
_KEPT_BYTES = 64 << 20  # of freed memory, in each worker
_PATIENCE = 5.0  # seconds until an executor that is killed lets its rings go

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
    from shmring.spark import conversions, exchange  # after the fork: pyarrow has threads

    exchange.equip()
    conversions.equip()
    code = _worker(sock, authenticated)
    if len(sys.modules) != _modules:
        _modules = len(sys.modules)
        gc.collect()
        gc.freeze()
    return code


def keep_freed_memory() -> None:
    """Let a worker copy each batch into memory that one before it had.

    At some sizes of batches glibc gives the end of its heap back after each one, and the kernel
    clears it anew, page by page: then a batch of 3 MB takes three times as long to copy.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # musl has none
        libc.mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
        libc.mallopt(_MMAP_THRESHOLD, _MOST_MMAP_THRESHOLD)


def _sweep(rings: str) -> bool:
    """Remove rings of killed executors whose workers had not attached yet; whether none is left.

    `rings` is how their names begin, as WorkerRings.java has it.
    """
    left = [name for name in shmring.rings() if name.startswith(rings)]
    for name in left:
        with suppress(shmring.ShmringError):
            shmring.gc(name)
    return not left


pyspark.daemon.worker = _equipped_worker

if __name__ == "__main__":
    parent = os.getppid()
    keep_freed_memory()  # the workers, its forks, have it too
    _sweep("worker.")  # executors may have been killed with their daemons
    try:
        pyspark.daemon.manager()
    finally:
        begun = time.monotonic()
        while not _sweep(f"worker.{parent}-") and time.monotonic() - begun < _PATIENCE:
            time.sleep(0.02)
