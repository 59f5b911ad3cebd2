"""Copies to a GPU: the GPU's runtime pins a ring, and a lease is held until its copy is done.

To pin memory is to keep it at one place in physical memory, so that the GPU reads it directly.
The runtime is CUDA's or HIP's. It is the runtime that the process has loaded already, for example
through torch or cupy.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import re
import threading
import time
import weakref
from collections import deque
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shmring.errors import GpuError

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Buffer

    from shmring.ring import Ring

__all__ = ["Pinned", "copy_of", "pin", "to_torch", "unpin"]

# Constants with the same value in CUDA and HIP.
_PORTABLE, _READ_ONLY = 1, 8  # flags of HostRegister
_HOST_TO_DEVICE = 1  # direction of MemcpyAsync
_DISABLE_TIMING = 2  # flag of EventCreateWithFlags
_NOT_READY = 600  # error code of EventQuery while the work before the event is not done

_LIBRARIES = {"libcudart": "cuda", "libamdhip64": "hip"}
_HOST_DEVICES = {"cuda": 3, "hip": 11}  # DLPack's device types for pinned host memory
_VERSIONS = ("", ".14", ".13", ".12", ".11.0", ".7", ".6")
# Columns with fewer bytes between them than a page has are copied as one piece. Copying the bytes
# between two such columns is safe: each of these bytes lies on a page of one of the columns.
_GAP = 4096
_PAUSE = 0.001  # seconds between two checks for copies that are done


# --- the runtime ------------------------------------------------------------------------------


class _Runtime:
    """The calls of CUDA's or HIP's runtime library, without their prefix."""

    def __init__(self, path: str, prefix: str) -> None:
        self.prefix = prefix
        self._library = ctypes.CDLL(path)
        # PyDLL keeps the GIL: for a call that never waits, releasing the GIL costs more than the
        # call.
        self._short = ctypes.PyDLL(path)
        self._text = self.function("GetErrorString")
        self._text.restype = ctypes.c_char_p
        pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        self.host_register = self.function("HostRegister")
        self.host_unregister = self.function("HostUnregister")
        self.last_error = self.function("GetLastError")
        self._copy = self.function("MemcpyAsync", pointer, pointer, size, number, pointer)
        self._create = self.function("EventCreateWithFlags", pointer, number, short=True)
        self._record = self.function("EventRecord", pointer, pointer)
        self._synchronize = self.function("StreamSynchronize", pointer)
        self.query = self.function("EventQuery", pointer, short=True)
        self.destroy = self.function("EventDestroy", pointer, short=True)

    def function(self, name: str, *arguments: Any, short: bool = False) -> Any:
        library = self._short if short else self._library
        found = library[self.prefix + name]  # each lookup makes a new object, with its own argtypes
        if arguments:
            found.argtypes = arguments
        return found

    def address(self, function: Any) -> int:
        return ctypes.cast(function, ctypes.c_void_p).value or 0

    def check(self, error: int, what: str) -> None:
        """Raise GpuError for an error code, and clear the error of the runtime.

        Without clearing it, the next call of any other user of the runtime would report the error.
        """
        if error:
            self.last_error()
            raise GpuError(f"{what}: {self.words(error)}")

    def words(self, error: int) -> str:
        return f"{(self._text(error) or b'').decode()} ({self.prefix} error {error})"

    def copy(self, to: int, address: int, nbytes: int, stream: int) -> int:
        """Begin a copy to the current device; return the event that marks the copy's end."""
        event = ctypes.c_void_p()
        self.check(self._create(ctypes.byref(event), _DISABLE_TIMING), "no event for a copy")
        error = self._copy(to, address, nbytes, _HOST_TO_DEVICE, stream)
        if not error and (error := self._record(event, stream)):
            # Wait for the copy here: no event will tell when the copy ends, and the caller may
            # release the copy's source as soon as the error is raised.
            self._synchronize(stream)
        if error:
            self.destroy(event)
        self.check(error, f"cannot copy {nbytes} bytes to the GPU")
        return event.value or 0


@cache
def _runtime() -> _Runtime:
    """Return the first runtime that this process has loaded, else the first the loader finds."""
    maps = ""
    with suppress(OSError):
        maps = Path("/proc/self/maps").read_text()
    paths = re.findall(rf"/.*/(?:{'|'.join(_LIBRARIES)})\.so.*", maps)
    paths += [f"{name}.so{version}" for name in _LIBRARIES for version in _VERSIONS]
    for path in paths:
        with suppress(OSError, AttributeError):
            return _Runtime(path, _LIBRARIES[Path(path).name.partition(".")[0]])
    raise GpuError(
        "no runtime of a GPU is loaded or found here (libcudart.so of CUDA, libamdhip64.so of "
        "HIP): import torch or cupy first, or add its folder to LD_LIBRARY_PATH"
    )


