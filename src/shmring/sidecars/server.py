"""The supervisor: makes the request ring, starts workers, replaces the dead."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ParamSpec, Protocol, Self, TypeVar, overload

import shmring
from shmring._shmring import MAX_PARTICIPANTS
from shmring.arguments import at_least_one
from shmring.errors import (
    Contended,
    LimitReached,
    NotARing,
    PermissionRefused,
    RingNotFound,
    ShmringError,
    SidecarUnavailable,
)
from shmring.sidecars.joint import Batching
from shmring.sidecars.participants import RESTART_SECONDS, RESTARTED, SUPERVISOR
from shmring.sidecars.sizes import REQUEST
from shmring.sidecars.wire import reply_ring_name, request_ring_name

__all__ = ["Sidecar", "SidecarFunction", "leave_ring", "open_ring", "sidecar"]

P = ParamSpec("P")
Answer = TypeVar("Answer", covariant=True)
Class = TypeVar("Class", bound=type)

_LOOK_EVERY = 0.2
GRACE = 10.0  # seconds between SIGTERM and SIGKILL
# A worker that dies within _SOON seconds of its start is started again ever more slowly.
_SOON = 10.0
_BACKOFF = (0.0, 0.5, 1.0, 2.0, 5.0)


def open_ring(sidecar: str, slots: int | None) -> shmring.Ring:
    """A sidecar's request ring, made unless it is there.

    Parameters
    ----------
    sidecar : name of it
    slots : of a ring that is made; None leaves the clients room

    Raises
    ------
    NoSpace : /dev/shm cannot hold it
    """
    ring = REQUEST.make(
        slots,
        lambda slots: shmring.open_or_create(
            request_ring_name(sidecar), slots=slots, participants=MAX_PARTICIPANTS, temporary=True
        ),
    )
    ring.keep()  # another sidecar may serve it still when this one stops
    return ring


def leave_ring(sidecar: str, ring: shmring.Ring) -> None:
    """Close a sidecar's request ring, and remove it unless another supervisor is there.

    The clients' rings go with it: who is left asks the next sidecar of the name for answers to a
    new one, and a client that waits for a task may be killed before it sees that nobody is here.
    """
    shared = any(
        participant["alive"] and participant["name"] == SUPERVISOR
        for participant in ring.participants()
    )
    replies = [] if shared else list(_reply_rings(sidecar))  # before there can be a next sidecar
    ring.close()
    if not shared:
        with contextlib.suppress(RingNotFound):
            ring.unlink()
        for name in replies:
            with contextlib.suppress(ShmringError):  # its client was faster
                shmring.unlink(name)


def _reply_rings(sidecar: str) -> Iterator[str]:
    prefix = reply_ring_name(sidecar, "")
    for name in shmring.rings():
        if name.startswith(prefix) and "." not in name.removeprefix(prefix):
            yield name


def _stdout_takes() -> bool:
    """Whether what a worker's function prints can go where its supervisor's stdout goes."""
    try:
        return fcntl.fcntl(1, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
    except OSError:
        return False


def killed_for_memory() -> int:
    """How many processes of this one's cgroup the kernel has killed for memory, if it says so."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers in ("", "memory"):
                file = f"{path}/memory.events" if not controllers else f"{path}/memory.oom_control"
                folder = f"/sys/fs/cgroup/{controllers}"
                counts = dict(c.split() for c in Path(f"{folder}{file}").read_text().splitlines())
                return int(counts.get("oom_kill", 0))
    return 0


