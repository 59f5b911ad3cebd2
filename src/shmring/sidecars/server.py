"""Lets a program run a sidecar: :class:`Sidecar` runs its supervisor in a thread."""

from __future__ import annotations

import atexit
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Self, TypeVar, Unpack

from shmring.common.arguments import seconds_of
from shmring.errors import SidecarUnavailable
from shmring.sidecars.functions import parts_of
from shmring.sidecars.options import (
    LOADING_SECONDS,
    DecoratorOptions,
    SidecarOptions,
    checked,
    decorated,
    documented,
)
from shmring.sidecars.supervisor import GRACE, LOOK_EVERY, Supervisor
from shmring.sidecars.wire import check_sidecar_name

Marked = TypeVar("Marked", bound=Callable[..., Any])


# CHANGE: edit this for a new option of a sidecar
@documented(SidecarOptions)
class Sidecar:
    """A sidecar with its ring and its workers.

    Parameters
    ----------
    target : "module:function", or a function made by :func:`sidecar`
    name : name by which clients find the sidecar, at most 93 bytes
    options : options of a sidecar, as SidecarOptions lists them

    Use a Sidecar as a context manager, or with :meth:`start` and :meth:`stop`. Several sidecars of
    one name on one host share the requests. They must have the same function from a file with the
    same bytes, the same version of Python, and the same `slots`, `max_batch_rows`, `max_wait_ms`
    and `pin`. A sidecar that differs from a running one of its name does not start.
    """

    def __init__(
        self,
        target: str | Callable[..., Any],
        *,
        name: str | None = None,
        **options: Unpack[SidecarOptions],
    ) -> None:
        if options.get("workers") is None:
            options["workers"] = decorated(target).get("workers", 1)
        is_name = isinstance(target, str)
        target_name = target if is_name else f"{target.__module__}:{target.__qualname__}"
        _, function = parts_of(target_name)
        if name is None:
            name = str(getattr(target, "__sidecar_name__", "")) or function.rpartition(".")[2]
        self.name = check_sidecar_name(name)
        self._supervisor = Supervisor(target_name, self.name, **options)
        self._pid = 0
        self._stop = threading.Event()
        self._monitor: threading.Thread | None = None

    @property
    def pids(self) -> Sequence[int]:
        """Process ids of the workers."""
        return self._supervisor.pids

    @property
    def slots(self) -> int:
        """Size of the request ring; 0 before the start."""
        return self._supervisor.slots

    @property
    def restarts(self) -> int:
        """Number of workers that were replaced."""
        return self._supervisor.restarts

    def start(self, *, timeout: float = LOADING_SECONDS) -> Self:
        """Make the ring, start the workers and wait until each has loaded its function.

        Parameters
        ----------
        timeout : seconds that loading may take, now and when a worker is replaced

        Raises
        ------
        SidecarMismatch : a sidecar of this name runs with another function, other options or
            another version of Python; it goes on running
        SidecarUnavailable : a worker ended or did not become ready in time, or the sidecar that is
            to be replaced does not react; no process or ring is left
        NoSpace : /dev/shm cannot hold the request ring
        """
        supervisor = self._supervisor
        if supervisor.is_open:
            raise RuntimeError(f'sidecar "{self.name}" has been started already')
        self._stop = threading.Event()
        self._pid = os.getpid()
        deadline = time.monotonic() + seconds_of("timeout", timeout)
        # If the caller ends without stop(), the workers notice it, but the ring would stay.
        atexit.register(self.stop)
        try:
            supervisor.open()
            supervisor.start(timeout)
            self._await_ready(deadline)
            self._await_replaced(deadline)
            self._monitor = threading.Thread(
                target=self._watch,
                args=(self._stop,),
                name=f"shmring-sidecar-{self.name}",
                daemon=True,
            )
            self._monitor.start()
        except BaseException:
            self.stop()
            raise
        return self

    def _await_ready(self, deadline: float) -> None:
        sidecar = f'sidecar "{self.name}"'
        target = self._supervisor.target
        for keeper in self._supervisor.keepers:
            process = keeper.process
            while not process.is_ready:
                if process.status is not None:
                    raise SidecarUnavailable(
                        f"{sidecar}: the worker for {target} ended with {process.ending} while "
                        f"starting; its error stands above"
                    )
                if time.monotonic() > deadline:
                    raise SidecarUnavailable(f"{sidecar}: {target} was not ready in time")
                self._stop.wait(0.01)

    def _await_replaced(self, deadline: float) -> None:
        """Wait until older sidecars take no more requests; do not wait for their last answers."""
        while (pid := self._supervisor.replaced()) is not None:
            if time.monotonic() > deadline:
                raise SidecarUnavailable(
                    f'sidecar "{self.name}": process {pid}, which is to be replaced, does not '
                    f"react; stop it (kill {pid}), or let it go on if it is stopped "
                    f"(kill -CONT {pid})"
                )
            self._stop.wait(0.01)

    def _watch(self, stop: threading.Event) -> None:
        while not stop.wait(LOOK_EVERY):
            self._supervisor.look()
            if not self._supervisor.is_open:  # a successor serves
                stop.set()

    def serve_forever(self) -> None:
        """Block until :meth:`stop` is called, another sidecar has replaced this one, or Ctrl-C."""
        while not self._stop.wait(0.5):
            pass

    # CHANGE: edit this for a new option of a sidecar
    def stop(self) -> None:
        """End the workers, and remove the request ring unless another sidecar serves it."""
        if self._pid != os.getpid():
            return  # in a forked child: the sidecar belongs to the parent
        atexit.unregister(self.stop)
        self._stop.set()
        if self._monitor is not None:
            # join() raises RuntimeError if a signal interrupted start() before the thread ran. The
            # thread then ends as soon as it runs, because _stop is set.
            with suppress(RuntimeError):
                self._monitor.join()
            self._monitor = None
        self._supervisor.signal(signal.SIGTERM)
        self._supervisor.end(time.monotonic() + GRACE)
        self._supervisor.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


@documented(DecoratorOptions)
def sidecar(
    name: str | None = None, **options: Unpack[DecoratorOptions]
) -> Callable[[Marked], Marked]:
    """Mark a function (or a class, instantiated once a worker) as a sidecar.

    The decorated function can be called as before, served by
    ``shmring sidecar module:function``, or started from Python::

        @shmring.sidecar("scorer", workers=2)
        def score(batch: pa.RecordBatch) -> pa.RecordBatch: ...

        with shmring.Sidecar(score):
            ...

    Parameters
    ----------
    name : name by which clients find the sidecar; None: the function's name
    options : options that the function needs wherever it is served
    """
    given = checked(DecoratorOptions, options)
    if name is not None:
        check_sidecar_name(name)

    def mark(target: Marked) -> Marked:
        marked: Any = target
        marked.__sidecar_name__ = name or marked.__name__
        marked.__sidecar_options__ = given
        return target

    return mark
