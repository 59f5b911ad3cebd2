"""``shmring demo``: README's ten lines in two processes, and what happens."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from itertools import zip_longest
from typing import IO

import click

import shmring
from shmring.cli.output import clean
from shmring.errors import RingNotFound, ShmringError

__all__ = ["ONE", "TWO", "demo"]

# README's programs, on a ring of our own.
ONE = """\
# one.py
import shmring

ring = shmring.open_or_create("orders", slots=65_536)
with ring.consumer("billing", start="earliest") as inp:
    for data in inp:  # until two.py calls push_end()
        print(data.decode())
"""
TWO = """\
# two.py
import shmring

ring = shmring.open_or_create("orders", slots=65_536)
with ring.producer() as out:
    out.push(b"hello")
    out.push_end()
"""

_START_TIMEOUT = 60.0  # seconds for a Python to start, on a machine that is busy
_LOOK_EVERY = 0.01


@click.command()
def demo() -> None:
    """Run README's ten lines: two programs in two processes, and a ring between them."""
    name = f"demo-{os.getpid()}"
    started = time.monotonic()

    def tell(who: str, text: str) -> None:
        click.echo(f"{time.monotonic() - started:6.3f} s  {who:<7} {clean(text)}")

    click.echo("\n".join(side_by_side(_on(ONE, name), _on(TWO, name))))
    click.echo()
    with ExitStack() as stack:
        stack.callback(_remove, name)
        one = stack.enter_context(_Program("one.py", _on(ONE, name), tell))
        ring = stack.enter_context(_await_consumer(name, one))
        tell("ring", f"{ring.path}: {ring.slots:,} slots; one.py has joined its branch, and sleeps")
        two = stack.enter_context(_Program("two.py", _on(TWO, name), tell))
        two.end()
        one.end()
        stats = ring.stats()
        (branch,) = stats["branches"]
        tell(
            "ring",
            f'branch "{branch["name"]}" has released {branch["released"]} of {stats["claimed"]} '
            "slots (the message, and the end marker)",
        )
    tell("ring", "removed, as `shmring unlink` does")


def side_by_side(left: str, right: str) -> list[str]:
    """Two programs, line by line."""
    one, two = left.splitlines(), right.splitlines()
    width = max(map(len, one)) + 4
    return [f"{a:<{width}}{b}".rstrip() for a, b in zip_longest(one, two, fillvalue="")]


def _on(program: str, name: str) -> str:
    return program.replace('"orders"', f'"{name}"')


def _remove(name: str) -> None:
    with suppress(RingNotFound):
        shmring.unlink(name)


class _Program:
    """A process that runs a program; what it says is told line by line."""

    def __init__(self, name: str, code: str, tell: Callable[[str, str], None]) -> None:
        self._name = name
        self._tell = tell
        self._process = subprocess.Popen(
            [sys.executable, "-u", "-c", code],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        tell(name, f"runs as process {self._process.pid}")
        self._listener = threading.Thread(target=self._listen, args=(self._process.stdout,))
        self._listener.start()

    def _listen(self, said: IO[str] | None) -> None:
        for line in said or ():
            self._tell(self._name, f"prints {line.rstrip()}")

    def check(self) -> None:
        """Fail if it has ended already."""
        if self._process.poll() is not None:
            raise ShmringError(f"{self._name} ended with status {self._process.returncode}")

    def end(self) -> None:
        """Wait for its end, which must be a good one."""
        self._process.wait(_START_TIMEOUT)
        self._listener.join()
        if self._process.returncode:
            self.check()
        self._tell(self._name, "has ended")

    def __enter__(self) -> _Program:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._listener.join()


def _await_consumer(name: str, program: _Program) -> shmring.Ring:
    """The ring that the program makes, once the program has joined its branch."""
    deadline = time.monotonic() + _START_TIMEOUT
    ring: shmring.Ring | None = None
    while time.monotonic() < deadline:
        program.check()
        with suppress(RingNotFound):
            ring = ring or shmring.attach(name, read_only=True)
        if ring is not None and any(branch["consumers"] for branch in ring.branches()):
            return ring
        time.sleep(_LOOK_EVERY)
    raise ShmringError(f"one.py has not joined its branch within {_START_TIMEOUT:g} s")
