"""Where the package may lie, and what it does without: home, locale, docstrings, room."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from programs import ended

import shmring

PACKAGE = Path(shmring.__file__).parent
TEN_LINES = """
import shmring
with shmring.create(NAME, slots=1024, temporary=True) as ring:
    with ring.producer() as out, ring.consumer("billing") as inp:
        out.push(b"hello")
        assert inp.pop(timeout=60) == b"hello" or exit("not said")
    print(ring.stats()["slots"], shmring.__file__)
"""
OTHERS = str(Path(np.__file__).parents[1])  # other packages; ours as well, but last


def python(
    code: str, *options: str, path: tuple[str, ...], **env: str
) -> subprocess.CompletedProcess[str]:
    """Run code where nothing is to be found but what lies in these folders."""
    begin = f"import sys; sys.path[:0] = {list(path)!r}\n"
    return ended(sys.executable, *options, "-c", begin + code, env=env)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A folder, with a blank in its name, that holds the package and cannot be written to."""
    folder = tmp_path / "a folder"
    shutil.copytree(PACKAGE, folder / "shmring", ignore=shutil.ignore_patterns("__pycache__"))
    folder.chmod(0o555)
    return folder


def test_package_works_in_any_folder_without_home_locale_and_docstrings(
    elsewhere: Path, name: str
) -> None:
    said = python(
        f"NAME = {name!r}\n{TEN_LINES}",
        *("-I", "-S", "-B", "-OO"),
        path=(str(elsewhere), OTHERS),
        LC_ALL="C",
    )
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout == f"1024 {elsewhere}/shmring/__init__.py\n"


def test_header_library_and_jar_are_found_beside_it(elsewhere: Path) -> None:
    code = """
import shmring.spark
print(shmring.get_include(), shmring.get_library(), shmring.spark.jar_path(), sep="\\n")
"""
    said = python(code, "-B", path=(str(elsewhere), OTHERS))
    assert said.stdout.splitlines() == [
        f"{elsewhere}/shmring/include",
        f"{elsewhere}/shmring/lib/libshmring.so",
        f"{elsewhere}/shmring/jars/shmring.jar",
    ], said.stderr


def test_commands_have_their_help_without_docstrings() -> None:
    for command in ((), ("create",), ("produce",), ("sidecar",), ("journal", "run")):
        command = [sys.executable, "-OO", "-m", "shmring", *command, "--help"]
        said = ended(*command, check=True)
        assert "Usage: " in said.stdout


def test_a_zip_archive_says_that_it_is_not_enough(tmp_path: Path) -> None:
    archive = shutil.make_archive(str(tmp_path / "shmring"), "zip", PACKAGE.parent, "shmring")
    said = python("import shmring", path=(archive, OTHERS))
    assert said.returncode == 1
    (error,) = (x for x in said.stderr.splitlines() if x.startswith("ImportError: the compiled"))
    assert f"cannot be loaded from {archive}/shmring" in error
    assert "Install shmring with pip" in error


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")
def test_a_user_without_home_is_told_where_the_jar_cannot_be_kept(tmp_path: Path) -> None:
    code = """
import os
from shmring.errors import ShmringError
from shmring.spark import jvm
os.setuid(54321)
try:
    jvm._cache()
except ShmringError as error:
    print(error)
"""
    said = python(code, path=(str(PACKAGE.parent), OTHERS))
    assert "set XDG_CACHE_HOME" in said.stdout, said.stderr
