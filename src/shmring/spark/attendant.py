"""The process that the Spark plugin starts beside each executor, for its rings and sidecars.

The attendant reads one line of JSON from standard input::

    {"rings": {"orders": {"slots": "65536"}},
     "sidecars": {"scorer": {"function": "scorer:Scorer", "workers": "2", "shared": "true"},
                  "other": {"command": "./other -x"}}}

Each entry has the user's settings ``spark.shmring.ring.NAME.*`` or
``spark.shmring.sidecar.NAME.*``, as the user wrote them: the attendant checks them.

The attendant ends when standard input ends: the executor holds the other end of this pipe, which
closes however the executor dies. Every second the attendant writes a line of JSON with metrics.
It writes the first line once clients can find the rings of the sidecars with a function.

A sidecar with a function is served by workers of this process. A command is any program of the
user's. If a sidecar is "shared", only one of the host's attendants runs it at a time; when this
attendant ends, another one starts the sidecar anew.

A sidecar that cannot be started, or dies again and again, does not disturb the others: this process
imports no code of the user's, and each sidecar has its own pauses between restarts.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import select
import shlex
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import shmring
from shmring.common.arguments import number_of
from shmring.common.own_file import open_own
from shmring.common.words import counted
from shmring.errors import RingNotFound, ShmringError
from shmring.ring import attach_or_make
from shmring.ring.names import SHM_FOLDER, remove
from shmring.sidecars.functions import parts_of
from shmring.sidecars.options import (
    LOADING_SECONDS,
    PluginOptions,
    ServerOptions,
    part,
    read_settings,
)
from shmring.sidecars.rings import serving, sweep
from shmring.sidecars.supervisor import GRACE, LOOK_EVERY, Child, Keeper, Supervisor, say
from shmring.sidecars.wire import request_ring_name

_TELL_EVERY = 1.0
_GRACE = 20.0  # seconds from SIGTERM to SIGKILL: a command may have processes of its own to end
_AGAIN = 5.0  # seconds between attempts to start a sidecar that cannot be started
_NEVER = float("inf")
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None)


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class _Turn:
    """A lock: the attendant that has it runs a sidecar that all executors of this host share.

    The kernel releases the lock of an attendant that dies.
    """

    def __init__(self, sidecar: str) -> None:
        self._path = f"{SHM_FOLDER}/.shmring-turn-{request_ring_name(sidecar)}"
        self._file: int | None = None

    def take(self) -> bool:
        """Take the lock; return whether this attendant has it.

        Raises OSError if the lock's file is not this user's own.
        """
        if self._file is None:
            # Another attendant has the lock, or has just removed the lock's file.
            with suppress(BlockingIOError, FileNotFoundError):
                self._file = self._lock()
        return self._file is not None

    def _lock(self) -> int | None:
        # Refuse a file of another user, who could open it and keep the lock for ever.
        file = open_own(self._path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(file), os.stat(self._path)):
                return file
        except BaseException:
            os.close(file)
            raise
        # Give this file up: since it was opened, the last holder of the lock has removed it, and
        # other attendants make and lock another file.
        os.close(file)
        return None

    def end(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                os.unlink(self._path)
            os.close(self._file)
            self._file = None


class _Sidecar(ABC):
    """One sidecar of the executor: a function in workers, or a command."""

    def __init__(self, name: str, keepers: Sequence[Keeper[Any]], *, shared: bool) -> None:
        self.name = name
        self.keepers = keepers  # keepers of the sidecar's processes
        self._turn = _Turn(name) if shared else None
        self._due = 0.0

    @abstractmethod
    def look(self) -> None:
        """Start the sidecar, or replace its ended processes, once the pause is over."""

    def get_ready(self) -> None:
        """Remove rings of killed processes; for a function, then make the ring for its clients."""
        sweep(self.name)

    def ask_to_end(self) -> None:
        for keeper in self.keepers:
            keeper.process.signal(signal.SIGTERM)

    def end(self, asked: float) -> None:
        """Wait until the processes have ended, and then give a shared sidecar's lock back."""
        for keeper in self.keepers:
            keeper.process.end(asked + _GRACE)
        sweep(self.name)
        if self._turn is not None:
            self._turn.end()

    def _has_turn(self) -> bool:
        try:
            return self._turn is None or self._turn.take()
        except OSError as error:
            if self._is_due():
                self._cannot_start(error)
            return False

    def _is_due(self) -> bool:
        return time.monotonic() >= self._due

    def _cannot_start(self, error: Exception) -> None:
        self._due = time.monotonic() + _AGAIN
        say(f'sidecar "{self.name}" cannot be started: {error}; tried again in {_AGAIN:g} s')

    # CHANGE: edit this for a new metric
    def metrics(self) -> dict[str, int]:
        waiting = 0
        with (
            suppress(ShmringError),
            shmring.attach(request_ring_name(self.name), read_only=True) as ring,
        ):
            waiting = ring.claimed - ring.floor
        return {
            "running": int(any(keeper.process.status is None for keeper in self.keepers)),
            "restarts": sum(keeper.restarts for keeper in self.keepers),
            "workers": len(serving(self.name)),
            "waitingSlots": waiting,
        }


