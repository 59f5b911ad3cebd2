"""Spark's Python workers with functions over rings, as /proc shows them.

Their rings have no names: each worker removes the names as soon as it has attached to its rings.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from shmring.common.words import counted
from shmring.ring.names import WORKERS

# CHANGE: edit this for a new version of Spark
_WORKER = b"\0pyspark.worker\0"  # part of a daemon's command line, which its workers keep
# Part of the path of shmring's extension module, which workers of Spark's own daemon do not load.
_EXTENSION = "/_shmring."
# Fields of a line of maps: address range, rights, offset, device, inode, path.
_MAPPED = re.compile(
    rf"(\w+)-(\w+) \S+ (\w+) \S+ (\d+) .*{re.escape(WORKERS)}\d+-[\w-]+\.(?:requests|answers)\b"
)


class SparkWorker(NamedTuple):
    """A worker with functions over rings."""

    pid: int
    executor: int  # process id of the JVM whose tasks the worker runs
    ring_bytes: int  # bytes of the worker's two rings, which the JVM has mapped, too
    private_bytes: int  # bytes of memory that the worker shares with no other process
    ticks: int  # CPU time so far, in clock ticks; a worker whose time stays the same is idle


class Process(NamedTuple):
    parent: int  # process id
    ticks: int  # the process's CPU time so far, in clock ticks
    waited: int  # CPU time of ended children that the process has waited for


def processes() -> dict[int, Process]:
    """Return all processes by their ids."""
    found: dict[int, Process] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):  # the process has ended
                fields = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()
                own, waited = map(int, fields[11:13]), map(int, fields[13:15])
                found[int(name)] = Process(int(fields[1]), sum(own), sum(waited))
    return found


def spark_workers() -> list[SparkWorker]:
    """Return the workers whose memory this user may see."""
    found: list[SparkWorker] = []
    every = processes()
    for pid, process in every.items():
        with suppress(OSError, KeyError):  # the process has ended, or is another user's
            if _WORKER in Path(f"/proc/{pid}/cmdline").read_bytes():
                executor = every[process.parent].parent  # the parent of the workers' daemon
                maps = Path(f"/proc/{pid}/maps").read_text()
                if _EXTENSION in maps and executor in every:
                    memory = _private_bytes(f"/proc/{pid}/smaps_rollup")
                    ticks = process.ticks
                    found.append(SparkWorker(pid, executor, _ring_bytes(maps), memory, ticks))
    return found


def in_words(workers: Iterable[SparkWorker]) -> list[str]:
    """Return a line for each executor."""
    executors: dict[int, list[SparkWorker]] = {}
    for worker in workers:
        executors.setdefault(worker.executor, []).append(worker)
    return [
        f"Spark's executor {executor} has {counted(len(some), 'Python worker')} with functions "
        f"over rings, which have no names: {sum(worker.ring_bytes for worker in some) >> 20:,} MiB "
        f"of rings, "
        f"{sum(worker.private_bytes for worker in some) >> 20:,} MiB of the workers' own memory"
        for executor, some in sorted(executors.items())
    ]


def _private_bytes(path: str) -> int:
    lines = Path(path).read_text().splitlines()
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Private_"))


def _ring_bytes(maps: str) -> int:
    ends: dict[str, int] = {}  # end of the mapped part of each file, by inode
    for line in maps.splitlines():
        if mapped := _MAPPED.match(line):
            begin, end, offset = (int(number, 16) for number in mapped.group(1, 2, 3))
            inode = mapped[4]
            ends[inode] = max(ends.get(inode, 0), offset + end - begin)
    return sum(ends.values())
