"""The jar of an installation that was built without Spark's jars."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from programs import ended

import shmring
from shmring.spark import jar_path

NATIVE = Path(__file__).parents[2] / "native"
ASK = """
import sys, shmring
shmring.__file__ = sys.argv[1]
from shmring.spark import jar_path
print(jar_path())
"""


@pytest.fixture
def installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installation's file that has sources as CMakeLists.txt installs them, and no cache yet."""
    sources = tmp_path / "shmring" / "jars" / "src"
    for folder in ("java", "resources", "jni"):
        shutil.copytree(NATIVE / "jvm" / folder, sources / "jvm" / folder)
    for folder in ("include", "src"):
        shutil.copytree(NATIVE / "core" / folder, sources / "core" / folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "shmring" / "__init__.py"


@pytest.mark.long
def test_the_jar_is_made_once_and_works(installation: Path, tmp_path: Path, name: str) -> None:
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = [sys.executable, "-c", ASK, str(installation)]
    both = [
        subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    outcomes = [process.communicate() for process in both]
    assert [process.returncode for process in both] == [0, 0], outcomes
    (made,) = {out.strip() for out, _ in outcomes}
    assert sorted(said.count("making the jar") for _, said in outcomes) == [0, 1]
    assert sorted(file.name for file in Path(made).parent.iterdir()) == ["lock", "shmring.jar"]
    again = ended(*command, env=environment)
    assert (again.stdout.strip(), again.stderr) == (made, "")

    program = tmp_path / "Look.java"
    program.write_text(
        "class Look { public static void main(String[] a) {"
        " System.out.println(io.shmring.Ring.attachReadOnly(a[0]).info().slots()); } }"
    )
    with shmring.create(name, slots=2048, temporary=True):
        found = ended("java", "-cp", made, program, name)
    assert found.stdout.strip() == "2048", found.stderr


@pytest.mark.parametrize(
    ("path", "missing"), [("", "a JDK of Java 17"), ("jdk", "a C compiler")], ids=["java", "cc"]
)
def test_what_is_missing_is_said_in_a_line(
    installation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, missing: str
) -> None:
    folder = tmp_path / "tools"
    folder.mkdir()
    if path:
        (folder / "javac").symlink_to(str(shutil.which("javac")))
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(shmring, "__file__", str(installation))
    with pytest.raises(shmring.ShmringError, match=missing) as caught:
        jar_path()
    assert "\n" not in str(caught.value)