class _Function(_Sidecar):
    """A sidecar with a function. Workers, which are children of this process, serve it."""

    def __init__(self, name: str, function: str, options: PluginOptions) -> None:
        parts_of(function)
        self._start_timeout = options.get("timeout") or LOADING_SECONDS
        self._supervisor = Supervisor(function, name, apart=True, **part(ServerOptions, options))
        self._is_started = self._is_announced = False
        super().__init__(name, self._supervisor.keepers, shared=options.get("shared", False))

    def get_ready(self) -> None:
        super().get_ready()
        self._open()

    def _open(self) -> bool:
        try:
            self._supervisor.open()
        except (OSError, ValueError, ShmringError) as error:
            self._cannot_start(error)
        return self._supervisor.is_open

    def look(self) -> None:
        supervisor = self._supervisor
        if supervisor.is_replaced and not supervisor.is_open:
            # Do not open the ring again: a sidecar of the same name has replaced this one.
            return
        if supervisor.is_open and not supervisor.is_ready and not supervisor.is_findable:
            # Another supervisor has removed the ring: leave it, so that _open() makes a new one.
            self._leave(keep=True)
        if not self._has_turn():
            if supervisor.is_open and serving(self.name):
                # Leave the ring, because another executor's workers serve it now. Until now, this
                # supervisor's entry in the ring made clients wait for workers.
                self._leave()
        elif supervisor.is_open or (self._is_due() and self._open()):
            if not self._is_started:
                self._is_started = True
                with suppress(OSError):  # supervisor.look() tries again, and reports the error
                    supervisor.start(self._start_timeout)
            supervisor.look()
            self._announce()

    def _announce(self) -> None:
        if not self._is_announced and self._supervisor.is_ready:
            self._is_announced = True
            pids = self._supervisor.pids
            say(
                f'sidecar "{self.name}" is ready: {counted(len(pids), "worker")} '
                f"({' '.join(map(str, pids))}), a ring of {self._supervisor.slots} slots"
            )

    # CHANGE: edit this for a new option of a sidecar
    def end(self, asked: float) -> None:
        self._supervisor.end(asked + GRACE)
        self._leave()
        super().end(asked)

    def _leave(self, *, keep: bool = False) -> None:
        with suppress(ShmringError):
            self._supervisor.close(keep=keep)


class _Command(_Sidecar):
    """A sidecar that is a program of the user's."""

    def __init__(self, name: str, command: str, *, shared: bool) -> None:
        self._command = shlex.split(command)
        self._started: list[Keeper[Child]] = []
        super().__init__(name, self._started, shared=shared)

    def look(self) -> None:
        for keeper in self._started:
            keeper.look(_NEVER)
        if not self._started and self._is_due() and self._has_turn():
            try:
                self._started.append(Keeper(self._start, self.name))
            # Try again later if there is no such program, no memory, or no room for another
            # process.
            except OSError as error:
                self._cannot_start(error)

    def _start(self) -> Child:
        stderr = sys.stderr.fileno()
        return Child(self._command, leads=True, stdout=stderr, preexec_fn=_die_with_parent)


