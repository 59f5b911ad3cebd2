"""Runs ``df.toArrow()`` and ``df.toPandas()`` over memory shared by tasks and the driver's Python.

Spark's own function runs, but with another method of the JVM's DataFrame and another reader of the
socket. Tasks write their batches into memory files that this process has opened (DriverCollect in
Java), and the socket tells where the batches are. The files have no names: the kernel frees them
once this process has closed them, or is killed.
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
from types import FunctionType
from typing import Any

import pyspark.sql.pandas.conversion as conversion

from shmring.spark import sparks_code

_CLASS = "io.shmring.spark.driver.DriverCollect"
_OURS = b"S"  # first byte of our stream; an Arrow stream begins with ff
_count, _head = struct.Struct(">i"), struct.Struct(">qiiqqiii")

# CHANGE: edit this for a new version of Spark
# Digests of the versions of Spark's code that this module was compared with; True if Spark's reader
# yields a list of the batches' order after the batches.
_KNOWN = {
    "d72d351f442074b8": True,  # 4.1
    "2903c504eca058d9": True,  # 4.2
    "d67f8830d197d22c": False,  # 4.3
}

_MOST_FILES = 8  # most memory files; tasks that write to the same file wait for each other
_MOST_PLACE = (1 << 63) - 1
_COPIED = 256 * 1024  # most bytes of a part that costs less to copy than to map
_PROT_READ, _MAP_PRIVATE = 1, 2
_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # flags of fallocate

# Modules as Any, because their stubs lack names.
_gateway: Any = import_module("py4j.java_gateway")
_protocol: Any = import_module("py4j.protocol")
_spark: Any = conversion

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]


class _Mapping:
    """A mapped part of a memory file; a buffer keeps it alive, even after the file is closed."""

    _munmap = _libc.munmap  # kept here because globals may be gone while Python ends

    def __init__(
        self, number: int, place: int, length: int, ended: Callable[[], None] | None
    ) -> None:
        self._length = 0
        self.address = _libc.mmap(None, length, _PROT_READ, _MAP_PRIVATE, number, place)
        if self.address in (None, ctypes.c_void_p(-1).value):
            raise MemoryError(f"{length} bytes of a result cannot be mapped")
        self._length = length
        self._ended = ended
        self._process = os.getpid()

    def __del__(self) -> None:
        if self._length:
            self._munmap(self.address, self._length)
            if self._ended is not None and self._process == os.getpid():
                self._ended()


class _Files:
    """The files of one result while it is collected: memory files, and one file on Spark's disk."""

    def __init__(self, folder: str | None) -> None:
        # Offsets and lengths of the parts that were read, by file.
        self._used: dict[int, list[tuple[int, int]]] = {}
        self._memory: list[int] = []
        self._disk: list[int] = []
        name = f"shmring-result-{secrets.token_hex(16)}"  # a name that no other file has
        with suppress(OSError):  # too many open files; tasks then keep their batches
            for _ in range(min(_MOST_FILES, os.cpu_count() or 1)):
                flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
                self._memory.append(os.memfd_create(name, flags))
            with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
                self._disk.append(os.dup(file.fileno()))

    def __str__(self) -> str:
        """Return the files as a text that DriverFiles.of reads in Java."""
        links = f"/proc/{os.getpid()}/fd"
        files = [
            [f"{number} {os.readlink(f'{links}/{number}')}" for number in some] or ["-1 "]
            for some in (self._disk, self._memory)
        ]
        return "\0".join([links, str(_free_memory()), *files[0], *files[1]])

    def read(self, number: int, place: int, length: int, *, is_freed: bool) -> Any:
        """Return a part of a file as a buffer.

        Parameters
        ----------
        is_freed : whether the part's memory is freed with the buffer, or only with the whole file
        """
        import pyarrow as pa

        self._used.setdefault(number, []).append((place, length))
        if length <= _COPIED:
            copied = os.pread(number, length, place)
            self._free(number, place, length)
            return pa.py_buffer(copied)
        ended = functools.partial(self._free, number, place, length) if is_freed else None
        mapping = _Mapping(number, place, length, ended)
        return pa.foreign_buffer(mapping.address, length, mapping)

    def _free(self, number: int, place: int, length: int) -> None:
        if number in self._memory:
            _libc.fallocate(number, _KEEP_SIZE | _PUNCH_HOLE, place, length)

    def finish(self) -> None:
        """Free the memory that failed attempts have written, and let running attempts fail."""
        for number in self._memory:
            end = 0
            for place, length in sorted(self._used.get(number, [])):
                self._free(number, end, place - end)
                end = place + length
            self._free(number, end, _MOST_PLACE - end)
            fcntl.fcntl(number, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW)

    def close(self) -> None:
        numbers = (*self._memory, *self._disk)
        self._memory.clear()
        for number in numbers:
            os.close(number)


