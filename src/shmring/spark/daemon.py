"""Spark's daemon of Python workers, changed so that its workers can take batches from rings.

Workers of this daemon run functions over rings; workers of Spark's own daemon run all others. The
daemon is Spark's, except for rings (:mod:`shmring.spark.exchange`), conversions
(:mod:`shmring.spark.conversions`) and garbage collection (:func:`_equipped_worker`).
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

# Parameters of malloc.h, and the greatest value to which glibc itself raises M_MMAP_THRESHOLD.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_MOST_MMAP_THRESHOLD = 32 << 20
_KEPT_BYTES = 64 << 20  # bytes of freed memory that each worker keeps
_PATIENCE = 5.0  # seconds to wait until a killed executor has let go of its rings

_worker = pyspark.daemon.worker
_modules = 0  # number of modules imported at the last gc.freeze()


def _equipped_worker(sock: socket.socket, authenticated: bool) -> int:
    """Run one task.

    After each task the daemon collects garbage, which visits every object of every imported module:
    20 ms, most of the cost of a small task. So after a task that has imported modules, all objects
    that outlived it are frozen, and garbage collection skips them: such an object is freed when
    nothing refers to it, but if it is part of a cycle it stays until the worker ends.
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
    """Let a worker copy each batch into memory that an earlier batch had.

    At some sizes of batches glibc gives the end of its heap back after each batch, and the kernel
    clears it again, page by page: then a batch of 3 MB takes three times as long to copy.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # musl has none
        libc.mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
        libc.mallopt(_MMAP_THRESHOLD, _MOST_MMAP_THRESHOLD)


def _sweep(rings: str) -> bool:
    """Remove rings of killed executors that no worker had attached to; return if none is left.

    `rings` is the prefix of their names, as in WorkerRings.java.
    """
    left = [name for name in shmring.rings() if name.startswith(rings)]
    for name in left:
        with suppress(shmring.ShmringError):
            shmring.gc(name)
    return not left


pyspark.daemon.worker = _equipped_worker

if __name__ == "__main__":
    parent = os.getppid()
    keep_freed_memory()  # the daemon's forks, its workers, inherit the setting
    _sweep("worker.")  # executors may have been killed with their daemons
    try:
        pyspark.daemon.manager()
    finally:
        begun = time.monotonic()
        while not _sweep(f"worker.{parent}-") and time.monotonic() - begun < _PATIENCE:
            time.sleep(0.02)
