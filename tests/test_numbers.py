"""The core's numbers that stand again in Java, where the compiler wants them, are the core's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

NATIVE = Path(__file__).parent.parent / "native"


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
