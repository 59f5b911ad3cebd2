"""docs/tour.md names functions that are in the files it names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
JAVA = ROOT / "native/jvm/java/io/shmring"
MOST_WORDS = 900
STEPS = re.findall(r"`(\w+)\(\)`\s+in\s+`([^`]+)`", (ROOT / "docs" / "tour.md").read_text())


@pytest.mark.parametrize(("function", "file"), STEPS)
def test_step_of_the_tour_is_a_function_of_its_file(function: str, file: str) -> None:
    path = JAVA / file if file.endswith(".java") else ROOT / file
    assert re.search(rf"^[\w \t*<>,?.]*\b{function}\(", path.read_text(), re.MULTILINE)


def test_tour_names_a_function_for_each_step() -> None:
    assert len(STEPS) >= len(
        re.findall(r"^\d+\. ", (ROOT / "docs" / "tour.md").read_text(), re.MULTILINE)
    )


def test_tour_is_read_at_once() -> None:
    assert len((ROOT / "docs" / "tour.md").read_text().split()) < MOST_WORDS
