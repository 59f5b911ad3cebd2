"""The supervisor: makes the request ring, starts workers, replaces the dead."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

import shmring
from shmring.errors import RingNotFound, SidecarUnavailable
from shmring.sidecars.wire import reply_ring_name, request_ring_name

__all__ = ["Sidecar", "sidecar"]

_LOOK_EVERY = 0.2
_GRACE = 10.0  # seconds between SIGTERM and SIGKILL
# A worker that keeps failing is started again ever more slowly.
_BACKOFF = (0.0, 0.5, 1.0, 2.0, 5.0)


class Sidecar:
    """A sidecar with its ring and its workers.

    Parameters
    ----------
    target : "module:function", or a function made by :func:`sidecar`
    name : by which clients find it
    workers : processes that share the requests
    slots : size of the request ring, in slots of 300 bytes

    Use it as a context manager, or with :meth:`start` and :meth:`stop`.
    """

    def __init__(
        self,
        target: str | Callable[..., Any],
        *,
        name: str | None = None,
        workers: int = 1,
        slots: int = 131_072,
    ) -> None:
        if workers < 1:
            raise ValueError(f"workers must be at least 1, not {workers}")
        self._target = target if isinstance(target, str) else _target_of(target)
        self.name = name or str(getattr(target, "__sidecar_name__", "")) or _bare(self._target)
        self._workers = workers
        self._slots = slots
        self._processes: list[subprocess.Popen[bytes]] = []
        self._failures = 0
        self._restarts = 0
        self._stop = threading.Event()
        self._monitor: threading.Thread | None = None
        self._ring: shmring.Ring | None = None

    @property
    def pids(self) -> Sequence[int]:
        """Process ids of the workers."""
        return [process.pid for process in self._processes]

    @property
    def restarts(self) -> int:
        """Workers that had to be replaced."""
        return self._restarts

    def start(self, *, timeout: float = 120.0) -> Self:
        """Make the ring, start the workers and wait until each has loaded its function.

        Raises
        ------
        SidecarUnavailable : a worker ended or did not become ready in time; nothing is left
        """
        self._ring = shmring.open_or_create(request_ring_name(self.name), slots=self._slots)
        self._ring.recover()
        try:
            self._processes = [self._spawn() for _ in range(self._workers)]
            deadline = time.monotonic() + timeout
            for process in self._processes:
                self._await_ready(process, deadline)
        except BaseException:
            self.stop()
            raise
        self._monitor = threading.Thread(
            target=self._watch, name=f"shmring-sidecar-{self.name}", daemon=True
        )
        self._monitor.start()
        return self

    def _spawn(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "shmring.sidecars.worker", self._target, self.name],
            stdout=subprocess.PIPE,
            env={
                # As Spark does for its workers: processes share the cores, not threads.
                "OMP_NUM_THREADS": "1",
                **os.environ,
                "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
            },
        )

    def _await_ready(self, process: subprocess.Popen[bytes], deadline: float) -> None:
        ready = threading.Event()
        stdout = process.stdout
        assert stdout is not None

        def listen() -> None:
            for line in stdout:
                if line.strip() == b"ready":
                    ready.set()
                else:  # what the user's function prints
                    sys.stdout.buffer.write(line)
                    sys.stdout.flush()

        threading.Thread(target=listen, daemon=True).start()
        while not ready.wait(0.05):
            if process.poll() is not None:
                raise SidecarUnavailable(
                    f'sidecar "{self.name}": the worker for {self._target} ended with status '
                    f"{process.returncode} while starting; its error stands above"
                )
            if time.monotonic() > deadline:
                raise SidecarUnavailable(
                    f'sidecar "{self.name}": {self._target} was not ready in time'
                )

    def _watch(self) -> None:
        """Replace dead workers and sweep what killed clients left."""
        while not self._stop.wait(_LOOK_EVERY):
            for i, process in enumerate(self._processes):
                if process.poll() is None:
                    continue
                if self._stop.wait(_BACKOFF[min(self._failures, len(_BACKOFF) - 1)]):
                    return
                replacement = self._spawn()
                self._processes[i] = replacement
                self._restarts += 1
                try:
                    self._await_ready(replacement, time.monotonic() + 120)
                    self._failures = 0
                except SidecarUnavailable as error:
                    self._failures += 1
                    print(error, file=sys.stderr, flush=True)
            self._sweep()

    def _sweep(self) -> None:
        if self._ring is not None:
            self._ring.recover()
        for name in shmring.rings():
            if name.startswith(reply_ring_name(self.name, "")):
                shmring.gc(name)

    def serve_forever(self) -> None:
        """Block until :meth:`stop` is called from elsewhere or Ctrl-C."""
        while not self._stop.wait(0.5):
            pass

    def stop(self) -> None:
        """End the workers and remove the request ring."""
        self._stop.set()
        if self._monitor is not None:
            self._monitor.join()
            self._monitor = None
        for process in self._processes:
            process.terminate()
        deadline = time.monotonic() + _GRACE
        for process in self._processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()
        self._processes.clear()
        if self._ring is not None:
            self._sweep()
            self._ring.close()
            self._ring = None
            try:
                shmring.unlink(request_ring_name(self.name))
            except RingNotFound:
                pass

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def sidecar(
    name: str | None = None, *, workers: int = 1
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Mark a function (or a class, instantiated once a worker) as a sidecar.

    The decorated function can be called as before, served by
    ``shmring sidecar module:function``, or started from Python by its
    ``sidecar()`` attribute::

        @shmring.sidecar("scorer", workers=2)
        def score(batch: pa.RecordBatch) -> pa.RecordBatch: ...

        with score.sidecar():
            ...
    """

    def mark(function: Callable[..., Any]) -> Callable[..., Any]:
        marked: Any = function
        marked.__sidecar_name__ = name or function.__name__
        marked.__sidecar_workers__ = workers
        marked.sidecar = lambda: Sidecar(function, workers=workers)
        return function

    return mark


def _target_of(function: Callable[..., Any]) -> str:
    module = function.__module__
    if module == "__main__":
        raise ValueError(
            "a sidecar's workers import its function, so it must stand in a module, not in the "
            "script that is run"
        )
    return f"{module}:{function.__qualname__}"


def _bare(target: str) -> str:
    return target.rpartition(":")[2].rpartition(".")[2]
