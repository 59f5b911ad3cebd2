"""`shmring check`, and doing what it says."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from programs import ended

import shmring
from shmring.cli import app

ENVIRONMENT = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def shell(command: str) -> subprocess.CompletedProcess[str]:
    return ended("sh", "-c", command, env=ENVIRONMENT)


def check(*arguments: object) -> tuple[int, str]:
    """Its status and what it prints; in this process, as a Python takes half a second to start."""
    words = shlex.split(" ".join(map(str, arguments)))
    said = CliRunner().invoke(app, ["check", *words], prog_name="shmring", catch_exceptions=False)
    assert said.stderr == ""
    return said.exit_code, said.stdout


def commands(text: str) -> list[str]:
    return re.findall(r"^    (.*)$", text, re.MULTILINE)


def says(what: object, status: int, command: str, *words: str) -> str:
    """Check the status and the command (or none) of `shmring check`, and return its text."""
    found, said = check(what)
    assert (found, commands(said)) == (status, [command] if command else [])
    for each in words:
        assert each in said
    return said


def mend(text: str) -> None:
    """Do what it says, which is one thing."""
    (command,) = commands(text)
    said = shell(command)
    assert said.returncode == 0, said.stderr


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)


@pytest.fixture
def ring(name: str) -> Iterator[shmring.Ring]:
    """A ring that the command that mends may remove."""
    with shmring.create(name, slots=1024) as ring:
        yield ring
    if name in shmring.rings():
        shmring.unlink(name)
