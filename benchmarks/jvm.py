"""Builds and runs the JVM half of the peers (benchmarks/peers/java)."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness import Unavailable
from benchmarks.native import ROOT
from benchmarks.payload import MESSAGE_BYTES, unique_name
from benchmarks.processes import die_with_parent, pin

__all__ = ["Pairs"]

SOURCES = ROOT / "benchmarks" / "peers" / "java"
BUILD = ROOT / "build" / "peers"
JARS = BUILD / "jars"

# Side.java, without a transport.
COMMON = ("Side", "Peer", "Tally")

# Agrona and Aeron say the first on their pages, Chronicle lists the others for Java 17 on its page
# of Java versions; bounds checks are off as in the scripts of Aeron's samples.
OPTIONS = (
    "-Xmx1g",
    "-XX:+UseSerialGC",
    "-Dagrona.disable.bounds.checks=true",
    "--add-opens=java.base/jdk.internal.misc=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.lang.reflect=ALL-UNNAMED",
    "--add-opens=java.base/java.io=ALL-UNNAMED",
    "--add-opens=java.base/java.util=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=jdk.compiler/com.sun.tools.javac=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=jdk.unsupported/sun.misc=ALL-UNNAMED",
    "--add-exports=jdk.compiler/com.sun.tools.javac.file=ALL-UNNAMED",
)
PATIENCE = 60.0
WARM_UP = 1.0  # seconds: the JVM compiles


def _run(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        text = (done.stdout + done.stderr).strip()
        raise Unavailable(f"{Path(command[0]).name} failed: {text[-500:]}")


def _need(*programs: str, package: str) -> None:
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
        _need("mvn", package="maven")
        shutil.rmtree(JARS, ignore_errors=True)
        made = JARS.with_suffix(".new")
        shutil.rmtree(made, ignore_errors=True)
        goal = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
        _run("mvn", "-q", "-B", "-f", plan, goal, f"-DoutputDirectory={made}")
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
    """What the class ``peer`` needs, itself included."""
    _need("java", "javac", package="openjdk-17-jdk-headless")
    jars = _own() if peer == "ShmringPeer" else _peers()
    classes = BUILD / peer
    sources = [SOURCES / f"{name}.java" for name in (*COMMON, peer)]
    _run("javac", "-nowarn", "-proc:none", "-cp", jars, "-d", classes, *sources)
    return f"{classes}{os.pathsep}{jars}"


class _Side:
    """A JVM that measures when it is told to."""

    def __init__(self, peer: str, core: int | None) -> None:
        path = _class_path(peer.partition("$")[0])

        def prepare() -> None:
            die_with_parent()
            if core is not None:
                pin(core)

        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # end() closes it
        self._process = subprocess.Popen(
            ["java", *OPTIONS, "-cp", path, "Side", peer],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            preexec_fn=prepare,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout

    def tell(self, line: str) -> None:
        self._input.write(f"{line}\n".encode())
        self._input.flush()

    def hear(self) -> str:
        """Its next answer; what libraries print is passed over."""
        while True:
            ready, _, _ = select.select([self._output], [], [], PATIENCE)
            if not ready:
                raise TimeoutError(f"no answer from a JVM within {PATIENCE:g} s")
            line = self._output.readline().decode().strip()
            if not line or line.startswith("failed: "):
                self._errors.seek(0)
                raise RuntimeError(f"{line}\n{self._errors.read().decode()[-2000:]}")
            if line in ("ready", "closed") or line[0] in "{[":
                return line

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()


class Pairs:
    """Two JVMs a peer, each on a core; they stay, so that later rounds find compiled code."""

    def __init__(self) -> None:
        self._sides: dict[str, list[_Side]] = {}
        self._warm: set[tuple[str, str, int]] = set()

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """End them all afterwards."""
        try:
            yield
        finally:
            for peer in list(self._sides):
                self._end(peer)

    def _end(self, peer: str) -> None:
        for side in self._sides.pop(peer, []):
            side.end()

    def _measure(self, peer: str, acts: tuple[str, ...], seconds: float, **options: Any) -> Any:
        if peer not in self._sides:
            cores = [None] if len(acts) == 1 else range(len(acts))
            self._sides[peer] = [_Side(peer, core) for core in cores]
        sides = self._sides[peer]
        folder = Path("/dev/shm") / unique_name()
        folder.mkdir()
        words = {**options, "folder": folder, "seconds": seconds}
        rest = " ".join(f"{key}={value}" for key, value in words.items())
        try:
            for side, act in zip(sides, acts, strict=True):
                side.tell(f"{act} {rest}")
            for side in sides:
                side.hear()
            for side in sides:
                side.tell("go")
            found = [json.loads(side.hear()) for side in sides]
            for side in reversed(sides):  # the first has made what they share
                side.tell("close")
                side.hear()
        except BaseException:
            self._end(peer)
            raise
        finally:
            shutil.rmtree(folder)
        return found

    def measure(self, peer: str, acts: tuple[str, ...], seconds: float, **options: Any) -> Any:
        """What each of the processes found; the first time it is done once before.

        Parameters
        ----------
        peer : a class that is a Peer
        acts : what each process does; one process is not kept on a core
        """
        kind = (peer, options["how"], options["bytes"])
        if kind not in self._warm:
            self._measure(peer, acts, WARM_UP, **options)
            self._warm.add(kind)
        return self._measure(peer, acts, seconds, **options)

    def stream(
        self, peer: str, seconds: float, *, how: str, nbytes: int, threads: bool = False
    ) -> float:
        """Messages one way; bytes a second.

        Parameters
        ----------
        how : "one", "offer" or "batch", which `nbytes` says the size of, or "block"
        threads : two of one process
        """
        acts = ("both",) if threads else ("send", "receive")
        found = self.measure(peer, acts, seconds, how=how, bytes=nbytes)
        sent, received = found[0] if threads else found
        if (sent["bytes"], sent["sum"]) != (received["bytes"], received["sum"]):
            raise RuntimeError(f"{peer} sent {sent}, and {received} arrived")
        return received["bytes"] / (received["end"] - sent["start"]) * 1e9

    def trip(self, peer: str, seconds: float, *, threads: bool = False) -> dict[str, float]:
        """A message there and back, one under way; nanoseconds."""
        acts = ("both",) if threads else ("ping", "pong")
        figures: dict[str, float] = self.measure(
            peer, acts, seconds, how="trip", bytes=MESSAGE_BYTES
        )[0]
        return figures
