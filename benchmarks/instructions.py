"""How many instructions does a message take? Counted by callgrind, so that no noise is in it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

from benchmarks import native
from benchmarks.harness import Question, Row, Sample, Settings, Target, Unavailable
from benchmarks.payload import unique_name

__all__ = ["question"]

FEW, MANY = 5_000, 15_000  # messages; what comes before and after them cancels out

# No two starts of Python take the same path, so counting begins with shmring_crc32c().
_PYTHON = """
import itertools, os, sys
import shmring
from shmring._shmring import crc32c

def rounds(out, inp, messages):
    message = bytes(64)
    for _ in itertools.repeat(None, messages):
        out.push(message)
        inp.pop()

ring = shmring.create(path=sys.argv[1], slots=1024)
out, inp = ring.producer(), ring.consumer("a")
rounds(out, inp, 1000)  # until the interpreter has specialised it
crc32c(b"")
rounds(out, inp, int(sys.argv[2]))
os._exit(0)
"""


def _collected(path: Path, command: list[str | Path], *options: str) -> int:
    """What callgrind counts of a program that uses a ring at `path`."""
    if not shutil.which("valgrind"):
        raise Unavailable("needs valgrind (Debian's package of that name)")
    tool = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", *options]
    try:
        done = subprocess.run(
            [*tool, *command], capture_output=True, text=True, timeout=300, check=False
        )
    finally:
        path.unlink(missing_ok=True)
    found = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode or not found:
        raise RuntimeError(f"valgrind {command[0]}: {done.stderr.strip()[-1000:]}")
    return int(found[1])


@cache
def _counted(messages: int, take: bool) -> int:
    path = Path(f"/dev/shm/shmring.{unique_name()}")
    program = native.build() / "shmring_bench_instructions"
    words = [f"path={path}", f"messages={messages}", f"take={int(take)}"]
    return _collected(path, [program, "count", *words])


def _each(take: bool) -> float:
    return (_counted(MANY, take) - _counted(FEW, take)) / (MANY - FEW)


def _push(_seconds: float) -> Sample:
    return Sample(_each(take=False))


def _take(_seconds: float) -> Sample:
    return Sample(_each(take=True) - _each(take=False))


def _python(_seconds: float) -> Sample:
    path = Path(f"/dev/shm/shmring.{unique_name()}")
    few, many = (
        _collected(
            path, [sys.executable, "-c", _PYTHON, path, str(n)], "--zero-before=shmring_crc32c"
        )
        for n in (FEW, MANY)
    )
    return Sample((many - few) / (MANY - FEW))


def question(settings: Settings) -> Question:
    """One thread, messages of 64 bytes one by one, the loop around the calls included."""
    del settings
    rows = [
        Row("push", "instructions", _push, (Target(130),), True, rounds=1),
        Row("take, read and release", "instructions", _take, (Target(280),), True, rounds=1),
        Row("Python: push and pop", "instructions", _python, (), True, rounds=1),
    ]
    return Question(
        "instructions", "How many instructions does a message take?", rows, warm_up=False
    )
