"""CPU time of a Spark job by its threads and processes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

_TICK = 1 / os.sysconf("SC_CLK_TCK")
# How the JVM begins the names of its threads; the kernel keeps 15 characters of a name.
_KINDS = {"Executo": "of tasks", "C1 ": "of the compiler", "C2 ": "of the compiler"}


@dataclass(frozen=True)
class CpuUse:
    """CPU seconds so far, of what this process has started.

    Parameters
    ----------
    total : of all processes
    workers : of those that are no JVM: Python workers, sidecars, Sail
    threads : kind and seconds of the JVMs' threads of a kind, by number
    """

    total: float
    workers: float
    threads: dict[int, tuple[str, float]]

    def since(self, before: CpuUse) -> dict[str, float]:
        """CPU seconds between the two: of all as "", and of each kind by its name.

        The rest is the JVM's: its collector, its scheduler, and threads that have ended.
        """
        used = {"": self.total - before.total, **dict.fromkeys(_KINDS.values(), 0.0)}
        for number, (kind, seconds) in self.threads.items():
            used[kind] += seconds - before.threads.get(number, (kind, 0.0))[1]
        return used | {"of workers": self.workers - before.workers}


def _fields(folder: Path) -> tuple[str, list[str]]:
    """The name, and what stands behind it: state, parent, ..."""
    name, _, rest = (folder / "stat").read_text().partition("(")[2].rpartition(")")
    return name, rest.split()


def _threads(process: Path) -> dict[int, tuple[str, float]]:
    found: dict[int, tuple[str, float]] = {}
    for folder in (process / "task").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended
            name, fields = _fields(folder)
            kind = next((kind for begin, kind in _KINDS.items() if name.startswith(begin)), None)
            if kind:
                found[int(folder.name)] = kind, sum(map(int, fields[11:13])) * _TICK
    return found


def cpu_use(besides: Collection[int] = ()) -> CpuUse:
    """CPU time of this process's descendants, ended ones included.

    Parameters
    ----------
    besides : processes that do not count, nor what they have started
    """
    parents: dict[int, int] = {}
    used: dict[int, tuple[str, float]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended
            name, fields = _fields(folder)
            parents[int(folder.name)] = int(fields[1])
            used[int(folder.name)] = name, sum(map(int, fields[11:15])) * _TICK
    ours, found = set[int](), {os.getpid()}
    while found:
        ours |= found
        found = {pid for pid, parent in parents.items() if parent in found} - ours - {*besides}
    total = workers = 0.0
    threads: dict[int, tuple[str, float]] = {}
    for pid in ours - {os.getpid()}:
        name, seconds = used.get(pid, ("", 0.0))
        total += seconds
        if name == "java":
            threads |= _threads(Path("/proc") / str(pid))
        else:
            workers += seconds
    return CpuUse(total, workers, threads)
