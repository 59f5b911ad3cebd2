"""Uses what is published as somebody would who has nothing else.

    release_check.py DIST WORK [--here]

Each wheel has what it should, once. The wheel for this machine is installed into an empty
environment of each Python that is here, with a PATH that has no compiler and no Java; there
README's blocks run, all but Spark's. With a JRE and `[spark]` all of README runs, the page on
Spark's first lines, and the notebook. The sdist is built. Spark fetches the jar from the Maven
repository. The wheel of aarch64 is used under qemu-user, with Debian's Python, which apt downloads.
`--here`: only the wheel for this machine, with one Python and a JRE.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from interpreters import SUPPORTED, interpreters

ROOT = Path(__file__).resolve().parent.parent
NOT_THERE = ("cc", "gcc", "clang", "javac", "jar", "zig", "make", "cmake", "ninja")
SHELL = ("bash", "sh", "env")
SPARKS = ("dirname", "java", "ps", "uname", "cp")  # commands of Spark's scripts, and a JRE
# JVMs that live for seconds: the second compiler and the verification of Spark's classes cost what
# they gain, and more. The tests' settings leave out Spark's UI.
SHORT_LIVED = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
SUBMIT = f"--properties-file {ROOT / 'tests/spark-defaults.conf'} pyspark-shell"
OF_SPARK = ("A Spark job, one line more", "A model beside Spark")  # sections of README
MACHINES = ("x86_64", "aarch64")
FOREIGN = "aarch64"
LARGEST_PAGES = 1_000_000  # bytes, as they lie in the wheel
DEBIAN = ("libpython3.11-minimal", "libpython3.11-stdlib", "python3.11-minimal", "libc6", "zlib1g")
DEBIAN += ("libexpat1", "libgcc-s1", "libcrypt1", "libffi8")

TEN_LINES = """
import os, shmring
name = f"release-{os.getpid()}"
with shmring.open_or_create(name, slots=1024, temporary=True) as ring:
    with ring.producer() as out, ring.consumer("billing") as inp:
        out.push(b"hello")
        out.push_end()
        print([bytes(message) for message in inp])
