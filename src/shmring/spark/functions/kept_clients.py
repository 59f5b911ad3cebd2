"""The clients that Spark's Python worker keeps from task to task.

Making a client, mapping its reply ring and touching the ring's pages takes longer than a small
task. Spark kills a worker that was idle for a minute, and all workers at its end, so they cannot
close their clients then: a kept client is closed well before, and when its sidecar ends.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from shmring.sidecars import SidecarClient, Task

__all__ = ["Options", "borrow", "kept_client"]

_LOOK_EVERY = 0.2
_IDLE = 10.0  # seconds after which an unused client is closed
_REUSED = "SPARK_REUSE_WORKER"  # set if a Python worker runs one task after another


class Options(NamedTuple):
    """The options of a client; clients with the same options can replace each other."""

    name: str
    in_flight: int
    timeout: float
    connect_timeout: float
    reply_slots: int | None


class _Idle(NamedTuple):
    options: Options
    client: SidecarClient
    since: float


class _Kept:
    """The clients of this process that no task uses now."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[_Idle] = []
        self._swept = False

    def take(self, options: Options) -> SidecarClient | None:
        with self._lock:
            for idle in reversed(self._idle):
                if idle.options == options:
                    self._idle.remove(idle)
                    return idle.client
        return None

    def put(self, options: Options, client: SidecarClient) -> None:
        with self._lock:
            self._idle.append(_Idle(options, client, time.monotonic()))
            if not self._swept:
                self._swept = True
                threading.Thread(target=self._sweep, name="shmring-clients", daemon=True).start()

    def give_back(self) -> bool:
        """Close the client that was idle for longest; return whether there was one."""
        with self._lock:
            oldest = self._idle.pop(0) if self._idle else None
        if oldest is not None:
            oldest.client.close()
        return oldest is not None

    def _sweep(self) -> None:
        """Close idle clients, until no client is kept."""
        from shmring.sidecars.sizes import is_memory_short

        while True:
            time.sleep(_LOOK_EVERY)
            with self._lock:
                short = is_memory_short()  # another process may wait for memory
                unwanted = [idle for idle in self._idle if short or _is_unwanted(idle)]
                self._idle = [idle for idle in self._idle if idle not in unwanted]
                self._swept = bool(self._idle)
                ends = not self._swept
            for idle in unwanted:
                idle.client.close()
            if ends:
                return


def _is_unwanted(idle: _Idle) -> bool:
    return time.monotonic() - idle.since > _IDLE or not idle.client.is_reusable


_kept = _Kept()


def _give_back() -> bool:
    return _kept.give_back()


def _forget() -> None:
    """Forget all clients in a forked child: they belong to its parent."""
    global _kept
    _kept = _Kept()


os.register_at_fork(after_in_child=_forget)


@contextmanager
def kept_client(options: Options, task: Task) -> Generator[SidecarClient]:
    """Lend a client to this task; the next task may get it afterwards."""
    found = borrow(options, task)
    try:
        yield found
    finally:
        if _REUSED in os.environ and found.is_reusable:
            _kept.put(options, found)
        else:
            found.close()


def borrow(options: Options, task: Task) -> SidecarClient:
    """Return a client for this task alone: a kept one, or a new one."""
    from shmring.sidecars import SidecarClient
    from shmring.sidecars.sizes import SPARE

    if _give_back not in SPARE:
        SPARE.append(_give_back)
    while (kept := _kept.take(options)) is not None:
        if kept.is_reusable:
            kept.begin(task)
            return kept
        kept.close()
    return SidecarClient(**options._asdict(), task=task)
