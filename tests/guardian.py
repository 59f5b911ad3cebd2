"""Looks after a test run from outside: ends a test that hangs, and all that outlives the run.

    python guardian.py RUN PID LIMIT GRACE

`RUN` is a folder, in which conftest.py touches the file "progress" with each step of a test.
Whoever was started by the run has the folder's name in the environment; a child that is forked,
and so has the environment its parent began with, leaves its number in the folder.

A step that takes longer than `LIMIT` seconds is a hang: the run is sent SIGUSR2, which fails the
test, and SIGABRT, whose handler prints every thread's stack, if that does not help. What outlives
the run has `GRACE` seconds from SIGTERM to SIGKILL.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

MARK = "SHMRING_TEST_RUN"
SHM = Path("/dev/shm")


def start_of(pid: str | int) -> str:
    """When a process was started; with its number, its name for ever."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


def watch(run: Path, pid: int, limit: float) -> None:
    """Return when the process has ended."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    seen = (run / "progress").stat().st_mtime_ns
    since = time.monotonic()
    remedies = [signal.SIGUSR2, signal.SIGABRT]
    while not select.select([process], [], [], 1.0)[0]:
        now = (run / "progress").stat().st_mtime_ns
        if now != seen:
            seen, since, remedies = now, time.monotonic(), [signal.SIGUSR2, signal.SIGABRT]
        elif remedies and time.monotonic() - since > limit:
            signal.pidfd_send_signal(process, remedies.pop(0))
            since = time.monotonic()
    os.close(process)


def note(run: Path) -> None:
    """Leave this process's number in the run's folder."""
    with suppress(FileNotFoundError):  # the run is over
        (run / str(os.getpid())).write_text(start_of("self"))


def noted(run: Path) -> set[int]:
    """Those that have left their number and live."""
    found: set[int] = set()
    for left in run.glob("[0-9]*"):
        with suppress(OSError):
            if start_of(left.name) == left.read_text():
                found.add(int(left.name))
    return found


def descendants(run: Path) -> set[int]:
    """What the run has started and still lives."""
    mark = f"{MARK}={run}".encode()
    found: set[int] = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                found.add(int(folder.name))
    return (found | noted(run)) - {os.getpid()}


def rings_of(pid: int) -> set[str]:
    """The rings that a process has mapped; its maps know them by the names they were made under."""
    inodes: set[int] = set()
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            inodes.add(int(line.split()[4]))
    found: set[str] = set()
    for path in SHM.glob("shmring.*"):
        with suppress(OSError):
            if path.stat().st_ino in inodes:
                found.add(path.name)
    return found


def end(run: Path, grace: float) -> set[str]:
    """End them, however they resist; the rings that are named after one that has used them."""
    ended: set[int] = set()
    rings: set[str] = set()
    deadline = time.monotonic() + grace
    while living := {pid for pid in descendants(run) if is_alive(pid)}:
        late = time.monotonic() > deadline
        for pid in living:
            rings |= rings_of(pid)
            with suppress(ProcessLookupError):
                if late or pid not in ended:
                    os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
        ended |= living
        time.sleep(0.02)
    return {ring for ring in rings if any(ring.endswith(f"-{pid}") for pid in ended)}


def is_alive(pid: int) -> bool:
    """Whether it is there, and more than what its parent has not asked for yet."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def sweep(names: set[str]) -> None:
    """Remove rings, and what lies beside them, whose names hold one of these."""
    for path in SHM.iterdir():
        if any(name in path.name for name in names):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def main() -> None:
    run, pid = Path(sys.argv[1]), int(sys.argv[2])
    limit, grace = map(float, sys.argv[3:])
    watch(run, pid, limit)
    sweep(end(run, grace) | {f"shmring.test-{pid}-"})
    shutil.rmtree(run)


if __name__ == "__main__":
    main()
