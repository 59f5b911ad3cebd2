"""Spark's daemon of Python workers, changed so that its workers can take batches from rings.

An executor can have both this daemon and Spark's own. Workers of this daemon run functions over
rings; workers of Spark's daemon run all other functions. This module runs Spark's code, and changes
four things: rings (:mod:`shmring.spark.exchange`), conversions (:mod:`shmring.spark.conversions`),
imports before the fork (:mod:`shmring.spark.warm`) and garbage collection
(:func:`_equipped_worker`).
"""

from __future__ import annotations

import ctypes
import gc
import io
import os
import select
import socket
import sys
import time
import traceback
from contextlib import nullcontext, suppress
from functools import cache
from importlib import import_module
from typing import Any, NoReturn

import shmring
from shmring.ring.names import WORKERS
from shmring.spark import archives, warm

with archives.installed_bytecode():
    import pyspark.daemon
    import pyspark.util

# Parameters M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of mallopt(), as in malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
# Greatest value to which glibc itself raises M_MMAP_THRESHOLD, in bytes.
_MOST_MMAP_THRESHOLD = 32 << 20
# Bytes of freed memory that each worker may keep at the end of its heap: twice
# _MOST_MMAP_THRESHOLD, the ratio that glibc itself uses.
_KEPT_BYTES = 64 << 20
_BUFFER_BYTES = 65_536  # size of the buffer that Spark reads a worker's socket into
# Milliseconds without a task after which a worker gives memory back to the system. After the same
# time, the executor closes the worker's rings (see docs/spark-design.md).
_IDLE_MS = 3000
_LOOK_MS = 1000  # milliseconds between checks whether the executor has closed the rings
_PATIENCE = 5.0  # maximum seconds that the daemon, before it ends, waits until no rings are left

_libc = ctypes.CDLL(None)
_worker = pyspark.daemon.worker
_modules = 0  # number of modules imported at the last gc.freeze()
_imports: warm.Imports | None = None  # imports that the daemon has made for its workers
# Data that this worker had read from its socket before it called exec() to start again without the
# daemon's imports (warm.py); the data belong to its first task. Empty in all other workers.
_received = b""


def _equipped_worker(sock: socket.socket, authenticated: bool) -> int:
    """Run one task.

    After each task, Spark's code collects the worker's garbage, which visits every object of every
    imported module: 20 ms, most of the cost of a small task. So after a task that has imported
    modules, this function freezes all objects that are left, and garbage collection skips them. A
    frozen object is still freed when nothing refers to it, but if it is part of a cycle it stays
    until the worker ends.
    """
    global _modules
    _rest(sock)
    _equip()
    code = _worker(sock, authenticated)
    if len(sys.modules) != _modules:
        _modules = len(sys.modules)
        gc.collect()
        gc.freeze()
    return code


@cache
def _equip() -> None:
    """Let this worker use rings and conversions, from its first task on.

    If the first task's path leads to other modules than the daemon has imported, the worker starts
    again without the daemon's imports.
    """
    # Import pyspark.worker only in the worker, as Spark does: the import may start threads, which a
    # fork of the daemon would not copy.
    worker: Any = import_module("pyspark.worker")
    daemon: Any = pyspark.daemon
    imports = _imports
    main, setup_spark_files = worker.main, worker.setup_spark_files
    stream: warm.Received | None = None

    # CHANGE: edit this for a new version of Spark
    def set_main(to: Any) -> None:
        worker.main = to
        if hasattr(daemon, "worker_main"):  # Spark 4.1 keeps main() in this variable of the daemon
            daemon.worker_main = to

    def first_main(infile: Any, outfile: Any) -> None:
        nonlocal stream
        set_main(main)
        stream = warm.Received(infile.raw, _received)
        main(io.BufferedReader(stream, _BUFFER_BYTES), outfile)

    def first_setup_spark_files(*given: Any) -> None:
        worker.setup_spark_files = setup_spark_files
        setup_spark_files(*given)
        if stream is not None:
            if imports is not None and not imports.are_those_of(sys.path):
                stream.hand_over()
            stream.keep_no_more()
        # Import these modules only after the task's files are in the path: they import pyarrow, and
        # the task may bring a pyarrow of its own.
        from shmring.spark import conversions, serializers

        serializers.equip()
        conversions.equip()

    if imports is not None:
        import numpy as np

        np.random.seed()  # otherwise all workers would share the daemon's random state
    if imports is not None or _received:
        set_main(first_main)
    worker.setup_spark_files = first_setup_spark_files


def _replace_worker(descriptor: int) -> NoReturn:
    """Run a worker's tasks, and then end this process, as Spark's daemon does in a forked worker.

    This process is a worker that has called exec() to start again without the daemon's imports
    (:mod:`shmring.spark.warm`). `descriptor` is its socket to the executor.
    """
    sock = socket.socket(fileno=descriptor)
    try:
        # CHANGE: edit this for a new version of Spark
        with getattr(pyspark.util, "enable_faulthandler", nullcontext)():  # not in Spark 4.1
            while not _equipped_worker(sock, True) and os.environ.get("SPARK_REUSE_WORKER"):
                gc.collect()
            with suppress(OSError):
                while sock.recv(1024):  # wait until the executor has read all and closes the socket
                    pass
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def keep_freed_memory() -> None:
    """Let a worker copy each batch into memory that an earlier batch had.

    At some sizes of batches, glibc gives the end of its heap back to the kernel after each batch.
    For the next batch, the kernel has to clear new memory, page by page: a batch of 3 MB then takes
    three times as long to copy.
    """
    if hasattr(_libc, "mallopt"):  # musl has no mallopt()
        _libc.mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
        _libc.mallopt(_MMAP_THRESHOLD, _MOST_MMAP_THRESHOLD)


def _rest(sock: socket.socket) -> None:
    """Give memory back to the system if no task comes for some seconds.

    Spark ends workers that are idle for a minute. Until then a worker would keep its rings, and
    memory that its functions have freed.
    """
    exchange: Any = sys.modules.get("shmring.spark.exchange")
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    if exchange is None or poll.poll(_IDLE_MS):
        return
    while not exchange.rest():
        if poll.poll(_LOOK_MS):
            return
    exchange.pa.default_memory_pool().release_unused()
    if hasattr(_libc, "malloc_trim"):
        _libc.malloc_trim(0)


def _sweep(rings: str) -> bool:
    """Remove the rings of dead executors; return True if no ring with the prefix is left.

    `rings` is a prefix of names (see WorkerRings.java). A worker that attaches to its rings removes
    their names, so only rings without a worker are found here.
    """
    left = [name for name in shmring.rings() if name.startswith(rings)]
    for name in left:
        with suppress(shmring.ShmringError):
            shmring.gc(name)
    return not left


pyspark.daemon.worker = _equipped_worker


def main() -> None:
    """Run the daemon, until the executor ends.

    A user's own daemon module does its work and then calls this function: see
    ``spark.shmring.daemon``.
    """
    global _imports, _received
    keep_freed_memory()  # the daemon's forks, its workers, inherit the setting
    if (replaced := warm.received()) is not None:
        descriptor, _received = replaced
        _replace_worker(descriptor)
    parent = os.getppid()
    with archives.installed_bytecode():
        _imports = warm.import_early()
    _sweep(WORKERS)  # remove rings of executors that were killed together with their daemons
    try:
        pyspark.daemon.manager()
    finally:
        begun = time.monotonic()
        while not _sweep(f"{WORKERS}{parent}-") and time.monotonic() - begun < _PATIENCE:
            time.sleep(0.02)


if __name__ == "__main__":
    main()