class _Process:
    """A worker's process, from its start to its end."""

    def __init__(self, target: str, name: str, options: Sequence[str]) -> None:
        self._ready_pipe, ready = os.pipe()
        os.set_blocking(self._ready_pipe, False)
        command = [sys.executable, "-m", "shmring.sidecars.worker", target, name]
        try:
            self.popen = subprocess.Popen(
                [*command, str(os.getpid()), str(ready), *options],
                stdin=subprocess.DEVNULL,
                stdout=None if _stdout_takes() else subprocess.DEVNULL,
                pass_fds=(ready,),
                env={
                    # As Spark does for its workers: processes share the cores, not threads.
                    "OMP_NUM_THREADS": "1",
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
                },
            )
        except BaseException:
            os.close(self._ready_pipe)
            raise
        finally:
            os.close(ready)
        self.started = time.monotonic()
        self._ready = False
        self._killed_before = killed_for_memory()

    @property
    def has_ended(self) -> bool:
        return self.popen.poll() is not None

    @property
    def ending(self) -> str:
        """How it has ended, in words."""
        status = self.popen.returncode
        if status is None or status >= 0:
            return f"status {status}"
        name = signal.Signals(-status).name
        if -status != signal.SIGKILL:
            return name
        killed = killed_for_memory() - self._killed_before
        if killed > 0:
            return f"{name}: the kernel has killed {killed} processes of its cgroup for memory"
        return f"{name} (out of memory?)"

    @property
    def is_ready(self) -> bool:
        """Whether its function was loaded."""
        if not self._ready:
            with contextlib.suppress(BlockingIOError):
                self._ready = os.read(self._ready_pipe, 1) != b""
        return self._ready

    def end(self, deadline: float) -> None:
        """Wait for its end, which was asked for, until `deadline`; then kill it."""
        try:
            self.popen.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()
        os.close(self._ready_pipe)


class _Place:
    """One of a sidecar's workers, whichever process it is just now."""

    def __init__(self, target: str, name: str, options: Sequence[str]) -> None:
        self._target = target
        self._name = name
        self._options = options
        self._failures = 0
        self._due: float | None = None
        self.process = _Process(target, name, options)

    def look(self, start_timeout: float) -> bool:
        """Replace a process that has ended; whether it was replaced now."""
        process = self.process
        now = time.monotonic()
        if not process.has_ended:
            if not process.is_ready and now - process.started > start_timeout:
                process.popen.kill()
            return False
        if self._due is None:
            soon = now - process.started < _SOON
            self._failures = self._failures + 1 if soon else 0
            self._pause(
                now,
                f"worker {process.popen.pid} has ended with {process.ending}; another one starts",
            )
        if self._due is not None and now < self._due:
            return False
        try:
            self.process = _Process(self._target, self._name, self._options)
        except OSError as error:
            self._failures += 1
            self._pause(now, f"no process for a worker: {error}; tried again")
            return False
        self._due = None
        process.end(now)
        return True

    def _pause(self, now: float, what: str) -> None:
        """Be due after a pause that grows with each failure, and say so."""
        pause = _BACKOFF[min(self._failures, len(_BACKOFF) - 1)]
        self._due = now + pause  # first: a stderr that is gone keeps no worker from starting
        said = f'shmring: sidecar "{self._name}": {what} in {pause:g} s'
        print(said, file=sys.stderr, flush=True)


