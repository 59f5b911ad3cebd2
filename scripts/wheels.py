"""Makes what is published: wheels.py DIST WORK [--here].

Wheels for manylinux_2_28 on x86-64 and aarch64, the sdist, and the jar as a Maven artifact, all on
one machine. The compiler is zig's, from PyPI: it brings each machine's C library, in the version
that the tag promises. Needs a JDK, and pyspark beside this Python, for the jar; the pages that
each wheel brings are those of `make docs`. `--here`: the wheel for this machine, and nothing else.

Prints a line for each file that is made; what the tools say goes into WORK/wheels.log.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import maven

ROOT = Path(__file__).resolve().parent.parent
MACHINES = ("x86_64", "aarch64")
GLIBC = "2.28"
PAGES = ROOT / "out/docs"
LOG = "wheels.log"


def run(log: Path, *command: object, **variables: str) -> str:
    """Run a command; what it says, which goes into the log, and is shown if it fails."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words, cwd=ROOT, env={**os.environ, **variables}, capture_output=True, text=True
    )
    with log.open("a") as file:
        print("+", *words, f"\n{done.stdout}{done.stderr}", file=file)
    if done.returncode:
        sys.exit(
            f"{done.stdout}{done.stderr}{words[0]} failed with status {done.returncode}: {log}"
        )
    return done.stdout


def spark_jars() -> Path:
    """Spark's jars, against which ours is compiled."""
    spec = find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("wheels.py needs pyspark beside this Python")
    return Path(spec.submodule_search_locations[0]) / "jars"


def compiler(machine: str, folder: Path) -> Path:
    """A command that compiles for a machine."""
    folder.mkdir(parents=True, exist_ok=True)
    cc = folder / f"cc-{machine}"
    cc.write_text(
        f'#!/bin/sh\nexec {sys.executable} -m ziglang cc -target {machine}-linux-gnu.{GLIBC} "$@"\n'
    )
    cc.chmod(0o755)
    return cc


def defines(machine: str, work: Path) -> dict[str, object]:
    """CMake definitions for a build for a machine."""
    return {
        "CMAKE_SYSTEM_NAME": "Linux",
        "CMAKE_SYSTEM_PROCESSOR": machine,
        "CMAKE_C_COMPILER": compiler(machine, work / "zig"),
        # The binutils of this machine strip no other's.
        "CMAKE_SHARED_LINKER_FLAGS": "-s",
        "CMAKE_MODULE_LINKER_FLAGS": "-s",
    }


def make_jar(work: Path, machines: Sequence[str]) -> Path:
    """The jar with the JNI library of each machine."""
    tree = work / "jni"
    shutil.rmtree(tree, ignore_errors=True)
    for machine in (*machines[1:], machines[0]):  # the jar with the last of them
        build = work / f"jar-{machine}"
        options = defines(machine, work) | {
            "CMAKE_BUILD_TYPE": "Release",
            "SHMRING_JVM": "ON",
            "SHMRING_PYSPARK_JARS": spark_jars(),
            "SHMRING_JNI_TREE": tree,
        }
        given = (f"-D{name}={value}" for name, value in options.items())
        run(work / LOG, "cmake", "-S", ROOT, "-B", build, "-G", "Ninja", *given)
        run(work / LOG, "cmake", "--build", build, "--target", "shmring_jni")
        lies = tree / f"io/shmring/linux-{machine}"
        lies.mkdir(parents=True)
        shutil.copy(build / "native/jvm/libshmring_jni.so", lies)
    run(work / LOG, "cmake", "--build", build, "--target", "shmring_jar")
    return build / "native/jvm/shmring.jar"


def make_wheel(machine: str, work: Path, dist: Path, jar: Path) -> Path:
    """The wheel for a machine, checked by auditwheel and abi3audit."""
    raw = work / f"raw-{machine}"
    shutil.rmtree(raw, ignore_errors=True)
    shutil.rmtree(work / f"wheel-{machine}", ignore_errors=True)
    options = defines(machine, work)
    options |= {"SHMRING_JVM": "ON", "SHMRING_JAR": jar, "SHMRING_PAGES": PAGES}
    run(
        *(work / LOG, sys.executable, "-m", "pip", "wheel", ROOT, "--no-deps"),
        *("--no-build-isolation", "-w", raw, "-C", f"build-dir={work / f'wheel-{machine}'}"),
        *("-C", "install.strip=false"),
        *(word for k, v in options.items() for word in ("-C", f"cmake.define.{k}={v}")),
        _PYTHON_HOST_PLATFORM=f"linux-{machine}",
    )
    (built,) = raw.glob("*.whl")
    tag = f"manylinux_{GLIBC.replace('.', '_')}_{machine}"
    check_glibc(built, machine, work)
    run(work / LOG, "wheel", "tags", "--platform-tag", tag, "--remove", built)
    (wheel,) = raw.glob(f"*-{tag}.whl")
    run(work / LOG, "abi3audit", "--strict", wheel)
    return Path(shutil.move(wheel, dist))


def check_glibc(wheel: Path, machine: str, work: Path) -> None:
    """Check that the wheel needs nothing but the C library that its tag promises."""
    said = run(work / LOG, "auditwheel", "show", wheel)
    found = re.search(rf'platform tag:\s"manylinux_(\d+)_(\d+)_{machine}"', said)
    if found is None or (int(found[1]), int(found[2])) > tuple(map(int, GLIBC.split("."))):
        sys.exit(said)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dist", type=Path, help="folder for what is made")
    parser.add_argument("work", type=Path, help="folder for what is made on the way, and the log")
    parser.add_argument("--here", action="store_true", help="only the wheel for this machine")
    given = parser.parse_args()
    dist, work = given.dist.resolve(), given.work.resolve()
    if not (PAGES / "index.html").exists():
        sys.exit(f"wheels.py needs the pages in {PAGES}: make docs")
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    shutil.rmtree(dist, ignore_errors=True)
    dist.mkdir(parents=True)
    work.mkdir(parents=True, exist_ok=True)
    (work / LOG).unlink(missing_ok=True)
    machines = (platform.machine(),) if given.here else MACHINES
    jar = make_jar(work, machines)
    for machine in machines:
        make_wheel(machine, work, dist, jar)
    if not given.here:
        build = (sys.executable, "-m", "build", "--sdist", "--no-isolation", "-o", dist, ROOT)
        run(work / LOG, *build)
        maven.publish(jar, spark_jars(), work, dist / "maven")
    for made in sorted(file for file in dist.rglob("*") if file.is_file()):
        print(f"{made.stat().st_size:>10,}  {made.relative_to(dist)}")
    print(f"what the tools said: {work / LOG}")


if __name__ == "__main__":
    main()
