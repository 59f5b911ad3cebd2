"""The numbers of the core and of Python that stand again in Java are the same there."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest

NATIVE = Path(__file__).parent.parent / "native"
PYTHON = NATIVE.parent / "src/shmring"


def numbers(path: str, pattern: str) -> dict[str, int]:
    found = re.findall(pattern, (NATIVE / path).read_text())
    return {name: int(number) for name, number in found}


@pytest.mark.parametrize(
    ("java", "pattern", "prefix"),
    [
        ("Kind", r"int (\w+) = (\d+);", "KIND_"),
        ("Outcome", r"int (\w+) = (-\d+);", ""),
    ],
)
def test_java_has_the_numbers_of_the_core(java, pattern, prefix):
    core = numbers("core/include/shmring.h", r"\bSHMRING_(\w+) = (-?\d+)")
    here = numbers(f"jvm/java/io/shmring/{java}.java", "(?m)" + pattern)
    assert here
    assert here == {name: core[prefix + name] for name in here}


def test_java_has_every_error_of_the_core():
    core = numbers("core/include/shmring.h", r"\bSHMRING_E_(\w+) = (-\d+)")
    assert core == numbers("jvm/java/io/shmring/Status.java", r"(?m)^  (\w+)\((-\d+)\)")


def test_java_has_the_wait_strategies_of_the_core_in_their_order():
    core = numbers("core/include/shmring.h", r"\bSHMRING_WAIT_(\w+) = (\d+)")
    java = (NATIVE / "jvm/java/io/shmring/WaitStrategy.java").read_text()
    found = re.findall(r"(?m)^  ([A-Z_]+)", java)
    assert core == {name: place for place, name in enumerate(found)}


@pytest.mark.parametrize(
    ("python", "java", "name"),
    [
        ("sidecars/wire", "exchange/SidecarHead", "VERSION"),
        ("spark/exchange", "spark/request/PythonRun", "VERSION"),
        ("sidecars/client", "exchange/SidecarClient", "DEATHS"),
    ],
)
def test_java_has_the_numbers_of_python(python: str, java: str, name: str) -> None:
    here = re.findall(rf"(?m)^_{name} = (\d+)", (PYTHON / f"{python}.py").read_text())
    there = (NATIVE / f"jvm/java/io/shmring/{java}.java").read_text()
    assert len(here) == 1
    assert here == re.findall(rf"int {name} = (\d+);", there)


def test_heads_of_messages_have_one_size() -> None:
    """Heads of a sidecar's messages, and of a Python worker's with and without a report."""
    page = (NATIVE.parent / "docs/architecture.md").read_text()
    told = re.findall(r"head has (\d+) bytes for a sidecar, and (\d+) for a worker", page)
    exchange = NATIVE / "jvm/java/io/shmring/exchange"
    sidecars = re.findall(r"int BYTES = (\d+);", (exchange / "SidecarHead.java").read_text())
    workers = re.findall(r"int HEAD_BYTES = (\d+);", (exchange / "WorkerClient.java").read_text())
    assert told == list(zip(sidecars, workers, strict=True))
    formats = {
        size: re.findall(r'(?im)^_head\w* = struct.Struct\("(.+)"\)', (PYTHON / file).read_text())
        for size, file in [(sidecars[0], "sidecars/wire.py"), (workers[0], "spark/exchange.py")]
    }
    for size, found in formats.items():
        assert {str(struct.calcsize(each)) for each in found} == {size}
