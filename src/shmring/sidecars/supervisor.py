"""What keeps a sidecar's workers running: its ring, and a place for each worker.

Nothing runs in the background here: whoever has a supervisor calls ``look()`` some times a second.
A Sidecar does so in a thread of its own, Spark's plugin in the loop of its process.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, ClassVar, Generic, TypeVar

import shmring
from shmring.arguments import integer, slots_of
from shmring.errors import (
    Contended,
    Damaged,
    LimitReached,
    NotARing,
    PermissionRefused,
    RingNotFound,
    ShmringError,
)
from shmring.sidecars.functions import Batching
from shmring.sidecars.rings import (
    RESTART_SECONDS,
    RESTARTED,
    SUPERVISOR,
    leave_ring,
    open_ring,
    parked_rings,
    reply_rings,
    serving,
)
from shmring.sidecars.wire import check_sidecar_name, parked_ring_name, request_ring_name

LOOK_EVERY = 0.2
GRACE = 10.0  # seconds between SIGTERM and SIGKILL
_DYING = 30.0  # seconds until nobody waits for one that does not end by SIGKILL: a driver may hang
_PAUSE = 0.05  # seconds between looks at a process that is to end
# A process that ends within _SOON seconds of its start is started again ever more slowly.
_SOON = 10.0
_BACKOFF = (0.0, 0.5, 1.0, 2.0, 5.0, 15.0)
# Nobody waits for a process that has ended so often in a row without having been ready.
_HOPELESS = 3

Process = TypeVar("Process", bound="Child")


def say(text: str) -> None:
    """Write a line to the log, if that takes it: no worker is to miss its restart for that."""
    with contextlib.suppress(OSError):  # its reader is gone, or the disk is full
        print(f"shmring: {text}", file=sys.stderr, flush=True)


class Child:
    """A process, and what it starts in its turn.

    Parameters
    ----------
    command
    leads : it leads a process group: signals reach what it has started too, and that ends with it.
        The caller must be a child subreaper, for else these processes are not its own to reap
    options : as for subprocess.Popen
    """

    kind: ClassVar[str] = "process"

    def __init__(self, command: Sequence[str], *, leads: bool, **options: Any) -> None:
        self._leads = leads
        self._buried = False
        group = 0 if leads else None
        self._popen: subprocess.Popen[Any] = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, process_group=group, **options
        )
        self.started = time.monotonic()

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def status(self) -> int | None:
        """Of its end, as subprocess has it; None as long as it runs."""
        return self._popen.poll()

    @property
    def ending(self) -> str:
        """How it has ended, in words."""
        status = self.status
        return f"status {status}" if status is None or status >= 0 else signal.Signals(-status).name

    @property
    def is_ready(self) -> bool:
        return True

    def signal(self, number: int) -> None:
        """Send a signal to the process, or to all of its group."""
        with contextlib.suppress(ProcessLookupError):
            if not self._leads:
                self._popen.send_signal(number)
            elif not self._buried:
                os.killpg(self._popen.pid, number)

    def bury(self) -> None:
        """Kill what a process that has ended has started itself.

        Its number may be another group's from then on: nothing is sent to it any more.
        """
        if self._leads:
            self.signal(signal.SIGKILL)
            self._buried = True

    def end(self, deadline: float) -> None:
        """Wait until `deadline` for the end, which was asked for; then kill what is left."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(max(0.0, deadline - time.monotonic()))
        while self.status is None or self._has_orphans():
            late = time.monotonic() - deadline
            if late > 0:
                if self._buried or late > _DYING:
                    break
                self.signal(signal.SIGKILL)
            time.sleep(_PAUSE)

    def _has_orphans(self) -> bool:
        """Whether something lives that the process has started, and that is now our child."""
        if not self._leads:
            return False
        try:
            while os.waitpid(-self._popen.pid, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return False
        return True


class Place(Generic[Process]):
    """A process of a sidecar that is to be there always, whichever it is just now."""

    def __init__(self, start: Callable[[], Process], sidecar: str) -> None:
        self._start = start
        self._sidecar = sidecar
        self._failures = 0
        self._in_vain = 0
        self._due: float | None = None
        self.restarts = 0
        self.process = start()

    @property
    def is_hopeless(self) -> bool:
        return self._in_vain >= _HOPELESS

    def look(self, start_timeout: float) -> bool:
        """Replace a process that has ended; whether it was replaced now."""
        process = self.process
        now = time.monotonic()
        if process.status is None:
            if process.is_ready:
                self._in_vain = 0
            elif now - process.started > start_timeout:
                process.signal(signal.SIGKILL)
            return False
        if self._due is None:
            self._failures = self._failures + 1 if now - process.started < _SOON else 0
            self._in_vain = 0 if process.is_ready else self._in_vain + 1
            process.bury()
            ended = f"{process.kind} {process.pid} has ended with {process.ending}"
            self._pause(now, f"{ended}; another one starts")
        if self._due is not None and now < self._due:
            return False
        try:
            self.process = self._start()
        except OSError as error:
            self._failures += 1
            self._pause(now, f"no process for a {process.kind}: {error}; tried again")
            return False
        self._due = None
        self.restarts += 1
        process.end(now)
        return True

    def _pause(self, now: float, what: str) -> None:
        """Be due after a pause that grows with each failure, and say so."""
        pause = _BACKOFF[min(self._failures, len(_BACKOFF) - 1)]
        self._due = now + pause
        say(f'sidecar "{self._sidecar}": {what} in {pause:g} s')


def _stdout_takes() -> bool:
    """Whether what a worker's function prints can go where its supervisor's stdout goes."""
    try:
        return fcntl.fcntl(1, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
    except OSError:
        return False


class _Worker(Child):
    """A worker's process, from its start to its end."""

    kind = "worker"

    def __init__(self, target: str, name: str, options: str, *, apart: bool) -> None:
        self._pipe, ready = os.pipe()
        os.set_blocking(self._pipe, False)
        # The worker puts the current folder into its path itself, behind its own imports.
        command = [sys.executable, "-P", "-m", "shmring.sidecars.worker", target, name]
        own_stdout = None if _stdout_takes() else subprocess.DEVNULL
        try:
            super().__init__(
                [*command, str(os.getpid()), str(ready), options],
                leads=apart,
                stdout=sys.stderr.fileno() if apart else own_stdout,
                pass_fds=(ready,),
                env={
                    # As Spark does for its workers: processes share the cores, not threads.
                    "OMP_NUM_THREADS": "1",
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
                },
            )
        except BaseException:
            os.close(self._pipe)
            raise
        finally:
            os.close(ready)
        self._heard = b""

    @property
    def ending(self) -> str:
        killed = self.status == -signal.SIGKILL
        return "SIGKILL (out of memory?)" if killed else super().ending

    @property
    def is_ready(self) -> bool:
        """Whether its function was loaded."""
        return self._lines() >= 2

    @property
    def workers(self) -> int | None:
        """How many the function's decorator says that there should be, if that is known yet."""
        return int(self._heard.partition(b"\n")[0]) if self._lines() else None

    def _lines(self) -> int:
        """Those that the worker has written: how many workers there should be; that it is ready."""
        if self._heard.count(b"\n") < 2:
            with contextlib.suppress(BlockingIOError):
                self._heard += os.read(self._pipe, 64)
        return self._heard.count(b"\n")

    def end(self, deadline: float) -> None:
        super().end(deadline)
        pipe, self._pipe = self._pipe, -1
        if pipe >= 0:  # a signal may have ended an earlier call
            os.close(pipe)


# CHANGE: a new option of a sidecar
class Supervisor:
    """A sidecar's ring and its workers.

    Parameters
    ----------
    target : "module:function"
    name : of the sidecar
    workers : how many; None: as the function's decorator says, which its first worker tells
    slots : of the request ring
    max_batch_rows, max_wait_ms, pin : as for a Sidecar
    apart : each worker leads a process group, and prints to stderr: for a process that serves
        more than this sidecar
    """

    def __init__(
        self,
        target: str,
        name: str,
        *,
        workers: int | None,
        slots: int | None,
        max_batch_rows: int | None = None,
        max_wait_ms: float | None = None,
        pin: bool = False,
        apart: bool = False,
    ) -> None:
        check_sidecar_name(name)
        if workers is not None:
            workers = integer("workers", workers, 1)
        if slots is not None:
            slots = slots_of("slots", slots)
        batching = Batching.of(max_batch_rows, max_wait_ms)
        self.name = name
        self.target = target
        self.places: list[Place[_Worker]] = []
        self.restarts = 0
        self._wanted = workers
        self._workers = workers
        self._slots = slots
        said = None if batching is None else asdict(batching)
        self._options = json.dumps({"pin": bool(pin), "batching": said})
        self._apart = apart
        self._start_timeout = float("inf")
        self._trouble = ""
        self._ring: shmring.Ring | None = None
        self._entry: shmring.Producer | None = None
        self._restarted: list[float] = []  # when, lately
        self._said_restarts: shmring.Producer | None = None

    @property
    def is_open(self) -> bool:
        return self._ring is not None

    @property
    def is_findable(self) -> bool:
        """Whether the ring is the one that clients and workers find; also if nobody can say now."""
        if self._ring is None:
            return False
        try:
            with shmring.attach(request_ring_name(self.name), read_only=True) as found:
                return found.info.uuid == self._ring.info.uuid
        except (RingNotFound, NotARing, Damaged, PermissionRefused):  # gone, or somebody else's
            return False
        except ShmringError:  # no descriptors, say: nobody is to look for another ring for that
            return True

    @property
    def slots(self) -> int:
        """Size of the request ring; 0 before it is open."""
        return 0 if self._ring is None else self._ring.slots

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return [place.process.pid for place in self.places]

    @property
    def is_ready(self) -> bool:
        """Whether all workers have loaded."""
        return len(self.places) == self._workers and all(
            place.process.is_ready for place in self.places
        )

    def open(self) -> None:
        """Make the ring: clients see that they wait for workers."""
        while True:
            self._ring = open_ring(self.name, self._slots)
            self._enter(self._ring)
            if self.is_findable:
                break  # from now on who leaves the ring sees that it is used
            self.close(keep=True)  # who left it has removed it before we were in it
        names = {worker["name"] for worker in serving(self.name)}  # cut, where they are long
        if others := [name for name in sorted(names) if not self.target.startswith(name)]:
            say(
                f'sidecar "{self.name}": it shares ring "{self._ring.name}" with workers of '
                f"{', '.join(others)}, and each request goes to any of them: stop these, or give "
                f"one of the two another name"
            )
        self._sweep(self._ring)

    def _enter(self, ring: shmring.Ring) -> None:
        if self._entry is None:
            self._entry = ring.producer(SUPERVISOR)

    def start(self, start_timeout: float) -> None:
        """Start the workers, of which each may take so many seconds to load.

        OSError says that there cannot be as many processes; :meth:`look` tries again.
        """
        self._start_timeout = start_timeout
        self._start_missing()

    def _start_missing(self) -> None:
        if self._workers is None and self.places:
            self._workers = self.places[0].process.workers
        while len(self.places) < (self._workers or 1):
            self.places.append(Place(self._start_worker, self.name))

    def _start_worker(self) -> _Worker:
        return _Worker(self.target, self.name, self._options, apart=self._apart)

    def look(self) -> None:
        """Replace dead workers and sweep what killed clients left."""
        before, self._trouble = self._trouble, ""
        ring = self._ring
        assert ring is not None
        try:
            self._start_missing()
            replaced = sum(place.look(self._start_timeout) for place in self.places)
            if replaced:
                self._say_restarts(ring, replaced)
            if all(place.is_hopeless for place in self.places):
                self._step_back()
            else:
                self._enter(ring)
            self._sweep(ring)
        except (OSError, ShmringError) as error:  # no descriptors, say: later perhaps
            self._trouble = f'sidecar "{self.name}": cannot look for the dead: {error}'
            if self._trouble != before:
                say(self._trouble)

    def _say_restarts(self, ring: shmring.Ring, replaced: int) -> None:
        """Let those who look from outside see them, by the name of a participant."""
        self.restarts += replaced
        now = time.monotonic()
        lately = [when for when in self._restarted if now - when < RESTART_SECONDS]
        self._restarted = lately + replaced * [now]
        if self._said_restarts is not None:
            self._said_restarts.close()
        with contextlib.suppress(LimitReached):  # workers need the room more
            name = f"{RESTARTED}{self.restarts} {len(self._restarted)}"
            self._said_restarts = ring.producer(name)

    def _step_back(self) -> None:
        """Let clients see that nobody is to be waited for."""
        entry, self._entry = self._entry, None
        if entry is not None:
            entry.close()

    def _sweep(self, ring: shmring.Ring) -> None:
        with contextlib.suppress(Contended):  # somebody else is at it
            ring.recover()
        # Requests of this ring that have moved are their workers' to take over.
        current = parked_ring_name(self.name, ring.info.uuid[:12])
        parked = (name for name in parked_rings(self.name) if not name.startswith(current))
        for name in (*reply_rings(self.name), *parked):
            with contextlib.suppress(PermissionRefused, NotARing):  # not ours
                shmring.gc(name)

    def signal(self, number: int) -> None:
        """Send a signal to all workers."""
        for place in self.places:
            place.process.signal(number)

    def end(self, deadline: float) -> None:
        """Wait until `deadline` for the workers, which are asked to end, then kill them."""
        for place in self.places:
            place.process.end(deadline)
        self.places.clear()
        self._workers = self._wanted

    def close(self, *, keep: bool = False) -> None:
        """Leave the ring, and remove it unless another supervisor is there, or it is to be kept."""
        ring, self._ring = self._ring, None
        if ring is not None:
            self._sweep(ring)
            self._step_back()
            self._said_restarts = None
            if keep:
                ring.close()
            else:
                leave_ring(self.name, ring)