# --- pinned rings -----------------------------------------------------------------------------

_pinning = threading.Lock()
_pinned: weakref.WeakSet[Ring] = weakref.WeakSet()
# Open `with ring.pin()` blocks of all threads, by the ring that the blocks keep pinned.
_blocks: weakref.WeakKeyDictionary[Ring, list[Pinned]] = weakref.WeakKeyDictionary()


class Pinned:
    """A context manager that unpins a ring at the end of a ``with ring.pin()`` block.

    If several blocks pin one ring, the ring stays pinned until all of these blocks have ended.
    If the ring was pinned before the first block began, the ring stays pinned after the last one.
    """

    def __init__(self, ring: Ring, *, was_pinned: bool) -> None:
        self._ring = ring
        self._was_pinned = was_pinned

    def __enter__(self) -> Ring:
        with _pinning:
            _blocks.setdefault(self._ring, []).append(self)
        return self._ring

    def __exit__(self, *_: object) -> None:
        with _pinning:
            # If the process was forked within this `with` block, the child has forgotten all blocks
            # (see _forget): the child then counts this block only.
            blocks = _blocks.get(self._ring, [self])
            blocks.remove(self)
            if blocks:  # a block that ends later unpins the ring
                blocks[0]._was_pinned &= self._was_pinned
                return
            _blocks.pop(self._ring, None)
        if not self._was_pinned and not self._ring.closed:
            self._ring.unpin()


def pin(ring: Ring) -> Pinned:
    """Pin a ring's slots (see Ring.pin)."""
    runtime = _runtime()
    with _pinning:
        core = ring.core
        was_pinned = core.pinned
        error = core.pin(
            runtime.address(runtime.host_register),
            runtime.address(runtime.host_unregister),
            runtime.address(runtime.last_error),
            _PORTABLE | (_READ_ONLY if ring.read_only else 0),
            _HOST_DEVICES[runtime.prefix],
        )
        if error:
            raise GpuError(f"cannot pin {ring!r}: {runtime.words(error)}")
        _pinned.add(ring)
    return Pinned(ring, was_pinned=was_pinned)


def unpin(ring: Ring) -> None:
    """Unpin a ring's slots (see Ring.unpin)."""
    with _pinning:
        if ring.core.pinned:
            _copies.wait()
            if error := ring.core.unpin():
                raise GpuError(f"cannot unpin {ring!r}: {_runtime().words(error)}")
        _pinned.discard(ring)


@atexit.register
def _end() -> None:
    """Unpin all rings at the exit of the process, while the runtime still works."""
    for ring in list(_pinned):
        with suppress(Exception):  # the ring may be closed
            unpin(ring)
    _copies.wait()


# --- copies -----------------------------------------------------------------------------------


class _Copies:
    """Copies under way, each with its event and its source, in the order in which they began.

    The source (a lease or a batch) is released when its copy is done. Beginning a copy also
    releases the sources of earlier copies that are done. A thread releases the sources if no copy
    follows, because producers may be waiting for the slots. While no copy is under way, the thread
    sleeps until one begins. While copies are under way, the thread checks every _PAUSE seconds,
    and a new copy does not wake it: a woken thread would compete with the caller for the GIL, and a
    copy would take twice as long to begin.
    """

    def __init__(self) -> None:
        self._under_way: deque[tuple[int, object]] = deque()
        self._begun = 0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def add(self, event: int, source: object) -> None:
        with self._changed:
            self._let_go()
            self._under_way.append((event, source))
            self._begun += 1
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="shmring-gpu", daemon=True)
                thread.start()
                self._thread = thread
            self._changed.notify()

    def _let_go(self) -> None:
        """Release the sources of copies that are done, up to the first copy that is not.

        The copies of one stream end in the order in which they began. A copy on another stream may
        be done earlier; its source is then released after the older copies.
        """
        # Any answer but "not ready" means that the copy has ended. A device error is not raised
        # here: the next use of the copy raises the error.
        while self._under_way and _runtime().query(self._under_way[0][0]) != _NOT_READY:
            _runtime().destroy(self._under_way.popleft()[0])

    def wait(self) -> None:
        """Wait until every copy begun before this call is done and its source is released.

        The wait polls by itself: a forked child and a process that exits have no thread.
        """
        begun = self._begun
        while True:
            with self._changed:
                self._let_go()
                if self._begun - len(self._under_way) >= begun:
                    return
            time.sleep(_PAUSE)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._under_way))
                self._let_go()
            time.sleep(_PAUSE)


_copies = _Copies()


def _forget() -> None:
    """Reset the state in a forked child, which has no thread and cannot use the GPU's runtime."""
    global _copies, _pinning
    _copies, _pinning = _Copies(), threading.Lock()
    _pinned.clear()
    _blocks.clear()


os.register_at_fork(after_in_child=_forget)


