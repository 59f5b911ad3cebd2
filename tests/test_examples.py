"""The ten lines are the same in every language: what one sends, each other prints."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from blocks import ROOT

import shmring
from shmring.spark.jvm import jar_path

pytestmark = pytest.mark.java


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The examples, for a ring that each test puts in the place of RING."""
    folder = tmp_path_factory.mktemp("examples")
    for program in ("one", "two"):
        subprocess.run(
            [
                *("cc", str(ROOT / "examples" / "c" / f"{program}.c"), "-o", str(folder / program)),
                *("-I", shmring.get_include(), shmring.get_library()),
                f"-Wl,-rpath,{Path(shmring.get_library()).parent}",
            ],
            check=True,
        )
    return folder


@pytest.fixture
def command(built: Path, tmp_path: Path, name: str) -> Callable[[str, str], list[str]]:
    """How to run one of the programs, on a ring of one's own."""

    def command(language: str, program: str) -> list[str]:
        if language == "c":
            return [str(built / program), name]
        suffix = {"python": f"{program}.py", "java": f"{program.title()}.java"}[language]
        copy = tmp_path / suffix
        copy.write_text((ROOT / "examples" / language / suffix).read_text().replace("orders", name))
        if language == "java":
            return ["java", "-cp", jar_path(), str(copy)]
        return [sys.executable, str(copy)]

    return command


# Each language is both once; tests/jvm/test_pairs.py has all pairs.
@pytest.mark.parametrize(("sender", "reader"), [("python", "c"), ("c", "java"), ("java", "python")])
def test_what_one_language_sends_each_other_prints(
    command: Callable[[str, str], list[str]], name: str, sender: str, reader: str
) -> None:
    try:
        subprocess.run(command(sender, "two"), check=True, timeout=120)
        said = subprocess.run(command(reader, "one"), capture_output=True, check=True, timeout=120)
    finally:
        shmring.unlink(name)
    assert said.stdout == b"hello\n"
