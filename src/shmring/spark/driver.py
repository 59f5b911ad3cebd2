"""Runs ``df.toArrow()`` and ``df.toPandas()`` over memory shared by tasks and the driver's Python.

Spark's own function runs, but it calls DriverCollect in the JVM to run the job, and :class:`_Files`
to read the socket.
Tasks write their batches into memory files that this process has opened (DriverCollect in Java),
and the socket tells where the batches are. The files have no names: the kernel frees them once this
process has closed them, or is killed.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import os
import secrets
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyspark.sql.pandas.conversion as conversion

from shmring.spark import sparks_code

_CLASS = "io.shmring.spark.driver.DriverCollect"
_head = struct.Struct(">qiiiqqqq")  # CollectTask.java says what each number is
_DONE = b"\1"  # last byte of the stream; missing if the job has failed

# CHANGE: edit this for a new version of Spark
# Digests of Spark's code in the versions of Spark that this module was written for. True: Spark's
# own reader yields, after all batches, a list of numbers that gives the order of the batches.
_KNOWN = {
    "d72d351f442074b8": True,  # 4.1
    "2903c504eca058d9": True,  # 4.2
    "d67f8830d197d22c": False,  # 4.3
}

# Maximum number of memory files of a result. Several are used because tasks that write to one file
# wait for each other.
_MOST_FILES = 8
_COPIED = 256 * 1024  # parts up to this size are copied; mapping a larger part is cheaper
_PROT_READ, _MAP_PRIVATE = 1, 2
_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # flags of fallocate

# Modules, typed as Any because their stubs lack names.
_gateway: Any = import_module("py4j.java_gateway")
_protocol: Any = import_module("py4j.protocol")
_spark: Any = conversion

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]


class _Mapping:
    """A mapped part of a file; a buffer keeps it alive, even after the file is closed."""

    _munmap = _libc.munmap  # kept here because globals may be gone while Python ends

    def __init__(self, number: int, offset: int, length: int) -> None:
        self._length = 0
        self.address = _libc.mmap(None, length, _PROT_READ, _MAP_PRIVATE, number, offset)
        if self.address in (None, ctypes.c_void_p(-1).value):
            raise MemoryError(f"{length} bytes of a result cannot be mapped")
        self._length = length

    def __del__(self) -> None:
        if self._length:
            self._munmap(self.address, self._length)


class _Files:
    """Holds one result's files while Spark collects the result: one on disk, the others in memory.

    Spark's code uses an object of this class in place of its ArrowCollectSerializer. So
    :meth:`load_stream` reads Spark's socket, which tells in which file and at which offset the
    batches of each task are, and yields all batches in the order of the rows.
    """

    def __init__(self, folder: str, *, is_copied: bool) -> None:
        self._is_copied = is_copied  # whether Spark copies each batch before it reads the next one
        # Offsets and lengths of the parts that were read, by file.
        self._used: dict[int, list[tuple[int, int]]] = {}
        self._open: list[int] = []
        name = f"shmring-result-{secrets.token_hex(16)}"  # a name that no other file has
        # Go on without files if this process has too many open: tasks then send their batches over
        # the socket.
        with suppress(OSError):
            with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
                self._open.append(os.dup(file.fileno()))
            for _ in range(min(_MOST_FILES, os.cpu_count() or 1)):
                self._open.append(os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))

    def links(self) -> str:
        """Return each file's symbolic link in /proc, and the link's target, for Java's tasks.

        A task opens a link only if the link has this target, because the same path may lead to
        another file on another host, or after this process has closed the file. A link and its
        target are separated by a space, files by NUL characters (see DriverCollect.serve).
        """
        paths = [f"/proc/{os.getpid()}/fd/{number}" for number in self._open]
        return "\0".join([f"{path} {os.readlink(path)}" for path in paths])

    def load_stream(self, stream: Any) -> Iterator[Any]:
        count = 0
        for batch in self._batches(stream):
            yield batch
            count += 1
        if _KNOWN[digest()]:
            yield [*range(count)]

    def _batches(self, stream: Any) -> Iterator[Any]:
        import pyarrow as pa

        schema_bytes = stream.read(int.from_bytes(stream.read(4), "big"))
        schema = pa.ipc.read_schema(pa.py_buffer(schema_bytes))
        results: list[tuple[Any, ...]] = []
        while len(head := stream.read(_head.size)) == _head.size:
            _, _, *part, before, after = _head.unpack(head)
            results.append((*part, stream.read(before), stream.read(after)))
        # If the job failed, drop the batches: the traceback of Spark's error would otherwise keep
        # them in memory for as long as the program keeps the error.
        if head != _DONE:
            results.clear()
        for _, number, offset, length, before, after in sorted(results):
            part = self._read(number, offset, length) if length else b""
            for messages in (before, part, after):
                for message in pa.ipc.MessageReader.open_stream(messages):
                    yield pa.ipc.read_record_batch(message, schema)
        self.finish()

    def _read(self, number: int, offset: int, length: int) -> Any:
        """Return a part of a file as a buffer."""
        import pyarrow as pa

        self._used.setdefault(number, []).append((offset, length))
        if length > _COPIED and not self._is_copied:
            mapping = _Mapping(number, offset, length)
            return pa.foreign_buffer(mapping.address, length, mapping)
        with open(number, "rb", closefd=False) as file:
            file.seek(offset)
            copied = file.read(length)
        self._free(number, offset, length)
        return pa.py_buffer(copied)

    def _free(self, number: int, offset: int, length: int) -> None:
        _libc.fallocate(number, _KEEP_SIZE | _PUNCH_HOLE, offset, length)

    def finish(self) -> None:
        """Free what failed attempts of tasks wrote; seal files, so that running attempts fail."""
        for number in self._open:
            end = 0
            for offset, length in sorted(self._used.get(number, [])):
                self._free(number, end, offset - end)
                end = offset + length
            self._free(number, end, os.fstat(number).st_size - end)
            with suppress(OSError):  # a file on disk has no seals
                fcntl.fcntl(number, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW)

    def close(self) -> None:
        while self._open:
            os.close(self._open.pop())


def _free_memory() -> int:
    """Return three quarters of the memory that is free on this host and in this control group."""
    free = int(_words("/proc/meminfo")["MemAvailable:"]) * 1024
    group = Path("/proc/self/cgroup").read_text().rpartition("0::")[2].strip()
    for folder in (*Path(f"/sys/fs/cgroup{group}/-").parents,)[:-3]:
        with suppress(OSError, ValueError):  # no such file, or it says "max": there is no limit
            most = int((folder / "memory.max").read_text())
            used = int((folder / "memory.current").read_text())
            free = min(free, most - used + int(_words(folder / "memory.stat")["inactive_file"]))
    return max(0, free * 3 // 4)


def _words(file: str | Path) -> dict[str, str]:
    """Read a file of lines such as "name 123", or "name: 123 kB"."""
    return dict(line.split()[:2] for line in Path(file).read_text().splitlines())


# Look the class up only once, because a look-up takes as long as a call of the class's method.
@functools.lru_cache(maxsize=1)
def _collects(jvm: Any) -> Callable[[Any], Any]:
    """Return the method DriverCollect.of.

    If the JVM lacks shmring's jar, or Spark lacks a member that DriverCollect needs, return a
    function that always returns None, which leaves each result to Spark.
    """
    with suppress(_protocol.Py4JError):
        if _gateway.JavaClass(sparks_code.LINKS, jvm._gateway_client).collectsResults():
            return _gateway.JavaClass(_CLASS, jvm._gateway_client).of
    return lambda frame: None


_own: Any = _spark.PandasConversionMixin._collect_as_arrow


def _collect_as_arrow(
    original: Any, split_batches: bool = False, *arguments: Any, **named: Any
) -> list[Any]:
    """Run Spark's _collect_as_arrow with DriverCollect, unless the result is left to Spark."""
    java = original._jdf
    collect = _collects(original._sc._jvm)(java)
    if collect is None:
        return _own(original, split_batches, *arguments, **named)
    files = _Files(original._sc._temp_dir, is_copied=split_batches)
    try:
        serve = functools.partial(collect.serve, _free_memory(), files.links())
        called = SimpleNamespace(collectAsArrowToPython=serve, schema=java.schema)
        # Copy the DataFrame by hand: copy.copy() would call the class without its arguments.
        frame: Any = object.__new__(original.__class__)
        frame.__dict__.update(vars(original), _jdf=called)
        run = sparks_code.copied(_own, {"ArrowCollectSerializer": lambda: files})
        return run(frame, split_batches, *arguments, **named)
    finally:
        files.close()


def equip() -> None:
    """Let this process collect results over shared memory, if Spark's own code is known."""
    if digest() in _KNOWN:
        _spark.PandasConversionMixin._collect_as_arrow = _collect_as_arrow


@functools.cache
def digest() -> str:
    """Return the digest of Spark's code that :func:`equip` replaces or relies on."""
    return sparks_code.digest(_own, _spark.ArrowCollectSerializer, _spark._load_from_socket)