class Sidecar:
    """A sidecar with its ring and its workers.

    Parameters
    ----------
    target : "module:function", or a function made by :func:`sidecar`
    name : by which clients find it
    workers : processes that share the requests
    slots : size of the request ring, in slots of 300 bytes; None is 131,072 (44 MB), or what leaves
        the clients room where /dev/shm has little memory
    existing_ring : wait for a request ring that somebody else makes, whose container is charged
        for its memory, and leave that ring at the end: `shmring create sidecar.NAME
        --participants 248 --exist-ok`
    max_batch_rows : a worker joins the requests of several clients into a batch of at most so many
        rows, calls the function once, and cuts the answer: the function must return a row for each
        that it is given, in their order. Where it raises, each request is worked on alone, so that
        only the one that is the cause fails. None is as the function was marked
    max_wait_ms : how long a request waits for others to be joined with, in milliseconds; 5 unless
        given

    Use it as a context manager, or with :meth:`start` and :meth:`stop`. Sidecars
    of one name on one host share the requests.
    """

    def __init__(
        self,
        target: str | Callable[..., Any],
        *,
        name: str | None = None,
        workers: int | None = None,
        slots: int | None = None,
        existing_ring: bool = False,
        max_batch_rows: int | None = None,
        max_wait_ms: float | None = None,
    ) -> None:
        if existing_ring and slots is not None:
            raise ValueError("slots are for a ring that the sidecar makes; this one is there")
        if workers is None:
            workers = int(getattr(target, "__sidecar_workers__", 1))
        workers = at_least_one("workers", workers)
        self._target = target if isinstance(target, str) else _target_of(target)
        self.name = name or str(getattr(target, "__sidecar_name__", "")) or _bare(self._target)
        self._workers = workers
        self._slots = slots
        self._existing_ring = existing_ring
        batching = Batching.of(max_batch_rows, max_wait_ms)
        self._options = [] if batching is None else batching.as_arguments()
        self._places: list[_Place] = []
        self._restarts = 0
        self._restarted: list[float] = []  # when, lately
        self._said_restarts: shmring.Producer | None = None
        self._pid = 0
        self._start_timeout = 0.0
        self._stop = threading.Event()
        self._monitor: threading.Thread | None = None
        self._ring: shmring.Ring | None = None
        self._supervisor: shmring.Producer | None = None

    @property
    def pids(self) -> Sequence[int]:
        """Process ids of the workers."""
        return [place.process.popen.pid for place in self._places]

    @property
    def slots(self) -> int:
        """Size of the request ring; 0 before the start."""
        return 0 if self._ring is None else self._ring.slots

    @property
    def restarts(self) -> int:
        """Workers that had to be replaced."""
        return self._restarts

    def start(self, *, timeout: float = 120.0) -> Self:
        """Make the ring, start the workers and wait until each has loaded its function.

        Parameters
        ----------
        timeout : seconds that loading may take, now and when a worker is replaced

        Raises
        ------
        SidecarUnavailable : a worker ended or did not become ready in time; nothing is left
        NoSpace : /dev/shm cannot hold the request ring
        """
        if self._ring is not None:
            raise RuntimeError(f'sidecar "{self.name}" has been started already')
        self._stop.clear()
        self._pid = os.getpid()
        self._start_timeout = timeout
        deadline = time.monotonic() + timeout
        self._ring = (
            self._await_ring(deadline) if self._existing_ring else open_ring(self.name, self._slots)
        )
        # A caller may end without stop(); the workers notice that, the ring does not.
        atexit.register(self.stop)
        try:
            self._supervisor = self._ring.producer(SUPERVISOR)
            self._sweep(self._ring)
            for _ in range(self._workers):
                self._places.append(_Place(self._target, self.name, self._options))
            self._await_ready(deadline)
        except BaseException:
            self.stop()
            raise
        self._monitor = threading.Thread(
            target=self._watch,
            args=(self._ring,),
            name=f"shmring-sidecar-{self.name}",
            daemon=True,
        )
        self._monitor.start()
        return self

    def _await_ring(self, deadline: float) -> shmring.Ring:
        while True:
            try:
                return shmring.attach(request_ring_name(self.name))
            except RingNotFound as error:
                if time.monotonic() > deadline or self._stop.wait(_LOOK_EVERY):
                    raise SidecarUnavailable(
                        f'sidecar "{self.name}": nobody has made its ring; make it with `shmring '
                        f"create {request_ring_name(self.name)} --participants {MAX_PARTICIPANTS}`"
                    ) from error

    def _await_ready(self, deadline: float) -> None:
        for place in self._places:
            process = place.process
            while not process.is_ready:
                if process.has_ended:
                    raise SidecarUnavailable(
                        f'sidecar "{self.name}": the worker for {self._target} ended with '
                        f"{process.ending} while starting; its error stands above"
                    )
                if time.monotonic() > deadline:
                    raise SidecarUnavailable(
                        f'sidecar "{self.name}": {self._target} was not ready in time'
                    )
                self._stop.wait(0.01)

    def _watch(self, ring: shmring.Ring) -> None:
        """Replace dead workers and sweep what killed clients left."""
        trouble = None
        while not self._stop.wait(_LOOK_EVERY):
            before, trouble = trouble, None
            try:
                replaced = sum(place.look(self._start_timeout) for place in self._places)
                if replaced:
                    self._say_restarts(ring, replaced)
                self._sweep(ring)
            except (OSError, ShmringError) as error:  # no descriptors, say: later perhaps
                trouble = f'shmring: sidecar "{self.name}": cannot look for the dead: {error}'
                if trouble != before:
                    print(trouble, file=sys.stderr, flush=True)

    def _say_restarts(self, ring: shmring.Ring, replaced: int) -> None:
        """Let who looks from outside see it, by the name of a participant."""
        self._restarts += replaced
        now = time.monotonic()
        lately = [when for when in self._restarted if now - when < RESTART_SECONDS]
        self._restarted = lately + replaced * [now]
        if self._said_restarts is not None:
            self._said_restarts.close()
        with contextlib.suppress(LimitReached):  # workers need the room more
            name = f"{RESTARTED}{self._restarts} {len(self._restarted)}"
            self._said_restarts = ring.producer(name)

    def _sweep(self, ring: shmring.Ring) -> None:
        with contextlib.suppress(Contended):  # somebody else is at it
            ring.recover()
        for name in _reply_rings(self.name):
            with contextlib.suppress(PermissionRefused, NotARing):  # not ours
                shmring.gc(name)

    def serve_forever(self) -> None:
        """Block until :meth:`stop` is called from elsewhere or Ctrl-C."""
        while not self._stop.wait(0.5):
            pass

    def kill(self) -> None:
        """Kill the workers, for whom :meth:`stop` waits: from a signal handler, or any thread."""
        for place in self._places:
            place.process.popen.kill()

    def stop(self) -> None:
        """End the workers and remove the request ring, unless it was there or another serves it."""
        if self._pid != os.getpid():
            return  # in a forked child the sidecar stays the parent's
        atexit.unregister(self.stop)
        self._stop.set()
        if self._monitor is not None:
            self._monitor.join()
            self._monitor = None
        for place in self._places:
            place.process.popen.terminate()
        deadline = time.monotonic() + GRACE
        for place in self._places:
            place.process.end(deadline)
        self._places.clear()
        ring, self._ring = self._ring, None
        if ring is not None:
            self._sweep(ring)
            if self._supervisor is not None:
                self._supervisor.close()
            self._said_restarts = None
            if self._existing_ring:
                ring.close()
            else:
                leave_ring(self.name, ring)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