print(shmring.__version__)
"""


def run(*command: object, path: str | None = None, cwd: Path | None = None) -> str:
    """Run a command; what it says."""
    words = [str(word) for word in command]
    print("+", " ".join(words).splitlines()[0][:100], flush=True)
    variables = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}  # pip leaves compiling to imports
    variables |= dict.fromkeys(("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS"), SHORT_LIVED)
    variables["PYSPARK_SUBMIT_ARGS"] = SUBMIT
    variables.pop("PYTHONPATH", None)
    variables.pop("JAVA_HOME", None)
    if path is not None:
        variables["PATH"] = path
    done = subprocess.run(words, cwd=cwd, env=variables, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{done.stdout}{done.stderr}{words[0]} failed with status {done.returncode}")
    return done.stdout


def empty_environment(venv: Path, python: Path, wheel: str, *tools: str) -> str:
    """Install a wheel into an environment of its own; a PATH with that and these tools alone."""
    run(python, "-m", "venv", "--clear", "--without-pip", venv)
    (venv / "tools").mkdir()
    for tool in tools:
        found = shutil.which(tool)
        if found is None:
            sys.exit(f"the release check needs {tool}")
        (venv / "tools" / tool).symlink_to(found)
    path = f"{venv / 'bin'}{os.pathsep}{venv / 'tools'}"
    assert not any(shutil.which(tool, path=path) for tool in NOT_THERE)
    install(venv, path, wheel)
    return path


def install(venv: Path, path: str, *packages: str) -> None:
    """Install packages into an environment, which has no pip of its own."""
    pip = (sys.executable, "-m", "pip", "--python", venv / "bin/python")
    words = ("install", "-q", "--no-compile", "-c", ROOT / "constraints.txt", *packages)
    run(*pip, *words, path=path)


def check_contents(wheel: Path, machines: Sequence[str]) -> None:
    """Check that a wheel has all that a user of any language needs, and each library once."""
    with zipfile.ZipFile(wheel) as archive:
        files = archive.namelist()
        pages = [file for file in archive.infolist() if file.filename.startswith("shmring/docs/")]
        with archive.open("shmring/jars/shmring.jar") as file, zipfile.ZipFile(file) as jar:
            in_jar = set(jar.namelist())
    names = Counter(Path(file).name for file in files)
    extension = [file for file in files if re.fullmatch(r"shmring/_shmring\..*so", file)]
    assert len(extension) == 1, extension
    for name in ("libshmring.so", "shmring.h", "shmring.pc", "shmringConfig.cmake", "py.typed"):
        assert names[name] == 1, f"{wheel.name} has {names[name]} files {name}"
    for name in ("LICENSE", "NOTICE"):
        assert any(file.endswith(f".dist-info/licenses/{name}") for file in files), name
        assert f"META-INF/{name}" in in_jar, name
    for machine in machines:
        assert f"io/shmring/linux-{machine}/libshmring_jni.so" in in_jar, machine
    for page in ("index.html", "java/index.html", "licenses/sphinx.txt"):
        assert f"shmring/docs/{page}" in files, page
    size = sum(page.compress_size for page in pages)
    assert size <= LARGEST_PAGES, f"the pages in {wheel.name} take {size:,} bytes"
    print(
        f"  {wheel.name}: {len(files)} files, among them the jar for {' and '.join(machines)} "
        f"and {size:,} bytes of pages"
    )


def check_here(wheel: Path, work: Path, version: str, python: Path) -> None:
    """README without Spark, where there is a wheel and nothing else."""
    venv = work / f"venv-{version}"
    path = empty_environment(venv, python, str(wheel), *SHELL)
    without = (f"--without={heading}" for heading in OF_SPARK)
    page = (ROOT / "tests/blocks.py", ROOT / "README.md", *without)
    print(run(venv / "bin/python", *page, path=path, cwd=work), end="")
    print(f"  Python {version}: README without Spark")


def check_spark(wheel: Path, work: Path, python: Path) -> None:
    """All of README, the first lines of Spark, and the notebook, with a JRE and no JDK."""
    venv = work / "venv-spark"
    path = empty_environment(venv, python, f"{wheel}[spark]", *SHELL, *SPARKS)
    said = run(venv / "bin/shmring", "docs", path=path, cwd=work)
    assert Path(said.rstrip("\n")).name == "index.html", said
    pages = (ROOT / "README.md", ROOT / "docs/start/spark.md")
    print(run(venv / "bin/python", ROOT / "tests/blocks.py", *pages, path=path, cwd=work), end="")
    install(venv, path, "nbclient", "ipykernel")
    notebook = Path(shutil.copy(ROOT / "spark_examples/functions.ipynb", work))
    run(venv / "bin/jupyter-execute", "--inplace", notebook, path=path, cwd=work)
    last = json.loads(notebook.read_text())["cells"][-1]
    # Spark may log to stderr before and after the line.
    said = [each["text"] for each in last["outputs"] if each["name"] == "stdout"]
    assert said == [["equal\n"]], last
    print("  Spark, with a JRE alone: README, the first lines of Spark, and the notebook")


def check_sdist(sdist: Path, work: Path) -> None:
    """Build a wheel from the sdist with this machine's compiler, as pip does it for a user."""
    shutil.rmtree(work / "from-sdist", ignore_errors=True)
    run(
        *(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", work / "from-sdist", sdist)
    )
    print("  the sdist builds")


def debian_python(work: Path) -> Path:
    """The root of Debian's Python of the other machine, unpacked and not installed."""
    root, apt = work / "debian", work / "apt"
    for folder in (root, apt / "lists/partial", apt / "cache/archives/partial"):
        folder.mkdir(parents=True, exist_ok=True)
    (apt / "status").touch()
    own = (Path("/etc/apt/sources.list.d/debian.sources"), Path("/etc/apt/sources.list"))
    sources = next(file for file in own if file.exists())  # where this machine gets its packages
    options = (
        *("-o", f"Dir::State::lists={apt}/lists", "-o", f"Dir::State::status={apt}/status"),
        *("-o", f"Dir::Cache={apt}/cache", "-o", f"Dir::Etc::sourcelist={sources}"),
        *("-o", "Dir::Etc::sourceparts=-", "-o", "APT::Architecture=arm64"),
        *("-o", "APT::Architectures::=arm64", "-o", "APT::Sandbox::User=root"),
    )
    if not (root / "usr/bin/python3.11").exists():
        run("apt-get", *options, "-qq", "update")
        run("apt-get", *options, "-qq", "download", *DEBIAN, cwd=apt)
        for package in apt.glob("*.deb"):
            run("dpkg-deb", "-x", package, root)
    return root


def check_foreign(wheel: Path, work: Path) -> None:
    """Import the other machine's wheel under qemu-user, and run the ten lines."""
    run(ROOT / "scripts/need", "qemu-aarch64", "qemu-user")
    root = debian_python(work)
    site = work / "site-aarch64"
    shutil.rmtree(site, ignore_errors=True)
    run(
        *(sys.executable, "-m", "pip", "install", "-q", "--target", site, "--only-binary=:all:"),
        *("--platform", "manylinux_2_28_aarch64", "--platform", "manylinux2014_aarch64"),
        *("--platform", "manylinux_2_17_aarch64", "--python-version", "3.11", "--no-deps"),
        *("--implementation", "cp", "--abi", "cp311", "--abi", "abi3", wheel, "posix_ipc"),
    )
    said = run(
        *("qemu-aarch64", "-L", root, "-E", f"PYTHONHOME={root}/usr", "-E", f"PYTHONPATH={site}"),
        *(
            root / "usr/bin/python3.11",
            "-c",
            f"import platform; print(platform.machine()){TEN_LINES}",
        ),
    )
    assert said.startswith("aarch64\n[b'hello']\n"), said
    print("  aarch64 under qemu-user: import and ten lines")


def check_maven(repository: Path, work: Path) -> None:
    """Let Spark fetch the jar from the repository, and read a ring with the jar."""
    (pom,) = repository.rglob("*.pom")
    shutil.rmtree(work / "ivy", ignore_errors=True)
    code = f"""
import os, shmring
from pyspark.sql import SparkSession
name = f"release-maven-{{os.getpid()}}"
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
builder = builder.config("spark.jars.packages", "io.shmring:shmring-spark:{pom.parent.name}")
builder = builder.config("spark.jars.repositories", "{repository.as_uri()}")
spark = builder.config("spark.jars.ivy", "{work}/ivy").getOrCreate()
with shmring.create(name, slots=1024, temporary=True) as ring, ring.producer() as out:
    out.push(b"hello")
    rows = spark.read.format("shmring").load(name).select("message").collect()
print([bytes(row.message) for row in rows])
spark.stop()
"""
    said = run(sys.executable, "-c", code, cwd=work)
    assert said.endswith("[b'hello']\n"), said
    print("  Spark reads a ring with the jar from the Maven repository")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dist", type=Path, help="folder with what is published")
    parser.add_argument("work", type=Path, help="folder for what is made on the way")
    parser.add_argument("--here", action="store_true", help="only the wheel for this machine")
    given = parser.parse_args()
    dist, work = given.dist.resolve(), given.work.resolve()
    for made in sorted(dist.glob("*.whl")):
        check_contents(made, (platform.machine(),) if given.here else MACHINES)
    (wheel,) = dist.glob(f"*_{platform.machine()}.whl")
    here = interpreters()
    if not here:
        sys.exit(f"the release check needs a Python of {', '.join(SUPPORTED)} with venv and pip")
    for version, python in () if given.here else here.items():
        check_here(wheel, work, version, python)
    check_spark(wheel, work, next(iter(here.values())))
    if given.here:
        return
    (sdist,) = dist.glob("*.tar.gz")
    check_sdist(sdist, work)
    check_maven(dist / "maven", work)
    if platform.machine() != FOREIGN:
        (foreign,) = dist.glob(f"*_{FOREIGN}.whl")
        check_foreign(foreign, work)


if __name__ == "__main__":
    main()
