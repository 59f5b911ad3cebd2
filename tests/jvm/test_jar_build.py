"""The jar of an installation that was built without Spark's jars."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from programs import ended

import shmring
from shmring.spark import jar_path, jvm

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


@pytest.fixture
def kept(installation: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A jar in the cache, made under a umask that forbids nothing."""

    def run(*command: str) -> None:
        if "--create" in command:
            Path(command[command.index("--file") + 1]).write_bytes(b"jar")

    monkeypatch.setattr(jvm, "_run", run)
    monkeypatch.setattr(shmring, "__file__", str(installation))
    before = os.umask(0)
    try:
        return Path(jar_path())
    finally:
        os.umask(before)


def test_nobody_else_may_write_what_the_cache_keeps(kept: Path) -> None:
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    for folder in (kept.parent, kept.parent.parent, kept.parent.parent.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert Path(jar_path()) == kept


@pytest.mark.parametrize("place", ["jar", "folder", "cache"])
@pytest.mark.parametrize("fault", ["mode", "link", "owner"])
def test_jar_that_another_user_may_have_planted_is_refused(
    kept: Path, place: str, fault: str
) -> None:
    path = {"jar": kept, "folder": kept.parent, "cache": kept.parent.parent}[place]
    if fault == "mode":
        path.chmod(0o777)
    elif fault == "link":
        path.rename(path.with_name("elsewhere"))
        path.symlink_to("elsewhere")
    elif os.geteuid() == 0:
        os.chown(path, 65534, -1)
    else:
        pytest.skip("wants a file of another user")
    with pytest.raises(shmring.ShmringError, match="not loaded from the cache") as caught:
        jar_path()
    assert f"other users may write {path} (owner" in str(caught.value)


@pytest.mark.parametrize("fault", ["link", "hard link", "FIFO", "mode"])
def test_lock_that_is_no_file_of_this_user_alone_is_refused(
    kept: Path, tmp_path: Path, fault: str
) -> None:
    kept.unlink()
    lock, other = kept.with_name("lock"), tmp_path / "another file"
    other.write_text("kept")
    lock.unlink()
    match fault:
        case "link":
            lock.symlink_to(other)
        case "hard link":
            lock.hardlink_to(other)
        case "FIFO":
            os.mkfifo(lock)
        case _:
            lock.touch()
            lock.chmod(0o666)
    with pytest.raises(shmring.ShmringError, match="cannot be kept") as caught:
        jar_path()
    assert str(lock) in str(caught.value)
    assert other.read_text() == "kept"


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
