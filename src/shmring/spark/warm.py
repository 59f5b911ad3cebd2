"""Makes the workers' daemon import pandas, pyarrow and numpy once, before it forks the workers.

Spark's own daemon leaves these imports to its workers, because libraries start threads when they
are imported, and a fork copies no thread. Each worker then spends half a second of CPU and tens of
megabytes. With OMP_NUM_THREADS=1, which Spark sets for a task of one core, numpy starts no thread.
pyarrow starts one thread, jemalloc's, which an environment variable forbids. If a thread runs all
the same, if jemalloc is pyarrow's memory pool, or if an import fails, the daemon starts again
without the imports.

A worker starts again, too, if its path leads to other modules than the daemon's (``addPyFile``,
archives). It calls exec(), because the task waits for this process, and passes the data that it
has already read from its socket to the program that starts.
"""

from __future__ import annotations

import gc
import io
import os
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Mapping

# Environment variable: "off" leaves the imports to the workers. PythonRun.java sets the variable
# for spark.shmring.warmWorkers=off, and _start_again() sets it for the program that starts.
SWITCH = "SHMRING_WARM_WORKERS"
# Environment variable of a worker that starts again: the file descriptors of its socket and of the
# data that it has read.
_RECEIVED = "SHMRING_RECEIVED"
_JEMALLOC = "JE_ARROW_MALLOC_CONF"

_PACKAGES = ("numpy", "pandas", "pyarrow")
# CHANGE: edit this for a new version of Spark
_MODULES = (
    *_PACKAGES,
    "pyarrow.pandas_compat",
    "pyspark.sql.conversion",
    "pyspark.worker",
    "shmring.spark.conversions",
    "shmring.spark.serializers",
)


@dataclass
class Imports:
    """Modules that a daemon has imported for its workers."""

    names: frozenset[str]  # names of the top-level packages and modules
    path: frozenset[str]  # entries of the path in which the modules were looked for
    written: Mapping[str, int]  # modification time of each package's file, in ns

    def are_those_of(self, path: list[str]) -> bool:
        """Return True if imports along this path would find the modules that the daemon has."""
        others = [entry for entry in path if entry not in self.path]
        found = (PathFinder.find_spec(name, others) for name in self.names)
        return self.written == _written() and not any(spec and spec.loader for spec in found)


class Received(io.RawIOBase):
    """A worker's socket, with a copy of all data read from the socket.

    If the worker starts again, hand_over() passes the copy to the program that starts, because that
    program cannot read the same data from the socket again.
    """

    def __init__(self, source: io.FileIO, received: bytes = b"") -> None:
        self._source, self._again = source, received
        self._kept: list[bytes] | None = []

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._source.fileno()

    def readinto(self, buffer: Any) -> int | None:
        """Read first what the worker had received before it started again, then from the socket."""
        if self._again:
            size = min(len(buffer), len(self._again))
            buffer[:size], self._again = self._again[:size], self._again[size:]
        else:
            size = self._source.readinto(buffer)
        if self._kept is not None and size:
            self._kept.append(bytes(buffer[:size]))
        return size

    def keep_no_more(self) -> None:
        """Drop the copy of the data: this worker does not start again any more."""
        self._kept = None

    def hand_over(self) -> NoReturn:
        """Start this worker again without the daemon's imports; pass on the socket and its data."""
        data = os.memfd_create("received")
        with open(data, "wb", closefd=False) as file:
            file.writelines(self._kept or ())
        for each in (self.fileno(), data):
            os.set_inheritable(each, True)
        os.environ[_RECEIVED] = f"{self.fileno()} {data}"
        _start_again()


def received() -> tuple[int, bytes] | None:
    """Return socket and data of the worker that started again; None in any other process."""
    if _RECEIVED not in os.environ:
        return None
    socket, data = map(int, os.environ.pop(_RECEIVED).split())
    del os.environ[SWITCH]
    os.set_inheritable(socket, False)
    os.lseek(data, 0, os.SEEK_SET)
    with open(data, "rb") as file:
        return socket, file.read()


def import_early() -> Imports | None:
    """Import the workers' modules before the fork; return None if SHMRING_WARM_WORKERS is off.

    The function does not return if forked workers could not use the modules, for example because
    an import has started a thread. It then starts the daemon again, without the imports.
    """
    if os.environ.pop(SWITCH, "on") == "off":
        return None
    before = _outermost()
    path = list(sys.path)
    # Do not import from the working directory: the task's files may lie there, and one of them may
    # have the name of a module.
    sys.path[:] = [entry for entry in path if entry not in ("", os.getcwd())]
    searched = frozenset(sys.path)
    # Collect no garbage during the imports: freed objects leave gaps in pages, and a worker that
    # makes objects in such a gap gets a copy of the whole page.
    gc.disable()
    try:
        objection = _import_without_threads()
    except Exception as error:
        objection = f"{type(error).__name__}: {error}"
    sys.path[:] = path
    if objection:
        print(f"shmring: Python workers import pandas themselves: {objection}", file=sys.stderr)
        _start_again()
    gc.collect()
    gc.freeze()
    gc.enable()
    return Imports(frozenset(_outermost() - before), searched, _written())


def _outermost() -> set[str]:
    return {name.partition(".")[0] for name in sys.modules}


def _import_without_threads() -> str | None:
    """Import the modules; return why forks of this process could not use them, or None."""
    of_user = os.environ.get(_JEMALLOC)
    os.environ[_JEMALLOC] = ",".join(filter(None, (of_user, "background_thread:false")))
    try:
        with redirect_stdout(sys.stderr):  # the executor reads the daemon's port from stdout
            for module in _MODULES:
                import_module(module)
    finally:
        del os.environ[_JEMALLOC]
        if of_user is not None:
            os.environ[_JEMALLOC] = of_user
    if import_module("pyarrow").default_memory_pool().backend_name == "jemalloc":
        return "pyarrow's memory pool, jemalloc, has a thread"
    threads = len(os.listdir("/proc/self/task")) - 1
    return f"their import starts {threads} threads" if threads else None


def _written() -> dict[str, int]:
    files = (str(sys.modules[name].__file__) for name in _PACKAGES)
    return {file: os.stat(file).st_mtime_ns for file in files}


def _start_again() -> NoReturn:
    os.environ[SWITCH] = "off"
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
