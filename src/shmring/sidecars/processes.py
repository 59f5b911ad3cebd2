"""Processes that a sidecar or Spark's plugin starts, and starts again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Generic, TypeVar

_LOOK_EVERY = 0.05
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
    stdout, descriptors, environment, before : of the process; the last one is called in it
    """

    kind: ClassVar[str] = "process"

    def __init__(
        self,
        command: Sequence[str],
        *,
        leads: bool,
        stdout: int | None = None,
        descriptors: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
        before: Callable[[], None] | None = None,
    ) -> None:
        self._leads = leads
        self._buried = False
        self._popen = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            pass_fds=descriptors,
            env=environment,
            process_group=0 if leads else None,
            preexec_fn=before,
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
            if time.monotonic() > deadline:
                self.signal(signal.SIGKILL)
                self._popen.wait()
                break
            time.sleep(_LOOK_EVERY)

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
    """A process that is to be there always, whichever it is just now.

    Parameters
    ----------
    start : starts one
    sidecar : for which it is there

    Raises
    ------
    OSError : the first one cannot be started
    """

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
