"""The C header and library as they are installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from blocks import blocks_of
from programs import ended

import shmring

ROOT = Path(__file__).parent.parent


def test_the_extension_has_its_own_core_and_lends_it_to_nobody() -> None:
    """It calls no library of the same names that a program loads beside it."""
    extension = str(shmring._shmring.__file__)
    said = ended("nm", "-D", extension, check=True)
    symbols = [line.split()[-2:] for line in said.stdout.splitlines()]
    assert [name for kind, name in symbols if kind == "T"] == ["PyInit__shmring"]
    assert not [name for _, name in symbols if name.startswith("shmring_")]


def test_the_header_can_be_included_from_cpp(tmp_path: Path) -> None:
    source = tmp_path / "include.cpp"
    source.write_text("#include <shmring.h>\nint main() { return SHMRING_OK; }\n")
    subprocess.run(
        ["c++", "-Wall", "-Werror", "-fsyntax-only", "-I", shmring.get_include(), str(source)],
        check=True,
    )


# --- the examples, as docs/start/c.md says; test_docs.py runs the page itself -----------------


def build_commands() -> list[str]:
    """The lines of the page's block that builds C programs: prefix, pkg-config (two), CMake."""
    blocks = blocks_of(ROOT / "docs" / "start" / "c.md")
    return next(b.text for b in blocks if "get_include()" in b.text).splitlines()


def run(commands: list[str], folder: Path) -> None:
    """In a shell where `python` and `cmake` are this environment's, and nothing leads to us."""
    tools = str(Path(sys.executable).parent)
    env = {k: v for k, v in os.environ.items() if k not in ("LD_LIBRARY_PATH", "PYTHONPATH")}
    env["PATH"] = f"{tools}:{env['PATH']}"
    (folder / "examples").symlink_to(ROOT / "examples")
    script = "\n".join(["set -eu", *commands])
    ended("bash", "-c", script, cwd=folder, env=env, check=True)


def test_programs_that_cmake_installs_find_the_library(tmp_path: Path, name: str) -> None:
    prefix, _, _, cmake = build_commands()
    run([prefix, cmake, "cmake --install build/c --prefix installed"], tmp_path)
    env = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}
    try:
        subprocess.run([tmp_path / "installed/bin/two", name], env=env, check=True, timeout=120)
        with shmring.attach(name) as ring, ring.consumer("default") as inp:
            assert list(inp) == [b"hello"]
    finally:
        shmring.unlink(name)
