"""Builds iceoryx2 from its crate (benchmarks/peers/rust), and says how it is started."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tomllib

from benchmarks.harness import Unavailable
from benchmarks.native import ROOT

__all__ = ["command", "version"]

SOURCES = ROOT / "benchmarks" / "peers" / "rust"
BUILD = ROOT / "build" / "peers" / "rust"

# As the JVM's compiler does, and memcpy in C: for the processor that is there.
FLAGS = "-C target-cpu=native"


@functools.cache
def _problem() -> str | None:
    """Build; what is in the way, if anything is, which one try tells."""
    if not shutil.which("cargo"):
        return "iceoryx2 needs cargo (Rust 1.89 or later)"
    done = subprocess.run(
        ["cargo", "build", "--quiet", "--release", "--target-dir", BUILD],
        cwd=SOURCES,
        env={**os.environ, "RUSTFLAGS": FLAGS},
        capture_output=True,
        text=True,
        check=False,
    )
    return f"cargo failed: {done.stderr.strip()[-500:]}" if done.returncode else None


def command(peer: str, yields: bool) -> list[str]:
    """Of a process that publishes or subscribes; cargo builds it once, in a minute or two.

    Parameters
    ----------
    peer : the program
    yields : there are more processes than cores
    """
    if problem := _problem():
        raise Unavailable(problem)
    return [str(BUILD / "release" / peer), *(["yields"] if yields else [])]


def version() -> str:
    plan = tomllib.loads((SOURCES / "Cargo.toml").read_text())
    return str(plan["dependencies"]["iceoryx2"]).lstrip("=")
