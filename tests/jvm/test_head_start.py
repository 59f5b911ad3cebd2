"""A head start for the producers, given from Java."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

import shmring


def waits(ring: shmring.Ring) -> bool:
    return any(seat["name"] == "c" and seat["empty_waits"] for seat in ring.seats())


def test_a_take_waits_until_so_many_lie_ahead(
    ring: shmring.Ring, java: Callable[..., list[str]], until: Callable[..., Any]
) -> None:
    with ring.producer() as out:
        process = subprocess.Popen(
            java("HeadStartCheck", ring.name), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        try:
            until(lambda: waits(ring) or process.poll() is not None)
            for _ in range(10):
                out.push(b"x")
            said, errors = process.communicate(timeout=600)
        finally:
            process.kill()
    assert process.returncode == 0, errors.decode()
    assert said == b"10\n"
