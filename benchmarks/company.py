"""How much of the cores foreign processes take: those that this run has not started.

The kernel counts in ticks of 10 ms, and its counts of a core and of a process are not
taken at the same instants: what is less than a few ticks is nobody's.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

LIMIT = 0.15  # share of a core
LEAST_SECONDS = 0.05  # in sum; see above
WINDOW = 0.4  # seconds of a look

_PROC = Path("/proc")
_TICK = 1 / os.sysconf("SC_CLK_TCK")
_KERNEL = 0x0020_0000  # PF_KTHREAD, among a process's flags


@dataclass(frozen=True)
class _Process:
    parent: int
    kernel: bool  # a thread of the kernel
    seconds: float  # its own, and its children's who have ended
    born: int
    core: int  # where it ran last


def _processes() -> dict[int, _Process]:
    found: dict[int, _Process] = {}
    for folder in _PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended
            # Behind the name: state, parent, ...
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            found[int(folder.name)] = _Process(
                parent=int(fields[1]),
                kernel=bool(int(fields[6]) & _KERNEL),
                seconds=sum(map(int, fields[11:15])) * _TICK,
                born=int(fields[19]),
                core=int(fields[36]),
            )
    return found


def _is_ours(pid: int, processes: dict[int, _Process]) -> bool:
    """Descends from this process, or is a daemon that has begun since and lost its parent."""
    me = os.getpid()
    while pid in processes:
        process = processes[pid]
        if pid == me:
            return True
        if process.parent == 1 and process.born > processes[me].born:
            return True
        pid = process.parent
    return False


def _seconds_of_cores() -> float:
    """Time that the cores of this process were busy; interrupts are nobody's."""
    names = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    total = 0
    for line in (_PROC / "stat").read_text().splitlines():
        name, *counts = line.split()
        if name in names:
            user, nice, system, _idle, _disk, _irq, _softirq, stolen = map(int, counts[:8])
            total += user + nice + system + stolen
    return total * _TICK


@dataclass(frozen=True)
class Mark:
    """A moment."""

    clock: float
    busy: float
    ours: float
    kernel: dict[int, _Process]

    def foreign(self) -> float:
        """The part of a core that others have taken since; 0 where it cannot be told."""
        now = mark()
        took = now.clock - self.clock
        foreign = (now.busy - self.busy) - (now.ours - self.ours) - self._kernel_until(now)
        return foreign / took if foreign > LEAST_SECONDS and took > 0 else 0.0

    def _kernel_until(self, now: Mark) -> float:
        """Seconds that kernel threads took on our cores, to write data of other processes."""
        cores = os.sched_getaffinity(0)
        took = 0.0
        for pid, thread in now.kernel.items():
            if thread.core in cores:
                took += thread.seconds - (self.kernel[pid].seconds if pid in self.kernel else 0)
        return took


def mark() -> Mark:
    processes = _processes()
    ours = sum(p.seconds for pid, p in processes.items() if _is_ours(pid, processes))
    kernel = {pid: p for pid, p in processes.items() if p.kernel}
    return Mark(time.monotonic(), _seconds_of_cores(), ours, kernel)


def wait_until_alone(timeout: float) -> None:
    """Return when foreign processes have become quiet, or after so many seconds."""
    until = time.monotonic() + timeout
    while time.monotonic() < until:
        begun = mark()
        time.sleep(WINDOW)
        if begun.foreign() <= LIMIT:
            return
