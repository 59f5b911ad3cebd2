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

__all__ = ["discard", "new_folder", "stage", "staged"]

_pa: Any = pa
_TRIES = 10  # an attempt makes one file


def new_folder(ring: Ring) -> str:
    """Make the folder of a new job. Sweeps what dead drivers have left."""
    for folder in beside.kept_beside(ring.path, beside.STAGED):
        if _is_dead(folder.rpartition("-")[2].rpartition(".")[0]):
            discard(folder)
    owner = f"{_identity(_driver())}.{uuid.uuid4().hex[:12]}"
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


def _driver() -> int:
    """The driver's JVM: the grandparent of a worker that was forked by Spark's daemon."""
    return _stat(os.getppid())[0]


def _stat(pid: int) -> tuple[int, str]:
    """Parent and start time of a process; (0, "") if there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0, ""
    return int(fields[1]), fields[19]


def _identity(pid: int) -> str:
    namespace = os.readlink("/proc/self/ns/pid").strip("pid:[]")
    return f"{namespace}.{pid}.{_stat(pid)[1]}"


def _is_dead(owner: str) -> bool:
    """Whether this was a process that ours would see if it lived."""
    namespace, _, process = owner.partition(".")
    pid = process.partition(".")[0]
    mine = _identity(os.getpid()).partition(".")[0]
    return namespace == mine and pid.isdecimal() and _identity(int(pid)) != owner
