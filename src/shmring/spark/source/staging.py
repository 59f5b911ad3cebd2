"""Where the rows of a write wait for the commit of its job: files of Arrow IPC, one a task attempt.

A folder a job, beside the ring, that bears the name of the driver's process. What a killed attempt
leaves goes with its job's folder, what a killed driver leaves when somebody writes the next time.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from shmring import beside
from shmring.errors import ShmringError

if TYPE_CHECKING:
    from shmring.ring import Ring

__all__ = ["discard", "driver_identity", "new_folder", "stage", "staged"]

_pa: Any = pa
_TRIES = 10  # an attempt makes one file


def new_folder(ring: Ring) -> str:
    """Make the folder of a new job. Sweeps what dead drivers have left."""
    for folder in beside.left_by_drivers(ring.path, beside.STAGED):
        discard(folder)
    owner = f"{driver_identity()}.{uuid.uuid4().hex[:12]}"
    made = beside.place(ring.path, beside.STAGED, owner)
    os.mkdir(made, mode=0o700)
    return made


def stage(folder: str, name: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> str:
    """Write an attempt's rows; the path of the file.

    An attempt that fails leaves none. One that outlives its job finds no folder to put it in.
    """
    path = os.path.join(folder, name)
    try:
        with pa.OSFile(path, "wb") as file, _pa.ipc.new_stream(file, schema) as out:
            for batch in batches:
                out.write_batch(batch)
    except BaseException:  # a cancelled task ends by GeneratorExit
        with suppress(FileNotFoundError):
            os.unlink(path)
        raise
    return path


def staged(path: str) -> Iterator[pa.RecordBatch]:
    """The rows of an attempt, mapped."""
    try:
        file = pa.memory_map(path)
    except FileNotFoundError:
        raise ShmringError(
            f"the rows that a task has staged in {path} are not on the driver's host: rings are "
            f"written by executors of that host"
        ) from None
    with closing(file):
        yield from pa.ipc.open_stream(file)


def discard(folder: str) -> None:
    """Remove what a job has staged, and what an attempt that lost puts there meanwhile."""
    for _ in range(_TRIES):
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.exists(folder):
            return


def driver_identity() -> str:
    """The driver's JVM, from a worker of it: the grandparent, as Spark's daemon forks workers."""
    stat = Path(f"/proc/{os.getppid()}/stat").read_text()
    return beside.process_identity(int(stat.rpartition(")")[2].split()[1]))
