"""Keeps a sidecar's workers running: makes its ring, and replaces workers that end.

No code runs in the background here: the owner of a supervisor calls ``look()`` a few times a
second. A Sidecar does so in a thread of its own, the attendant of Spark's plugin in its main loop.
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
from typing import Any, ClassVar, Generic, TypeVar, Unpack

import shmring
from shmring.errors import (
    Contended,
    Damaged,
    LimitReached,
    NotARing,
    PermissionRefused,
    RingNotFound,
    ShmringError,
)
from shmring.sidecars.identity import Entry, Identity
from shmring.sidecars.options import SidecarOptions, checked, for_workers
from shmring.sidecars.rings import (
    FAILING,
    RESTART_SECONDS,
    RESTARTED,
    SUPERVISOR,
    Staff,
    leave_ring,
    open_ring,
    parked_rings,
    reply_rings,
)
from shmring.sidecars.wire import check_sidecar_name, parked_ring_name, request_ring_name

LOOK_EVERY = 0.2
GRACE = 10.0  # seconds between SIGTERM and SIGKILL
# Maximum seconds to wait, after SIGKILL, for the end of a process, which a hanging GPU driver may
# keep alive for ever.
_DYING = 30.0
_PAUSE = 0.05  # seconds between checks whether a process has ended
# Seconds that a process must run to count as started well. If it ends earlier, the pause before its
# next start is longer than the last pause, up to 15 s; if later, it is started again at once.
_SOON = 10.0
_BACKOFF = (0.0, 0.5, 1.0, 2.0, 5.0, 15.0)
# A keeper is hopeless when this number of its processes, one after another, ended before they were
# ready. If all keepers of a sidecar are hopeless, the sidecar tells its clients that no worker will
# come.
_HOPELESS = 3

Process = TypeVar("Process", bound="Child")


def say(text: str) -> None:
    """Write a line to the log; ignore errors, which must not keep a worker from its restart."""
    with contextlib.suppress(OSError):  # the log's reader is gone, or the disk is full
        print(f"shmring: {text}", file=sys.stderr, flush=True)


class Child:
    """A process, and the processes that it starts.

    If the process `leads` a process group, signals also reach the processes that it has started,
    and bury() kills these processes when it has ended; the caller reaps them as a child subreaper.
    The options are subprocess.Popen's.
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
        """Exit status, as subprocess returns it; None while the process runs."""
        return self._popen.poll()

    @property
    def ending(self) -> str:
        """Description of the process's end."""
        status = self.status
        return f"status {status}" if status is None or status >= 0 else signal.Signals(-status).name

    @property
    def is_ready(self) -> bool:
        return True

    def signal(self, number: int) -> None:
        """Send a signal to the process, or to its whole group if it leads one."""
        with contextlib.suppress(ProcessLookupError):
            if not self._leads:
                self._popen.send_signal(number)
            elif not self._buried:
                os.killpg(self._popen.pid, number)

    def bury(self) -> None:
        """Kill the processes that an ended process has started.

        The group's number may be reused from then on, so no further signal is sent to it.
        """
        if self._leads:
            self.signal(signal.SIGKILL)
            self._buried = True

    def end(self, deadline: float) -> None:
        """Wait until `deadline` for the process, which was asked to end; then kill what is left."""
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
        """Reap the ended processes of the process's group; return True if others still run."""
        if not self._leads:
            return False
        try:
            while os.waitpid(-self._popen.pid, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return False
        return True


class Keeper(Generic[Process]):
    """Keeps one of a sidecar's processes running: starts another one when it ends."""

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
        """Replace the process if it has ended and its pause is over; return True if replaced."""
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
        """Set and log the pause before the next start; the pause grows with each failure."""
        pause = _BACKOFF[min(self._failures, len(_BACKOFF) - 1)]
        self._due = now + pause
        say(f'sidecar "{self._sidecar}": {what} in {pause:g} s')


def _stdout_takes() -> bool:
    """Whether this process's stdout is open for writing, so that a worker can inherit it."""
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
        # -P: the worker adds the current folder to its path itself, after its own imports.
        command = [sys.executable, "-P", "-m", "shmring.sidecars.worker", target, name]
        own_stdout = None if _stdout_takes() else subprocess.DEVNULL
        try:
            super().__init__(
                [*command, str(os.getpid()), str(ready), options],
                leads=apart,
                stdout=sys.stderr.fileno() if apart else own_stdout,
                pass_fds=(ready,),
                env={
                    # Let libraries use one thread in each worker, as Spark does, because several
                    # workers share the cores. The environment may set another number.
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
        """Whether the worker has loaded its function."""
        return self._lines() >= 2

    @property
    def workers(self) -> int | None:
        """Number of workers that the function's decorator asks for; None if not known yet."""
        return int(self._heard.partition(b"\n")[0]) if self._lines() else None

    def _lines(self) -> int:
        """Return the number of lines from the worker: line 1 has `workers`, line 2 means ready."""
        if self._heard.count(b"\n") < 2:
            with contextlib.suppress(BlockingIOError):
                self._heard += os.read(self._pipe, 64)
        return self._heard.count(b"\n")

    def end(self, deadline: float) -> None:
        super().end(deadline)
        pipe, self._pipe = self._pipe, -1
        if pipe >= 0:  # -1 if an earlier call, which a signal interrupted, has closed the pipe
            os.close(pipe)


class Supervisor:
    """A sidecar's ring and its workers.

    Without the option `workers`, the first worker reports the number in the function's decorator.
    If the workers run `apart`, each worker leads a process group and prints to stderr, because this
    process serves several sidecars.
    """

    def __init__(
        self,
        target: str,
        name: str,
        *,
        apart: bool = False,
        **options: Unpack[SidecarOptions],
    ) -> None:
        check_sidecar_name(name)
        # CHANGE: edit this for a new option of a sidecar
        given = checked(SidecarOptions, options)
        self.name = name
        self.target = target
        self.keepers: list[Keeper[_Worker]] = []
        self.restarts = 0
        self.is_replaced = False  # whether a newer sidecar of this name serves instead
        self._wanted = self._workers = given.get("workers")
        self._slots = given.get("slots")
        self._options = json.dumps(for_workers(given))
        self._replace = given.get("replace", False)
        self._apart = apart
        self._start_timeout = float("inf")
        self._trouble = ""
        self._ring: shmring.Ring | None = None
        self._entry: Entry | None = None
        self._restarted: list[float] = []  # times of the restarts within the last RESTART_SECONDS
        self._said_restarts: shmring.Producer | None = None

    @property
    def is_open(self) -> bool:
        return self._ring is not None

    @property
    def is_findable(self) -> bool:
        """Whether clients and workers find this ring; True if that cannot be checked now."""
        if self._ring is None:
            return False
        try:
            with shmring.attach(request_ring_name(self.name), read_only=True) as found:
                return found.info.uuid == self._ring.info.uuid
        # CHANGE: edit this for a new error
        except (RingNotFound, NotARing, Damaged, PermissionRefused):
            return False  # there is no ring of this name, or it is not this sidecar's
        except ShmringError:  # the check has failed, for example for lack of a file descriptor
            return True

    @property
    def slots(self) -> int:
        """Size of the request ring; 0 before it is open."""
        return 0 if self._ring is None else self._ring.slots

    @property
    def pids(self) -> list[int]:
        return [keeper.process.pid for keeper in self.keepers]

    @property
    def is_ready(self) -> bool:
        """Whether all workers have loaded."""
        return len(self.keepers) == self._workers and all(
            keeper.process.is_ready for keeper in self.keepers
        )

    def open(self) -> None:
        """Make the ring, and enter it, so that clients wait for the workers."""
        # Remove a ring that dead processes have left: it may have another size than the new one.
        with contextlib.suppress(ShmringError):
            shmring.gc(request_ring_name(self.name))
        identity = Identity.of(self.target, self._options)
        while True:
            ring = self._ring = open_ring(self.name, self._slots)
            try:
                self._entry = Entry(ring, identity, self._slots, replace=self._replace)
            except BaseException:
                self.close()
                raise
            if self.is_findable:
                # Clients find the ring, and it stays: a supervisor that leaves removes the ring
                # only if it sees no other supervisor's entry.
                break
            # Try again with a new ring: another supervisor has removed the ring, before it saw this
            # supervisor's entry.
            self.close(keep=True)
        self.is_replaced = False
        self._sweep(ring)

    def replaced(self) -> int | None:
        """Replace older sidecars if asked to; return the pid of one that still serves, or None."""
        assert self._entry is not None
        return self._entry.replaced()

    def start(self, start_timeout: float) -> None:
        """Start the workers; each may take `start_timeout` seconds to load.

        Raises OSError if not all processes can be started; :meth:`look` tries again.
        """
        self._start_timeout = start_timeout
        self._start_missing()

    def _start_missing(self) -> None:
        if self._workers is None and self.keepers:
            self._workers = self.keepers[0].process.workers
        while len(self.keepers) < (self._workers or 1):
            self.keepers.append(Keeper(self._start_worker, self.name))

    def _start_worker(self) -> _Worker:
        return _Worker(self.target, self.name, self._options, apart=self._apart)

    def look(self) -> None:
        """Replace dead workers and remove what killed clients left; end if a successor serves."""
        before, self._trouble = self._trouble, ""
        ring, entry = self._ring, self._entry
        assert ring is not None
        assert entry is not None
        try:
            if not self.is_replaced and (successor := entry.successor()) is not None:
                self._yield_to(successor)
            if self.is_replaced:
                self._drain(ring, entry)
                return
            self._start_missing()
            replaced = sum(keeper.look(self._start_timeout) for keeper in self.keepers)
            if replaced:
                self._say_restarts(ring, replaced)
            hopeless = all(keeper.is_hopeless for keeper in self.keepers)
            entry.show(FAILING if hopeless else SUPERVISOR)
            self._sweep(ring)
        except (OSError, ShmringError) as error:  # the next call tries again
            self._trouble = f'sidecar "{self.name}": cannot look for the dead: {error}'
            if self._trouble != before:
                say(self._trouble)

    def _say_restarts(self, ring: shmring.Ring, replaced: int) -> None:
        """Show the number of restarts to other processes, as the name of a producer in the ring."""
        self.restarts += replaced
        now = time.monotonic()
        lately = [when for when in self._restarted if now - when < RESTART_SECONDS]
        self._restarted = lately + replaced * [now]
        if self._said_restarts is not None:
            self._said_restarts.close()
        # Show no number if no seat is free: workers need the seats more.
        with contextlib.suppress(LimitReached):
            name = f"{RESTARTED}{self.restarts} {len(self._restarted)}"
            self._said_restarts = ring.producer(name)

    def _yield_to(self, successor: int) -> None:
        self.is_replaced = True
        self.signal(signal.SIGTERM)
        say(
            f'sidecar "{self.name}": process {successor} serves from now on; the workers end with '
            f"the requests that they have"
        )

    def _drain(self, ring: shmring.Ring, entry: Entry) -> None:
        """Leave the ring when the workers have ended, however long their requests take."""
        pids, staff = self.pids, Staff.of(ring.participants())
        own = [worker for worker in staff.workers if worker["pid"] in pids]
        if all(staff.is_busy(worker) or worker["stopped"] for worker in own):
            entry.leave()  # shows the successor that our workers take no further requests
        if all(keeper.process.status is not None for keeper in self.keepers):
            self.end(time.monotonic())
            self.close()

    def _sweep(self, ring: shmring.Ring) -> None:
        with contextlib.suppress(Contended):  # another process is clearing away the dead already
            ring.recover()
        # Remove the rings of dead processes, but not those of requests that have moved out of this
        # ring: the workers of this ring take such requests over.
        current = parked_ring_name(self.name, ring.info.uuid[:12])
        parked = (name for name in parked_rings(self.name) if not name.startswith(current))
        for name in (*reply_rings(self.name), *parked):
            with contextlib.suppress(PermissionRefused, NotARing):  # another user's ring
                shmring.gc(name)

    def signal(self, number: int) -> None:
        for keeper in self.keepers:
            keeper.process.signal(number)

    def end(self, deadline: float) -> None:
        """Wait until `deadline` for the workers, which were asked to end, then kill them."""
        for keeper in self.keepers:
            keeper.process.end(deadline)
        self.keepers.clear()
        self._workers = self._wanted

    def close(self, *, keep: bool = False) -> None:
        """Leave the ring; remove it unless `keep` is set or another supervisor uses it."""
        ring, self._ring = self._ring, None
        if ring is not None:
            self._sweep(ring)
            entry, self._entry = self._entry, None
            if entry is not None:
                entry.leave()
            self._said_restarts = None
            if keep:
                ring.close()
            else:
                leave_ring(self.name, ring)
