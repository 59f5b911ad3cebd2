"""Fixtures of all tests: processes and threads that a test starts, and how it waits for them."""

from __future__ import annotations

import contextlib
import functools
import os
import select
import signal
import subprocess
import sys
import textwrap
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from patience import PATIENCE, wait_until
from sessions import PATIENCE as PATIENCE_WITH_SPARK


@pytest.fixture
def patience(request: pytest.FixtureRequest) -> float:
    """Seconds that `until` waits."""
    return PATIENCE_WITH_SPARK if request.node.get_closest_marker("spark") else PATIENCE


@pytest.fixture
def until(patience: float) -> Callable[..., None]:
    return functools.partial(wait_until, patience=patience)


class Child:
    """A Python process that talks by lines."""

    def __init__(self, code: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-c", textwrap.dedent(code), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._text = b""

    @property
    def pid(self) -> int:
        return self.process.pid

    def line(self) -> str:
        """The next line it prints."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + PATIENCE
        while b"\n" not in self._text:
            left = deadline - time.monotonic()
            ready, _, _ = select.select([self.process.stdout], [], [], max(left, 0))
            assert ready, "the child said nothing in time"
            more = os.read(self.process.stdout.fileno(), 65536)
            assert more, f"the child ended: {self._errors()}"
            self._text += more
        line, _, self._text = self._text.partition(b"\n")
        return line.decode()

    def say(self, line: str = "") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()

    def kill(self) -> None:
        """SIGKILL, and wait for it."""
        self.process.kill()
        self.process.wait(PATIENCE)

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def end(self) -> str:
        """Wait for its end, which must be a good one; what it printed meanwhile."""
        output, errors = self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == 0, errors.decode()
        assert not errors, errors.decode()
        return (self._text + output).decode()

    def _errors(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read().decode()

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None and not stream.closed:
                stream.close()


@pytest.fixture
def child() -> Iterator[Callable[..., Child]]:
    """Starts Python processes from source code; they are ended with the test."""
    with contextlib.ExitStack() as ends:

        def start(code: str, *arguments: object) -> Child:
            return ends.enter_context(contextlib.closing(Child(code, *map(str, arguments))))

        yield start


@pytest.fixture
def command() -> Iterator[Callable[..., subprocess.Popen[Any]]]:
    """Starts the command line as a process of its own; it is ended with the test."""
    with contextlib.ExitStack() as ends:

        def start(*arguments: object, **options: Any) -> subprocess.Popen[Any]:
            words = [sys.executable, "-m", "shmring", *map(str, arguments)]
            pipe = subprocess.PIPE
            options = {"stdin": pipe, "stdout": pipe, "stderr": pipe, **options}
            process = ends.enter_context(subprocess.Popen(words, **options))
            ends.callback(process.kill)
            return process

        yield start


@pytest.fixture
def in_child() -> Callable[[Callable[[], object]], None]:
    """Runs a function in a forked child, in which it is to succeed."""

    def run(function: Callable[[], object]) -> None:
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                function()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

    return run


class Thread(threading.Thread):
    """A thread whose result or exception join() hands over."""

    def __init__(
        self, function: Callable[..., object], *arguments: object, patience: float
    ) -> None:
        super().__init__(daemon=True)
        self._call = (function, arguments)
        self._patience = patience
        self.result: object = None
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        function, arguments = self._call
        try:
            self.result = function(*arguments)
        except BaseException as error:
            self.error = error

    def outcome(self) -> object:
        self.join(self._patience)
        assert not self.is_alive(), "the thread did not end in time"
        if self.error is not None:
            raise self.error
        return self.result


@pytest.fixture
def thread(patience: float) -> Callable[..., Thread]:
    """Runs a function in a thread; outcome() returns or raises what it did."""
    return functools.partial(Thread, patience=patience)
