"""`shmring top` of the whole host, in a real terminal of 80 x 24.

A host that has a test's rings and sidecars alone: other sessions' may be there, and in trouble.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator

import pyte
import pytest
from fixture_types import Serve, Until

import shmring

PATIENCE = 120.0


class Terminal:
    """A program on a terminal: what is to be seen there, and what is typed."""

    def __init__(self, *command: str) -> None:
        self._screen = pyte.Screen(80, 24)
        self._stream = pyte.ByteStream(self._screen)
        self._fd, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.process = subprocess.Popen(
            command,
            stdin=other,
            stdout=other,
            stderr=other,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"},
            start_new_session=True,
        )
        os.close(other)

    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self._screen.display)

    def shows(self, *words: str, without: str = "\n\r") -> str:
        """The screen once it has all of these words."""
        deadline = time.monotonic() + PATIENCE
        while without in self.text() or not all(word in self.text() for word in words):
            assert time.monotonic() < deadline, f"{words} are not on\n{self.text()}"
            if select.select([self._fd], [], [], 1.0)[0]:
                self._stream.feed(os.read(self._fd, 65536))
        return self.text()

    def type(self, keys: bytes) -> None:
        os.write(self._fd, keys)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._fd)


@pytest.fixture
def top(name: str, with_small_shm: Callable[..., list[str]]) -> Callable[..., list[str]]:
    """The command, which sees the test's rings that are there already."""

    def top(*options: str) -> list[str]:
        mine = [file for file in os.listdir("/dev/shm") if re.search(rf"\b{name}\b", file)]
        command = [sys.executable, "-m", "shmring", "top", *options]
        return with_small_shm("1g", *command, shared=mine)

    return top


@pytest.fixture
def terminal(top: Callable[..., list[str]]) -> Iterator[Callable[[], Terminal]]:
    started: list[Terminal] = []

    def start() -> Terminal:
        started.append(Terminal(*top("--interval", "0.1")))
        return started[-1]

    yield start
    for each in started:
        each.close()


def test_trouble_comes_first_and_enter_goes_in(
    ring: shmring.Ring, name: str, serve: Serve, terminal: Callable[[], Terminal], until: Until
) -> None:
    (pid,) = serve("double", workers=1).pids  # called as the ring is
    ring.subscribe("billing")
    with ring.producer("feed") as out:
        out.push_many([b"x"] * 1024)
        top = terminal()
        rows = top.shows("stuck", "well", "100%", "drop-branch").splitlines()
        (first,) = [i for i, line in enumerate(rows) if f" {name} " in line and " ring " in line]
        (second,) = [i for i, line in enumerate(rows) if f" {name} " in line and "sidecar" in line]
        assert first < second
        top.type(b"\r")
        top.shows(f"{name}: 1,024 of 1,024 slots in use", "billing", "feed", "slots a second")
        top.type(b"\x1b")
        top.shows("rings and sidecars")
        ring.drop_branch("billing")
        top.shows("well", "Enter goes in", without="stuck")
        os.kill(pid, signal.SIGSTOP)
        top.shows("stuck")
        top.type(b"k")
        top.shows("stopped (`kill -CONT")
        top.type(b"\r")
        top.shows(f'sidecar "{name}"', "0 busy, 0 idle, 0 loading, 1 stopped", "busy share")
        os.kill(pid, signal.SIGCONT)
        top.shows("0 busy, 1 idle, 0 loading, 0 stopped", "requests a second", "time a request")
        top.type(b"q")
        assert top.process.wait(PATIENCE) == 0


def test_many_rings_have_room_on_24_lines(name: str, terminal: Callable[[], Terminal]) -> None:
    rings = [shmring.create(f"{name}-{i:02}", slots=1024, temporary=True) for i in range(20)]
    top = terminal()
    top.shows(f"{name}-00", "20 rings and sidecars")
    for i in range(1, 20):
        top.type(b"\x1b[B")  # a key is read alone
        top.shows(f">  well  {name}-{i:02}")
    assert f"{name}-00" not in top.shows(f"{name}-19")
    top.type(b"q")
    assert top.process.wait(PATIENCE) == 0
    for ring in rings:
        ring.close()


def test_lines_for_machines(ring: shmring.Ring, name: str, top: Callable[..., list[str]]) -> None:
    command = top("--times", "1", "--json")
    said = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    (found,) = [each for each in said["rows"] if each["ring"] == name]
    assert (found["sidecar"], found["alive"], found["lag"]) == (None, 1, 0)
    assert said["findings"] == []
