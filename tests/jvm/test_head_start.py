"""A head start for the producers, given from Java."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

import shmring


def waits(ring: shmring.Ring) -> bool:
    return any(seat["name"] == "c" and seat["empty_waits"] for seat in ring.seats())


def dies(ring: shmring.Ring, until: Callable[..., Any]) -> None:
    """Somebody whom the consumer clears away between two slices of its wait."""
    code = (
        "import os, signal, sys, shmring\n"
        "ring = shmring.attach(sys.argv[1])\n"
        "other = ring.consumer('other', name='dies', ephemeral=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    process = subprocess.run([sys.executable, "-c", code, ring.name])
    assert process.returncode == -signal.SIGKILL
    until(lambda: all(seat["name"] != "dies" for seat in ring.seats()))


@pytest.mark.parametrize("call", ["poll", "drain"])
def test_a_take_waits_until_so_many_lie_ahead(
    ring: shmring.Ring, java: Callable[..., list[str]], until: Callable[..., Any], call: str
) -> None:
    with ring.producer() as out:
        process = subprocess.Popen(
            java("HeadStartCheck", ring.name, call), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        try:
            until(lambda: waits(ring) or process.poll() is not None)
            for _ in range(2):
                out.push(b"x")
                dies(ring, until)
            for _ in range(8):
                out.push(b"x")
            said, errors = process.communicate(timeout=600)
        finally:
            process.kill()
    assert process.returncode == 0, errors.decode()
    assert said == b"10\n"
