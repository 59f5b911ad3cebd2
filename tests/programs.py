"""Programs that have ended, and what they wrote."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import Any


def ended(
    *command: object, check: bool = False, **options: Any
) -> subprocess.CompletedProcess[str]:
    """A command, with options of subprocess.run(); with `check` its status is to be 0."""
    words = [str(word) for word in command]
    done = subprocess.run(words, check=False, capture_output=True, text=True, **options)
    assert not check or done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    return done


def python(code: str, *arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """This Python, with a program."""
    return ended(sys.executable, "-c", textwrap.dedent(code), *arguments, **options)


def cli(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """The command line."""
    return ended(sys.executable, "-m", "shmring", *arguments, **options)
