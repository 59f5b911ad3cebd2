"""Uses what is published as somebody would who has nothing else: release_check.py DIST WORK.

The wheel for this machine is installed into an empty environment of each Python that is here, with
a PATH that has no compiler and no JDK; there the demo and README's ten lines run, and with a JRE
README's Spark job and a table. The sdist is
built. The wheel of aarch64 is used under qemu-user, with Debian's Python, which apt downloads.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
NOT_THERE = ("cc", "gcc", "clang", "javac", "zig", "make", "cmake")
FOREIGN = "aarch64"
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


TABLE = """
import os, shmring
from pyspark.sql import SparkSession
name = f"release-table-{os.getpid()}"
spark = shmring.spark.configure(SparkSession.builder.master("local[1]")).getOrCreate()
with shmring.create(name, slots=1024, temporary=True) as ring, ring.producer() as out:
    out.push(b"hello")
    rows = spark.read.format("shmring").load(name).select("message").collect()
print([(len(rows), bytes(row.message)) for row in rows])
spark.stop()
"""


def run(*command: object, path: str | None = None, cwd: Path | None = None) -> str:
    """Run a command; what it says."""
    words = [str(word) for word in command]
    print("+", " ".join(words).splitlines()[0][:100], flush=True)
    variables = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    variables.pop("PYTHONPATH", None)
    variables.pop("JAVA_HOME", None)
    if path is not None:
        variables["PATH"] = path
    done = subprocess.run(words, cwd=cwd, env=variables, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{done.stdout}{done.stderr}{words[0]} failed with status {done.returncode}")
    return done.stdout


def pythons() -> list[Path]:
    """Each Python that is tested and is here: pyenv's, or else the one that runs this."""
    found = [
        python
        for version in PYTHONS
        for python in Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}")
    ]
    return found or [Path(sys.executable)]


def check_here(wheel: Path, work: Path, python: Path) -> None:
    """Install the wheel into an empty environment, and use it with nothing else in PATH."""
    venv = work / f"venv-{python.name}"
    run(python, "-m", "venv", "--clear", venv)
    constraints = ROOT / "constraints.txt"
    run(venv / "bin/pip", "install", "-q", "--only-binary=:all:", "-c", constraints, wheel)
    path = str(venv / "bin")
    assert not any(shutil.which(tool, path=path) for tool in NOT_THERE)
    inside = venv / "bin/python"
    assert "hello" in run(inside, "-c", TEN_LINES, path=path, cwd=work)
    assert "prints hello" in run(venv / "bin/shmring", "demo", path=path, cwd=work)
    readme = (ROOT / "README.md").read_text()
    blocks = re.findall(r"^```python\n(# (?:two|one)\.py\n.*?)^```", readme, re.M | re.S)
    said = ""
    for block in sorted(blocks, reverse=True):  # two.py, then one.py
        text = block.replace('"orders"', f'"release-{os.getpid()}"')
        said += run(inside, "-c", text, path=path, cwd=work)
    run(venv / "bin/shmring", "unlink", f"release-{os.getpid()}", path=path, cwd=work)
    assert said == "hello\n", said
    print(f"  {python}: ten lines, demo and README's blocks run")


def check_spark(wheel: Path, work: Path) -> None:
    """README's Spark programs, and a table, from the wheel, where there is a JRE and no JDK."""
    venv, place = work / "venv-spark", work / "spark"
    run(pythons()[0], "-m", "venv", "--clear", venv)
    constraints = ROOT / "constraints.txt"
    run(venv / "bin/pip", "install", "-q", "-c", constraints, f"{wheel}[spark]")
    shutil.rmtree(place, ignore_errors=True)
    tools = place / "tools"
    tools.mkdir(parents=True)
    for tool in ("bash", "sh", "env", "dirname", "java", "ps", "uname"):  # Spark's scripts, a JRE
        found = shutil.which(tool)
        if found is not None:
            (tools / tool).symlink_to(found)
    path = f"{venv / 'bin'}{os.pathsep}{tools}"
    assert not any(shutil.which(tool, path=path) for tool in NOT_THERE)
    readme = (ROOT / "README.md").read_text()
    for name, text in re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```", readme, re.M | re.S):
        own = text.replace('"scoring"', f'"scoring-{os.getpid()}"')
        (place / name).write_text(own)
    (place / "table.py").write_text(TABLE)
    sidecar = subprocess.Popen(
        [venv / "bin/shmring", "sidecar", "scorer:Scorer", "--name", f"scoring-{os.getpid()}"],
        cwd=place,
        env={"PATH": path, "HOME": str(place)},
        stderr=subprocess.DEVNULL,
    )
    try:
        said = run(venv / "bin/python", "job.py", path=path, cwd=place)
        assert said.endswith("1498500\n"), said
    finally:
        sidecar.terminate()
        sidecar.wait()
    said = run(venv / "bin/python", "table.py", path=path, cwd=place)
    assert said.endswith("[(1, b'hello')]\n"), said
    print("  Spark, with a JRE alone: README's job through a sidecar, and a table")


def check_sdist(sdist: Path, work: Path) -> None:
    """Build a wheel from the sdist with this machine's compiler."""
    shutil.rmtree(work / "from-sdist", ignore_errors=True)
    run(
        *(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"),
        *("-C", "cmake.define.SHMRING_JVM=AUTO", "-w", work / "from-sdist", sdist),
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
    """Check all of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dist", type=Path, help="folder with what is published")
    parser.add_argument("work", type=Path, help="folder for what is made on the way")
    given = parser.parse_args()
    dist, work = given.dist.resolve(), given.work.resolve()
    (wheel,) = dist.glob(f"*_{platform.machine()}.whl")
    for python in pythons():
        check_here(wheel, work, python)
    check_spark(wheel, work)
    (sdist,) = dist.glob("*.tar.gz")
    check_sdist(sdist, work)
    check_maven(dist / "maven", work)
    if platform.machine() != FOREIGN:
        (foreign,) = dist.glob(f"*_{FOREIGN}.whl")
        check_foreign(foreign, work)


if __name__ == "__main__":
    main()
