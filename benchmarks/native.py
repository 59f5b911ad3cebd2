"""Builds and runs the C half of the benchmarks (benchmarks/native)."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.harness import Sample, Unavailable
from benchmarks.payload import unique_name

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "bench"
PROBE_SECONDS = 0.01


def _call(*command: str | Path) -> str | None:
    """Run it; why it failed, if it did."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return f"{command[0]} failed:\n{done.stdout[-1000:]}{done.stderr[-1000:]}"
    return None


@functools.cache
def _problem() -> str | None:
    """Build; what is in the way, if anything is, which one try tells."""
    if not shutil.which("cmake"):
        return "needs cmake and a C compiler"
    return _call(
        "cmake",
        *("-S", ROOT, "-B", BUILD),
        *("-DCMAKE_BUILD_TYPE=Release", "-DSHMRING_BENCHMARKS=ON"),
    ) or _call("cmake", "--build", BUILD, "--target", "shmring_benchmarks")


def build() -> Path:
    """Build libshmring and the programs, optimised; the folder where the programs are.

    Raises
    ------
    Unavailable : no CMake or no compiler, or the build failed
    """
    if problem := _problem():
        raise Unavailable(problem)
    return BUILD / "benchmarks" / "native"


def run(program: str, what: str, seconds: float, **options: Any) -> dict[str, float]:
    """Run ``shmring_bench_<program> <what> key=value ...`` and read its JSON."""
    words = [f"{key}={value}" for key, value in {**options, "seconds": seconds}.items()]
    done = subprocess.run(
        [build() / f"shmring_bench_{program}", what, *words],
        capture_output=True,
        text=True,
        timeout=60 + 10 * seconds,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{program} {what} {' '.join(words)}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def limit(what: str, seconds: float, **options: Any) -> dict[str, float]:
    """Limits of the machine: memcpy or cacheline.

    Raises
    ------
    Unavailable : a cache line's way, on one core
    """
    if what == "cacheline" and len(os.sched_getaffinity(0)) < 2:
        raise Unavailable("needs two cores")  # its two sides spin until the other one has answered
    return run("limits", what, seconds, **options)


def line() -> float:
    """Nanoseconds of a cache line there and back at this moment: virtual cores move."""
    return limit("cacheline", PROBE_SECONDS)["median_ns"]


def ring(what: str, seconds: float, **options: Any) -> dict[str, float]:
    """The ring from C: stream or pingpong."""
    path = Path(f"/dev/shm/shmring.{unique_name()}")
    try:
        return run("ring", what, seconds, path=path, **options)
    finally:
        for left in (path, Path(f"{path}-pong")):
            left.unlink(missing_ok=True)


def memcpy(seconds: float, *, block: int, working: int) -> Sample:
    """memcpy in blocks through a working set; the figure is GB/s."""
    return Sample(limit("memcpy", seconds, block=block, working=working)["gb_s"])
