"""Tests the wheels with every Python that is here: pythons.py DIST WORK [VERSION ...].

Each Python has an environment of its own, with the wheel that is published for it, and runs the
quick tests of the package.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

from interpreters import interpreters

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ("pytest", "pytest-xdist", "hypothesis", "pyyaml", "pyarrow", "pandas", "polars", "duckdb")
TOOLS += ("nanoarrow", "uvloop")
QUICK = "not (spark or java or kill or crash or database or slow or long)"
# Tests that are the same for all Pythons: slow ones, and tests of the source tree.
NOT_HERE = ("jvm", "spark", "table_ring")
NOT_HERE += ("test_types.py", "test_deploy.py", "test_docs.py", "test_stub.py", "test_version.py")


def test(version: str, python: Path, wheel: Path, work: Path) -> str:
    """Run the tests; the line with which pytest ends."""
    venv = work / f"tests-{version}"
    subprocess.run([python, "-m", "venv", "--clear", venv], check=True)
    pip = (venv / "bin/python", "-m", "pip", "install", "-q", "--only-binary=:all:")
    subprocess.run([*pip, "-c", ROOT / "constraints.txt", wheel, *TOOLS], check=True)
    log = work / f"tests-{version}.log"
    command = [venv / "bin/python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", QUICK]
    command += [f"--ignore=tests/{name}" for name in NOT_HERE]
    with log.open("w") as file:
        done = subprocess.run(
            [*command, "-n", "2", "--dist", "loadfile", "tests"],
            cwd=ROOT,
            env={**os.environ, "PATH": f"{venv / 'bin'}{os.pathsep}{os.environ['PATH']}"},
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    lines = log.read_text().splitlines()
    if done.returncode:
        sys.exit("\n".join([*lines[-40:], f"Python {version} failed: {log}"]))
    return next(line for line in reversed(lines) if re.search(r"\d+ passed", line)).strip("= ")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dist", type=Path, help="folder with the wheels")
    parser.add_argument("work", type=Path, help="folder for environments and logs")
    parser.add_argument("versions", nargs="*", help="only these")
    given = parser.parse_args()
    (wheel,) = given.dist.resolve().glob(f"*_{platform.machine()}.whl")
    for version, python in interpreters().items():
        if version in (given.versions or [version]):
            said = test(version, python, wheel, given.work.resolve())
            print(f"Python {version}: {said}", flush=True)


if __name__ == "__main__":
    main()
