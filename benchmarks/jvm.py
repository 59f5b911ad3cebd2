"""Builds the JVM's peers (benchmarks/peers/java), and says how they are started."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from pathlib import Path

from benchmarks.harness import Unavailable
from benchmarks.native import ROOT

SOURCES = ROOT / "benchmarks" / "peers" / "java"
BUILD = ROOT / "build" / "peers"
JARS = BUILD / "jars"

# Side.java, without a transport.
COMMON = ("Side", "Peer", "Tally")

# Bounds checks are off as in the scripts of Aeron's samples, and its page asks for what is opened.
# Without its counters a JVM that waits for its turn does not wake up twenty times a second.
OPTIONS = (
    "-Xmx1g",
    "-XX:+UseSerialGC",
    "-XX:-UsePerfData",
    "-Dagrona.disable.bounds.checks=true",
    "--add-opens=java.base/jdk.internal.misc=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
)


def run(*command: str | Path) -> None:
    """Run a tool; if it fails, what it said is why something is not available."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        text = (done.stdout + done.stderr).strip()
        raise Unavailable(f"{Path(command[0]).name} failed: {text[-500:]}")


def need(*programs: str, package: str) -> None:
    """Say which of these programs are missing, and what brings them."""
    if missing := [program for program in programs if not shutil.which(program)]:
        raise Unavailable(f"needs {' and '.join(missing)} ({package})")


def _peers() -> str:
    """The jars of the peers, as a class path; Maven brings them once."""
    if (reason := _why_no_jars()) is not None:
        raise Unavailable(reason)
    return str(JARS / "*")


@functools.cache
def _why_no_jars() -> str | None:
    """Asked once: without a network Maven takes its time, and many rows need them."""
    plan = SOURCES / "pom.xml"
    if JARS.exists() and JARS.stat().st_mtime >= plan.stat().st_mtime:
        return None
    try:
        need("mvn", package="maven")
        shutil.rmtree(JARS, ignore_errors=True)
        made = JARS.with_suffix(".new")
        shutil.rmtree(made, ignore_errors=True)
        goal = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
        run("mvn", "-q", "-B", "-f", plan, goal, f"-DoutputDirectory={made}")
        made.rename(JARS)
        os.utime(JARS)
    except Unavailable as reason:
        return str(reason)
    return None


@functools.cache
def _own() -> str:
    from shmring.spark import jar_path

    try:
        return str(jar_path())
    except Exception as error:
        raise Unavailable(f"no jar of shmring: {error}") from None


@functools.cache
def _class_path(peer: str) -> str:
    """Class path of everything that the class ``peer`` needs, itself included."""
    need("java", "javac", package="openjdk-17-jdk-headless")
    jars = _own() if peer == "ShmringPeer" else _peers()
    classes = BUILD / peer
    sources = [SOURCES / f"{name}.java" for name in (*COMMON, peer)]
    run("javac", "-nowarn", "-proc:none", "-cp", jars, "-d", classes, *sources)
    return f"{classes}{os.pathsep}{jars}"


def command(peer: str) -> list[str]:
    """Command line of a JVM that is one side of the class ``peer``."""
    return ["java", *OPTIONS, "-cp", _class_path(peer), "Side", peer]
