"""Which read of a branch came first: of the reads of one DataFrame, and of those in one plan.

A branch gives each message once, and Spark plans a Python data source anew for each use of a
DataFrame, in processes that know nothing of each other. So the tasks note what they read in a small
file beside the ring, ``.shmring-reads-FILE-DRIVER``, a line ``KEY READ RELEASED ENDS`` each; the
first line with a key counts. One write appends them, so that two tasks cannot both be first.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from shmring import beside
from shmring.spark.source.staging import driver_identity

if TYPE_CHECKING:
    from shmring.ring import Ring

__all__ = ["Read", "first_of", "key_of", "open_notes"]

_MOST = 1 << 20  # bytes; then the notes begin anew, and those before are kept once


class Read(NamedTuple):
    """A read of a branch, and how far the branch was when it was planned.

    Parameters
    ----------
    name : of the read
    released : by the branch's members
    ends : of the stream, that the branch had come to
    """

    name: str
    released: int
    ends: int


def open_notes(ring: Ring) -> str:
    """The path of this driver's notes, in the driver. Sweeps those of dead drivers."""
    beside.discard(beside.left_by_drivers(ring.path, beside.READS))
    path = beside.place(ring.path, beside.READS, f"{driver_identity()}.{0:012x}")
    with suppress(FileNotFoundError):
        if os.stat(path).st_size > _MOST:
            os.replace(path, _before(path))
    return path


def first_of(notes: str, keys: list[str], read: Read) -> Read:
    """Note a read under these keys; the read that was first under one of them."""
    lines = "".join(f"{key} {read.name} {read.released} {read.ends}\n" for key in keys)
    file = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(file, lines.encode())
    finally:
        os.close(file)
    for path in (_before(notes), notes):
        with suppress(FileNotFoundError), open(path) as noted:
            for line in noted:
                key, name, released, ends = line.split()
                if key in keys:
                    return Read(name, int(released), int(ends))
    raise FileNotFoundError(f"{notes} was removed while it was written: the ring was unlinked")


def key_of(*parts: str) -> str:
    """What a line begins with."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _before(notes: str) -> str:
    return f"{notes.rpartition('.')[0]}.{1:012x}"