def _torch() -> Any:
    try:
        return import_module("torch")
    except ImportError as error:
        raise GpuError(f"a copy on a GPU is a tensor, which needs torch: {error}") from error


def _copy(address: int, nbytes: int, source: object, torch: Any, stream: Any) -> Any:
    with torch.cuda.stream(stream):  # None leaves the current stream in place
        to = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
        if nbytes:
            where = torch.cuda.current_stream().cuda_stream
            _copies.add(_runtime().copy(to.data_ptr(), address, nbytes, where), source)
    return to


def copy_of(leased: Buffer, address: int, stream: object | None) -> Any:
    """Copy a lease or a batch to a GPU (see Lease.to_device and Batch.to_device)."""
    memory = memoryview(leased)
    to = _copy(address, memory.nbytes, memory, _torch(), stream)
    return to.reshape(memory.shape) if memory.ndim > 1 else to


# --- Arrow batches ----------------------------------------------------------------------------


def to_torch(batch: pa.RecordBatch, device: Any = "cuda", stream: Any = None) -> dict[str, Any]:
    """Copy the columns of an Arrow record batch to a GPU, without waiting for the copy.

    A batch from a ring usually takes one copy. Its slots stay leased until the copy is done, even
    if the batch is no longer referenced. :meth:`Ring.pin` makes the copy fast.

    Parameters
    ----------
    batch : a record batch without nulls; each column holds numbers, or lists of numbers that all
        have one length (an array column of Spark is a list whose type has no size)
    device : torch's name of the GPU to copy to
    stream : torch's stream on which to copy; None is the device's current stream

    Returns
    -------
    a tensor for each column, by the column's name

    Raises
    ------
    TypeError : a column holds no numbers
    ValueError : a column has nulls, which must be filled first; or has lists of several lengths; or
        has the same name as another column
    GpuError : torch is not installed, or the GPU's runtime refuses the copy
    """
    torch = _torch()
    of: Any = batch
    columns: dict[str, tuple[int, int, str, tuple[int, ...]]] = {}
    for i, name in enumerate(batch.schema.names):
        if name in columns:
            raise ValueError(f'two columns are called "{name}", and tensors go by name; rename one')
        columns[name] = _flat(name, of.column(i))
    pieces: list[list[int]] = []  # [first address, end] of each piece that is copied at once
    for address, nbytes, _, _ in sorted(columns.values()):
        if pieces and nbytes and address - pieces[-1][1] < _GAP:
            pieces[-1][1] = max(pieces[-1][1], address + nbytes)
        elif nbytes:
            # Begin at a multiple of 8 bytes: torch reads numbers of a type only at an offset in the
            # piece that is a multiple of the type's size (see piece.view() below).
            pieces.append([address & -8, address + nbytes])
    with torch.cuda.device(device):
        copies = [(first, _copy(first, end - first, batch, torch, stream)) for first, end in pieces]
        empty = torch.empty(0, dtype=torch.uint8, device="cuda")
    tensors: dict[str, Any] = {}
    for name, (address, nbytes, dtype, shape) in columns.items():
        piece = empty
        for first, copied in copies:
            if nbytes and first <= address < first + len(copied):
                piece = copied[address - first : address - first + nbytes]
        tensors[name] = piece.view(getattr(torch, dtype)).reshape(shape)
    return tensors


def _flat(name: str, array: Any) -> tuple[int, int, str, tuple[int, ...]]:
    """Return a column's values: address, bytes, name of torch's type, shape."""
    import pyarrow as pa

    shape: tuple[int, ...] = (len(array),)
    lists = (pa.types.is_fixed_size_list, pa.types.is_list, pa.types.is_large_list)
    while True:
        if array.null_count:
            raise ValueError(f'column "{name}" has {array.null_count} nulls; fill them first')
        if not any(is_list(array.type) for is_list in lists):
            break
        shape = (*shape, _list_size(name, array))
        array = array.flatten()
    kind = array.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise TypeError(
            f'column "{name}" is of {kind}, but tensors hold numbers; select other columns'
        )
    width = kind.bit_width // 8
    values = array.buffers()[1]
    address = values.address + array.offset * width if values is not None and len(array) else 0
    name_of = {"halffloat": "float16", "float": "float32", "double": "float64"}
    dtype = name_of.get(str(kind), str(kind))
    return address, len(array) * width, dtype, shape


def _list_size(name: str, array: Any) -> int:
    """Return the one length of all lists in a column; raise ValueError if the lengths differ."""
    import pyarrow.compute as pc

    if (fixed := getattr(array.type, "list_size", None)) is not None:
        return int(fixed)
    of: Any = pc
    shortest, longest = of.min_max(of.list_value_length(array)).as_py().values()
    if shortest != longest:
        raise ValueError(
            f'column "{name}" has lists of {shortest} to {longest} values, but those of a tensor '
            "are equally long; pad or cut them first"
        )
    return longest or 0
