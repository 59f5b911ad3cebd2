"""How many instructions does a message take? Counted by callgrind, so that no noise is in it.

And a request in a sidecar's worker (worker_request.py), of which large ones are told in CPU time.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

from benchmarks import native
from benchmarks.harness import Question, Row, Sample, Settings, Target, Unavailable
from benchmarks.payload import unique_name
from benchmarks.worker_request import MARK

__all__ = ["question"]

PROGRAM = Path(__file__).with_name("worker_request.py")
FEW, MANY = 5_000, 15_000  # messages; what comes before and after them cancels out

# No two starts of Python take the same path, so counting begins with a call into libc.
_PYTHON = """
import itertools, os, sys
import shmring

def rounds(out, inp, messages):
    message = bytes(64)
    for _ in itertools.repeat(None, messages):
        out.push(message)
        inp.pop()

ring = shmring.create(path=sys.argv[1], slots=1024)
out, inp = ring.producer(), ring.consumer("a")
rounds(out, inp, 1000)  # until the interpreter has specialised it
os.getloadavg()
rounds(out, inp, int(sys.argv[2]))
os._exit(0)
"""


def _collected(path: Path | None, command: list[str | Path], *options: str) -> int:
    """What callgrind counts of a program that uses a ring at `path`."""
    if not shutil.which("valgrind"):
        raise Unavailable("needs valgrind (Debian's package of that name)")
    tool = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", *options]
    try:
        done = subprocess.run(
            [*tool, *command], capture_output=True, text=True, timeout=300, check=False
        )
    finally:
        if path is not None:
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
        _collected(path, [sys.executable, "-c", _PYTHON, path, str(n)], f"--zero-before={MARK}")
        for n in (FEW, MANY)
    )
    return Sample((many - few) / (MANY - FEW))


# --- a request in a sidecar's worker ---------------------------------------------------------

SMALL, LARGE = 10, 65_536  # rows of 16 bytes
REQUESTS = (500, 1_500)
ROUND = 16  # large requests that lie ready at a time


def _program(work: str, rows: int, requests: int, rounds: int) -> list[str | Path]:
    name = unique_name()
    return [sys.executable, PROGRAM, work, name, str(rows), str(requests), str(rounds)]


@cache
def _worked(work: str) -> float:
    """Instructions of a small request, with those of the function."""
    few, many = (
        _collected(None, _program(work, SMALL, each, 1), f"--zero-before={MARK}")
        for each in REQUESTS
    )
    return (many - few) / (REQUESTS[1] - REQUESTS[0])


def _small(work: str) -> Callable[[float], Sample]:
    return lambda _seconds: Sample(_worked(work) - _worked("function"))


def _large(work: str) -> Callable[[float], Sample]:
    def run(seconds: float) -> Sample:
        rounds = max(2, int(200 * seconds))
        command = _program(work, LARGE, ROUND, rounds)
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
        return Sample(int(done.stdout) / (rounds * ROUND * LARGE * 16))

    return run


def question(settings: Settings) -> Question:
    """One thread, messages of 64 bytes one by one, the loop around the calls included."""
    del settings
    arrow, ring = "pyarrow alone: export and import", "the ring alone: take, push and release"
    worker = "a sidecar's worker: a request of"
    rows = [
        Row("push", "instructions", _push, (Target(130),), True, rounds=1),
        Row("take, read and release", "instructions", _take, (Target(280),), True, rounds=1),
        Row("Python: push and pop", "instructions", _python, (), True, rounds=1),
        Row(
            f"{worker} 10 rows",
            "instructions",
            _small("worker"),
            (Target(100_000),),
            True,
            rounds=1,
        ),
        Row(f"{arrow}, 10 rows", "instructions", _small("arrow"), (), True, rounds=1),
        Row(f"{ring}, 10 rows", "instructions", _small("ring"), (), True, rounds=1),
        Row(f"{worker} 1 MB", "ns/byte", _large("worker"), (), True),
        Row(f"{arrow}, 1 MB", "ns/byte", _large("arrow"), (), True),
        Row(f"{ring}, 1 MB", "ns/byte", _large("ring"), (), True),
    ]
    return Question(
        "instructions",
        "What does a message cost the CPU, and a request in a sidecar's worker?",
        rows,
        warm_up=False,
    )
