"""How many instructions does a message take? Counted by callgrind, so that no noise is in it."""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

from benchmarks import native
from benchmarks.harness import Question, Row, Sample, Settings, Target, Unavailable
from benchmarks.payload import unique_name

__all__ = ["question"]

FEW, MANY = 5_000, 15_000  # messages; what comes before and after them cancels out


@cache
def _counted(messages: int, take: bool) -> int:
    if not shutil.which("valgrind"):
        raise Unavailable("needs valgrind (Debian's package of that name)")
    path = Path(f"/dev/shm/shmring.{unique_name()}")
    program = native.build() / "shmring_bench_instructions"
    words = [f"path={path}", f"messages={messages}", f"take={int(take)}"]
    tool = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
    try:
        done = subprocess.run(
            [*tool, program, "count", *words],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    finally:
        path.unlink(missing_ok=True)
    found = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode or not found:
        raise RuntimeError(f"valgrind {program.name}: {done.stderr.strip()[-1000:]}")
    return int(found[1])


def _each(take: bool) -> float:
    return (_counted(MANY, take) - _counted(FEW, take)) / (MANY - FEW)


def _push(_seconds: float) -> Sample:
    return Sample(_each(take=False))


def _take(_seconds: float) -> Sample:
    return Sample(_each(take=True) - _each(take=False))


def question(settings: Settings) -> Question:
    """One thread, messages of 64 bytes one by one, the loop around the calls included."""
    del settings
    rows = [
        Row("push", "instructions", _push, (Target(130),), True, rounds=1),
        Row("take, read and release", "instructions", _take, (Target(280),), True, rounds=1),
    ]
    return Question(
        "instructions", "How many instructions does a message take?", rows, warm_up=False
    )
