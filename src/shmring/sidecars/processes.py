"""A process that a sidecar or Spark's plugin starts, and what that process starts in its turn."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence

__all__ = ["Child"]

_LOOK_EVERY = 0.05


class Child:
    """A process, without standard input.

    Parameters
    ----------
    command
    leads : it leads a process group: signals reach what it has started too, and that ends with it.
        The caller must be a child subreaper, for else these processes are not its own to reap
    stdout, descriptors, environment, before : of the process; the last one is called in it
    """

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

    def signal(self, number: int) -> None:
        """Send a signal to the process, or to all of its group."""
        with contextlib.suppress(ProcessLookupError):
            if self._leads:
                os.killpg(self._popen.pid, number)
            else:
                self._popen.send_signal(number)

    def bury(self) -> None:
        """Kill what a process that has ended has started itself."""
        if self._leads:
            self.signal(signal.SIGKILL)

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