class _Attendant:
    def __init__(self, config: dict[str, Any]) -> None:
        self._sidecars = list(_made(config["sidecars"]))
        self._rings: dict[str, shmring.Ring] = {}
        self._untold = b""
        for name, options in config["rings"].items():
            try:
                slots = _slots_of(name, options)
                ring = self._rings[name] = attach_or_make(name, None, slots=slots)[0]
                if ring.slots < slots:
                    say(f'ring "{name}" exists already with {ring.slots} slots and stays as it is')
            except (ShmringError, ValueError) as error:
                say(f'ring "{name}" cannot be made: {error}')

    def run(self, stop: int) -> None:
        """Look after sidecars and rings until standard input ends, or `stop` becomes readable."""
        for each in self._sidecars:
            each.get_ready()
        told = self._tell()
        while not select.select([sys.stdin, stop], [], [], LOOK_EVERY)[0]:
            for each in self._sidecars:
                each.look()
            self._reap()
            if time.monotonic() - told >= _TELL_EVERY:
                told = self._tell()

    def _tell(self) -> float:
        """Write a line of metrics, or the rest of the last one if the pipe had no room for it."""
        if not self._untold:
            self._untold = f"{json.dumps(self._metrics())}\n".encode()
        with suppress(BlockingIOError):
            self._untold = self._untold[os.write(sys.stdout.fileno(), self._untold) :]
        return time.monotonic()

    def _reap(self) -> None:
        """Reap processes that sidecars left behind, and that this child subreaper has inherited."""
        with suppress(ChildProcessError):  # raised if this process has no children
            while dead := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                keepers = [keeper for each in self._sidecars for keeper in each.keepers]
                if any(dead.si_pid == keeper.process.pid for keeper in keepers):
                    # Leave a keeper's process to the keeper, which needs the exit status. A later
                    # call reaps other ended processes.
                    return
                os.waitpid(dead.si_pid, 0)

    # CHANGE: edit this for a new metric
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
        """End the sidecars, and remove the rings that no other process uses."""
        for each in self._sidecars:
            each.ask_to_end()
        asked = time.monotonic()
        for each in self._sidecars:
            each.end(asked)
        for ring in self._rings.values():
            try:
                self._leave(ring)
            except (OSError, ShmringError) as error:  # report the error, and go on
                say(f'ring "{ring.name}" cannot be removed: {error}')

    def _leave(self, ring: shmring.Ring) -> None:
        """Close a ring, and remove it unless another process uses it.

        The ring is removed before it is closed: else it would stay for good if this process is
        killed between the two steps. If several attendants end at once, each sees the others'
        handles. So an attendant that has not removed the ring checks again after it has closed its
        handle: the last one to check sees no other.
        """
        with suppress(ShmringError):
            ring.recover()
        uuid = bytes.fromhex(ring.info.uuid)
        with suppress(RingNotFound):
            try:
                is_gone = remove(ring.path, uuid, is_used=lambda living: len(living) > 1)
            finally:
                ring.close()
            if not is_gone:
                remove(ring.path, uuid, is_used=bool)


def _slots_of(ring: str, settings: dict[str, str]) -> int:
    for setting in settings.keys() - {"slots"}:
        prefix = f"spark.shmring.ring.{ring}"
        raise ValueError(f"{prefix}.{setting} is none of {prefix}.slots")
    return number_of(settings["slots"])


def _made(sidecars: dict[str, dict[str, str]]) -> Iterator[_Sidecar]:
    for name, settings in sidecars.items():
        prefix = f"spark.shmring.sidecar.{name}"
        function, command = settings.pop("function", None), settings.pop("command", None)
        try:
            options = read_settings(prefix, settings)
            if function is not None and command is None:
                yield _Function(name, function, options)
            elif command is not None and function is None:
                yield _Command(name, command, shared=options.get("shared", False))
            else:
                raise ValueError(f"{prefix} wants one of .function and .command")
        except ValueError as error:  # do not try again: the options stay as wrong as they are
            say(f'sidecar "{name}" cannot be started: {error}')


def _stop_on_sigterm() -> int:
    """Return a descriptor that becomes readable at SIGTERM, so that no call is interrupted."""
    stop, told = os.pipe()
    os.set_blocking(told, False)
    signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    return stop


def main() -> int:
    """``python -m shmring.spark.attendant``, started by the plugin."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    stop = _stop_on_sigterm()
    os.set_blocking(sys.stdout.fileno(), False)
    attendant = _Attendant(json.loads(sys.stdin.readline()))
    try:
        attendant.run(stop)
    except BrokenPipeError:  # the executor is gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    finally:
        attendant.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
