"""Making the jar, against the installed pyspark, once, for an installation that has none.

A wheel that was built without Spark's jars has the sources, as one that pip builds in isolation.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from shmring import __version__
from shmring.errors import ShmringError

_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}


class _Spark(NamedTuple):
    jars: Path
    version: str


class _Tools(NamedTuple):
    javac: str
    jar: str
    include: Path
    cc: str


def kept_jar(sources: Path) -> Path:
    """Return the jar for the installed pyspark, in the user's cache; make it if it is missing.

    Parameters
    ----------
    sources : folder with ``core`` and ``jvm``

    Raises
    ------
    ShmringError : a tool for making it is missing, or it cannot be made
    """
    spark = _find_spark()
    folder = _cache() / f"jar-{spark.version}-{platform.machine()}-{_digest(sources)}"
    jar = folder / "shmring.jar"
    if jar.exists():
        return jar
    tools = _find_tools()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(folder / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # the second process finds the jar of the first one
            if not jar.exists():
                print(
                    f"shmring: making the jar for Spark {spark.version} with {tools.javac}; this "
                    f"happens once, it is kept as {jar}",
                    file=sys.stderr,
                )
                _make(sources, spark, tools, jar)
    except OSError as error:
        raise ShmringError(f"the jar for Spark cannot be kept in {folder}: {error}") from error
    return jar


def _cache() -> Path:
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shmring"
    except RuntimeError:  # a user without a name, as in containers
        raise ShmringError(
            "there is no place to keep the jar for Spark: this user has no home; set XDG_CACHE_HOME"
        ) from None


def _find_spark() -> _Spark:
    spec = find_spec("pyspark")
    if spec is not None and spec.submodule_search_locations:
        jars = Path(spec.submodule_search_locations[0]) / "jars"
        for catalyst in jars.glob("spark-catalyst_*.jar"):
            return _Spark(jars, catalyst.stem.rpartition("_")[2].partition("-")[2])
    raise _missing("pyspark (pip install 'pyspark>=4.1')")


def _find_tools() -> _Tools:
    home = os.environ.get("JAVA_HOME")
    javac = shutil.which("javac", path=f"{home}/bin") if home else None
    javac = javac or shutil.which("javac")
    if javac is None:
        raise _missing("a JDK of Java 17 or later (openjdk-17-jdk-headless)")
    found = Path(javac).resolve().parent
    include = found.parent / "include"
    if not (include / "jni.h").exists():
        raise _missing(f"jni.h in {include}")
    cc = shutil.which(os.environ.get("CC") or "cc") or shutil.which("gcc")
    if cc is None:
        raise _missing("a C compiler (gcc)")
    return _Tools(javac, str(found / "jar"), include, cc)


def _missing(what: str) -> ShmringError:
    return ShmringError(
        f"this installation of shmring has no jar, and cannot make one without {what}"
    )


def _make(sources: Path, spark: _Spark, tools: _Tools, jar: Path) -> None:
    with tempfile.TemporaryDirectory(dir=jar.parent, prefix="making-") as made:
        tree = Path(made) / "tree"
        shutil.copytree(sources / "jvm" / "resources", tree)
        _compile_library(sources, tools, tree)
        classes = map(str, sorted((sources / "jvm" / "java").rglob("*.java")))
        options = ("--release", "17", "-proc:none", "-encoding", "UTF-8", "-nowarn", "-parameters")
        _run(tools.javac, *options, "-cp", f"{spark.jars}/*", "-d", str(tree), *classes)
        new = Path(made) / jar.name
        manifest = Path(made) / "manifest.txt"
        manifest.write_text(
            f"Implementation-Title: shmring\nImplementation-Version: {__version__}\n"
        )
        _run(
            *(tools.jar, "--create", "--file", str(new), "--manifest", str(manifest)),
            *("-C", str(tree), "."),
        )
        os.replace(new, jar)


def _compile_library(sources: Path, tools: _Tools, tree: Path) -> None:
    machine = platform.machine().lower()
    folder = tree / "io" / "shmring" / f"linux-{_MACHINES.get(machine, machine)}"
    folder.mkdir(parents=True)
    core, jni = sources / "core", sources / "jvm" / "jni"
    _run(
        *(tools.cc, "-shared", "-fPIC", "-O3", "-DNDEBUG", "-std=c11", "-D_GNU_SOURCE", "-pthread"),
        *("-fvisibility=hidden", f"-Wl,--version-script={jni / 'exports.map'}"),
        *(f"-I{folder}" for folder in (core / "include", core / "src", jni, tools.include)),
        f"-I{tools.include / 'linux'}",
        *_files(core / "src", jni),
        *("-o", str(folder / "libshmring_jni.so")),
    )


def _files(*folders: Path) -> Iterable[str]:
    return (str(file) for folder in folders for file in sorted(folder.glob("*.c")))


def _run(*command: str) -> None:
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        said = (result.stderr or result.stdout).strip().splitlines()
        raise ShmringError(
            f"the jar for Spark cannot be made: {command[0]} says: " + "\n".join(said[-10:])
        )


def _digest(sources: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted(file for file in sources.rglob("*") if file.is_file()):
        content = file.read_bytes()
        digest.update(f"{file.relative_to(sources)}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()[:16]
