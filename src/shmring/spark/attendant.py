"""The process that the Spark plugin starts beside each executor: its rings and sidecars.

It reads one line of JSON from its standard input, and ends at the end of that: the pipe is the
executor's, and closes however that dies. Every second it writes a line of JSON with metrics, the
first one as soon as clients would find the sidecars' rings::

    {"rings": {"orders": {"slots": 65536}},
     "sidecars": {"scorer": {"command": ["python3", "-m", "shmring", "sidecar", ...],
                             "ring": {"slots": null}, "shared": true},
                  "other": {"command": "./other -x"}}}

A sidecar with "ring" is one of ours, which reads requests from such a ring. One that is "shared" is
started by one attendant of the host, and by another one when that ends.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import select
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any

import shmring
from shmring.errors import RingNotFound, ShmringError
from shmring.names import SHM_FOLDER
from shmring.sidecars.participants import SUPERVISOR, serving
from shmring.sidecars.server import leave_ring, open_ring
from shmring.sidecars.wire import reply_ring_name, request_ring_name

__all__ = ["main"]

_LOOK_EVERY = 0.2
_TELL_EVERY = 1.0
_GRACE = 20.0  # seconds between SIGTERM and SIGKILL; a sidecar takes half of that for its workers
# One that dies within _SOON seconds of its start is started again ever more slowly.
_SOON = 10.0
_BACKOFF = (0.0, 0.5, 1.0, 2.0, 5.0, 15.0)
# One that has ended so often in a row without serving is not waited for as one that loads.
_HOPELESS = 3
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None)


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class _Placeholder:
    """A supervisor's entry in the ring of a sidecar that is being started.

    Clients see by it that they wait for workers, for as long as they wait for some that load.
    """

    def __init__(self, sidecar: str, slots: int | None) -> None:
        self._sidecar = sidecar
        self._slots = slots
        self._ring: shmring.Ring | None = None
        self._supervisor: shmring.Producer | None = None

    def open(self) -> None:
        if self._ring is None:
            with suppress(ShmringError):  # the sidecar will say so itself
                self._ring = open_ring(self._sidecar, self._slots)
                self._supervisor = self._ring.producer(SUPERVISOR)

    def close(self) -> None:
        ring, self._ring = self._ring, None
        if ring is not None:
            if self._supervisor is not None:
                self._supervisor.close()
            with suppress(ShmringError):
                leave_ring(self._sidecar, ring)


class _Turn:
    """Whose turn it is to run a sidecar that the executors of this host share: who has the lock.

    The kernel takes the lock from an attendant that dies.
    """

    def __init__(self, sidecar: str) -> None:
        self._path = f"{SHM_FOLDER}/.shmring-turn-{request_ring_name(sidecar)}"
        self._file: int | None = None

    def take(self) -> bool:
        """Whether it is ours, now or already."""
        if self._file is None:
            with suppress(OSError):  # somebody else has it
                self._file = self._lock()
        return self._file is not None

    def _lock(self) -> int | None:
        file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(file), os.stat(self._path)):
                return file
        except BaseException:
            os.close(file)
            raise
        os.close(file)  # who had the lock has removed this one meanwhile
        return None

    def end(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                os.unlink(self._path)
            os.close(self._file)
            self._file = None


class _Sidecar:
    """A sidecar's process, whichever it is just now."""

    def __init__(
        self,
        name: str,
        command: list[str] | str,
        ring: dict[str, Any] | None = None,
        shared: bool = False,
    ) -> None:
        self.name = name
        self.restarts = 0
        self._command = shlex.split(command) if isinstance(command, str) else command
        self._placeholder = None if ring is None else _Placeholder(name, ring["slots"])
        self._turn = _Turn(name) if shared else None
        self._failures = 0
        self._in_vain = 0  # ends in a row without serving
        self._serves = False
        self._due: float | None = None
        self._started = 0.0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Of the process, until its end was noticed."""
        return None if self._process is None else self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def get_ready(self) -> None:
        """Let clients wait for it, in a ring that nobody has left dead."""
        self.sweep()
        self._let_clients_wait()

    def look(self) -> None:
        """Start it, or start it again when its time has come."""
        now = time.monotonic()
        if not self._serves and serving(self.name):
            self._serves = True
            self._in_vain = 0
            self._close_placeholder()
        if self.is_running:
            return
        if self._process is not None:
            self._failures = self._failures + 1 if now - self._started < _SOON else 0
            pause = _BACKOFF[min(self._failures, len(_BACKOFF) - 1)]
            _say(
                f'sidecar "{self.name}" has ended with status {self._process.returncode}; it is '
                f"started again in {pause:g} s"
            )
            self._signal_group(signal.SIGKILL)  # what it has started itself
            self._process = None
            self._due = now + pause
            self.restarts += 1
            if not self._serves:
                self._in_vain += 1
            self._let_clients_wait()
        if (self._due is None or now >= self._due) and (self._turn is None or self._turn.take()):
            self._start(now)

    def _let_clients_wait(self) -> None:
        self._serves = False
        if self._in_vain >= _HOPELESS:
            self._close_placeholder()
        elif self._placeholder is not None:
            self._placeholder.open()

    def _close_placeholder(self) -> None:
        if self._placeholder is not None:
            self._placeholder.close()

    def _start(self, now: float) -> None:
        self._started = now
        self._let_clients_wait()
        try:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr,
                process_group=0,
                preexec_fn=_die_with_parent,
            )
        except OSError as error:  # no such program; no memory; no more processes
            _say(f'sidecar "{self.name}" cannot be started: {error}')
            self._failures += 1
            self._in_vain += 1
            self._due = now + _BACKOFF[min(self._failures, len(_BACKOFF) - 1)]

    def ask_to_end(self) -> None:
        self._close_placeholder()
        self._signal_group(signal.SIGTERM)

    def end(self, deadline: float) -> None:
        """Wait until `deadline` for the end of all that it has started, then kill what is left.

        Only then may another attendant start it.
        """
        if self._process is not None:
            while self._process.poll() is None or self._has_orphans():
                if time.monotonic() > deadline:
                    self._signal_group(signal.SIGKILL)
                    self._process.wait()
                    break
                time.sleep(0.05)
        self.sweep()
        if self._turn is not None:
            self._turn.end()

    def _signal_group(self, number: int) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def _has_orphans(self) -> bool:
        """Whether something lives that the process has started, and that is now our child."""
        assert self._process is not None
        try:
            while os.waitpid(-self._process.pid, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return False
        return True

    def sweep(self) -> None:
        """Remove the rings of a sidecar, and of its clients, that were killed."""
        prefix = reply_ring_name(self.name, "")
        for name in shmring.rings():
            if name == request_ring_name(self.name) or name.startswith(prefix):
                with suppress(ShmringError):
                    shmring.gc(name)

    def metrics(self) -> dict[str, int]:
        waiting = 0
        with (
            suppress(ShmringError),
            shmring.attach(request_ring_name(self.name), read_only=True) as ring,
        ):
            waiting = ring.claimed - ring.floor
        return {
            "running": int(self.is_running),
            "restarts": self.restarts,
            "workers": len(serving(self.name)),
            "waitingSlots": waiting,
        }


class _Attendant:
    def __init__(self, config: dict[str, Any]) -> None:
        self._sidecars = [_Sidecar(name, **sidecar) for name, sidecar in config["sidecars"].items()]
        self._rings: dict[str, shmring.Ring] = {}
        for name, options in config["rings"].items():
            try:
                self._rings[name] = shmring.open_or_create(name, **options)
            except (ShmringError, ValueError) as error:
                _say(f'ring "{name}" cannot be made: {error}')

    def run(self) -> None:
        """Look after everything until standard input ends, or SIGTERM comes."""
        for each in self._sidecars:
            each.get_ready()
        told = self._tell()
        while not select.select([sys.stdin], [], [], _LOOK_EVERY)[0]:
            for each in self._sidecars:
                each.look()
            self._reap()
            if time.monotonic() - told >= _TELL_EVERY:
                told = self._tell()

    def _tell(self) -> float:
        print(json.dumps(self._metrics()), flush=True)
        return time.monotonic()

    def _reap(self) -> None:
        """Reap what sidecars that have ended had started: it is this process's by inheritance."""
        with suppress(ChildProcessError):  # there is no child at all
            while dead := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                if any(dead.si_pid == each.pid for each in self._sidecars):
                    return  # the next look at it wants its status; the others come after that
                os.waitpid(dead.si_pid, 0)

    def _metrics(self) -> dict[str, int]:
        metrics: dict[str, int] = {}
        for each in self._sidecars:
            for key, value in each.metrics().items():
                metrics[f"sidecar.{each.name}.{key}"] = value
        for name, ring in self._rings.items():
            metrics[f"ring.{name}.usedSlots"] = ring.claimed - ring.floor
            metrics[f"ring.{name}.claimed"] = ring.claimed
        return metrics

    def end(self) -> None:
        """End the sidecars, and remove the rings that nobody else uses."""
        for each in self._sidecars:
            each.ask_to_end()
        deadline = time.monotonic() + _GRACE
        for each in self._sidecars:
            each.end(deadline)
        for ring in self._rings.values():
            with suppress(ShmringError):
                ring.recover()
            others = sum(participant["alive"] for participant in ring.participants()) > 1
            ring.close()
            if not others:
                with suppress(RingNotFound):
                    ring.unlink()


def _say(text: str) -> None:
    with suppress(OSError):  # the executor's log may be gone with it
        print(f"shmring: {text}", file=sys.stderr, flush=True)


def main() -> int:
    """``python -m shmring.spark.attendant``, started by the plugin."""

    def stop(number: int, frame: object) -> None:
        raise SystemExit(0)

    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    signal.signal(signal.SIGTERM, stop)
    attendant = _Attendant(json.loads(sys.stdin.readline()))
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        attendant.run()
    except BrokenPipeError:  # so the executor is gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it ends within seconds
        attendant.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