def _free_memory() -> int:
    """Return three quarters of the memory that is free on this host and in this control group."""
    free = int(_words("/proc/meminfo")["MemAvailable:"]) * 1024
    group = Path("/proc/self/cgroup").read_text().rpartition("0::")[2].strip()
    for folder in (*Path(f"/sys/fs/cgroup{group}/-").parents,)[:-3]:
        with suppress(OSError, ValueError):  # no such file, or "max"
            most = int((folder / "memory.max").read_text())
            used = int((folder / "memory.current").read_text())
            free = min(free, most - used + int(_words(folder / "memory.stat")["inactive_file"]))
    return max(0, free * 3 // 4)


def _words(file: str | Path) -> dict[str, str]:
    """Read a file of lines such as "name 123", or "name: 123 kB"."""
    return dict(line.split()[:2] for line in Path(file).read_text().splitlines())


class _Reader:
    """Replaces Spark's reader of a result; also reads batches from files."""

    def __init__(self, files: _Files, *, is_copied: bool, gives_order: bool) -> None:
        self._files = files
        self._is_copied = is_copied  # whether Spark copies each batch before it reads the next one
        self._gives_order = gives_order

    def load_stream(self, stream: Any) -> Iterator[Any]:
        if stream.peek(1)[:1] != _OURS:
            yield from _spark.ArrowCollectSerializer().load_stream(stream)
            return
        stream.read(1)
        count = 0
        for batch in self._batches(stream):
            yield batch
            count += 1
        if self._gives_order:
            yield [*range(count)]

    def _batches(self, stream: Any) -> Iterator[Any]:
        import pyarrow as pa

        held = dict(enumerate(pa.ipc.open_stream(stream)))
        (count,) = _count.unpack(stream.read(_count.size))
        for *_, file, place, length, before, first, end in [
            *_head.iter_unpack(stream.read(count * _head.size))
        ]:
            for number in range(first, first + before):
                yield held.pop(number)
            if length:
                part = self._files.read(file, place, length, is_freed=self._is_copied)
                yield from pa.ipc.open_stream(part)
                del part
            for number in range(first + before, end):
                yield held.pop(number)
        self._files.finish()


class _JavaFrame:
    """The JVM's DataFrame, with `collect` in place of its method collectAsArrowToPython()."""

    def __init__(self, frame: Any, collect: Callable[[], Any]) -> None:
        self._frame = frame
        self.collectAsArrowToPython = collect

    def __getattr__(self, name: str) -> Any:
        return getattr(self._frame, name)


@functools.lru_cache(maxsize=1)  # looking the class up takes as long as a call
def _server(jvm: Any) -> Any:
    """Return DriverCollect.serve; None if the JVM has no jar of shmring."""
    with suppress(_protocol.Py4JError):
        return _gateway.JavaClass(_CLASS, jvm._gateway_client).serve
    return None


def _collecting(sparks: FunctionType, *, gives_order: bool) -> Callable[..., list[Any]]:
    """Return Spark's `_collect_as_arrow`, changed to use serve() of the JVM and our reader."""

    def _collect_as_arrow(
        original: Any, split_batches: bool = False, *arguments: Any, **named: Any
    ) -> list[Any]:
        serve = _server(original._sc._jvm)
        if serve is None:
            return sparks(original, split_batches, *arguments, **named)
        files = _Files(getattr(original._sc, "_temp_dir", None))
        try:
            # Not copy.copy(), which does not know the arguments of Spark's class.
            frame: Any = object.__new__(original.__class__)
            collect = functools.partial(serve, original._jdf, str(files))
            frame.__dict__.update(vars(original), _jdf=_JavaFrame(original._jdf, collect))
            reader = functools.partial(
                _Reader, files, is_copied=split_batches, gives_order=gives_order
            )
            run = sparks_code.copied(sparks, {"ArrowCollectSerializer": reader})
            return run(frame, split_batches, *arguments, **named)
        finally:
            files.close()

    return _collect_as_arrow


_own: Any = _spark.PandasConversionMixin._collect_as_arrow


def equip() -> None:
    """Let this process collect results over shared memory, if Spark's own code is known."""
    gives_order = _KNOWN.get(digest())
    if gives_order is not None:
        _spark.PandasConversionMixin._collect_as_arrow = _collecting(_own, gives_order=gives_order)


@functools.cache
def digest() -> str:
    """Return the digest of Spark's code that :func:`equip` replaces or relies on."""
    return sparks_code.digest(_own, _spark.ArrowCollectSerializer, _spark._load_from_socket)