class SidecarFunction(Protocol[P, Answer]):
    """A function with the marks of :func:`sidecar`: called as before, started by ``sidecar()``."""

    __module__: str
    __name__: str
    __qualname__: str
    __sidecar_name__: str
    __sidecar_workers__: int
    __sidecar_batching__: Batching | None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Answer: ...

    def sidecar(self) -> Sidecar:
        """The function's sidecar, for a ``with`` block, or to start and stop."""
        ...


class _Mark(Protocol):
    """What :func:`sidecar` returns. A class stays the type that it is."""

    @overload
    def __call__(self, target: Class, /) -> Class: ...
    @overload
    def __call__(self, target: Callable[P, Answer], /) -> SidecarFunction[P, Answer]: ...


def sidecar(
    name: str | None = None,
    *,
    workers: int = 1,
    max_batch_rows: int | None = None,
    max_wait_ms: float | None = None,
) -> _Mark:
    """Mark a function (or a class, instantiated once a worker) as a sidecar.

    The decorated function can be called as before, served by
    ``shmring sidecar module:function``, or started from Python by its
    ``sidecar()`` attribute::

        @shmring.sidecar("scorer", workers=2)
        def score(batch: pa.RecordBatch) -> pa.RecordBatch: ...

        with score.sidecar():
            ...

    The options are those of :class:`Sidecar`.

    Type checkers see the function's own parameters, and the attribute; of a class they see the
    class: start it with ``shmring.Sidecar(Scorer)``.
    """

    batching = Batching.of(max_batch_rows, max_wait_ms)

    def mark(target: Any, /) -> Any:
        target.__sidecar_name__ = name or target.__name__
        target.__sidecar_workers__ = workers
        target.__sidecar_batching__ = batching
        target.sidecar = lambda: Sidecar(target)
        return target

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
