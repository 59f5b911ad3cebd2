"""Programs in Java that tests run to their end, and what they are sent."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Iterator

from programs import ended

Java = Callable[..., list[str]]


def message(i: int) -> bytes:
    """The text of a number, and dots up to a length that follows from it."""
    return str(i).encode().ljust(i % 700, b".")


def check(command: list[str]) -> str:
    """Run a program; its exceptions are the test's. What it has printed."""
    return ended(*command, timeout=600, check=True).stdout


@contextlib.contextmanager
def beside(command: list[str]) -> Iterator[None]:
    """Run a program beside what the block does; its exceptions are the test's."""
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    try:
        yield
        _, errors = process.communicate(timeout=600)
    finally:
        process.kill()
    assert process.returncode == 0, errors.decode()
