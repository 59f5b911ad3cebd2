"""`shmring top` in a real terminal of 80 x 24."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator

import pyte
import pytest

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

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._fd)


@pytest.fixture
def terminal(name: str) -> Iterator[Terminal]:
    top = Terminal(sys.executable, "-m", "shmring", "top", name, "--interval", "0.1")
    yield top
    top.close()


def test_a_ring_is_shown_as_it_changes(ring: shmring.Ring, terminal: Terminal) -> None:
    terminal.shows("0 of 1,024 slots in use", "slots a second")
    ring.subscribe("billing")
    with ring.producer("feed") as out:
        out.push_many([b"x"] * 1024)
        terminal.shows("1,024 of 1,024 slots in use", "billing", "feed")
    ring.drop_branch("billing")
    terminal.shows("slots a second", without="billing")
    terminal.process.terminate()
    assert terminal.process.wait(PATIENCE) == 143
