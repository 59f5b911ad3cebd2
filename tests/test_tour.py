"""docs/tour.md names functions that are in the files it names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
STEPS = re.findall(r"`(\w+)\(\)`\s+in\s+`([^`]+)`", (ROOT / "docs" / "tour.md").read_text())


@pytest.mark.parametrize(("function", "file"), STEPS)
def test_step_of_the_tour_is_a_function_of_its_file(function: str, file: str) -> None:
    assert re.search(rf"^\w[\w \t*]*\b{function}\(", (ROOT / file).read_text(), re.MULTILINE)


def test_tour_names_a_function_for_each_step() -> None:
    assert len(STEPS) >= len(
        re.findall(r"^\d+\. ", (ROOT / "docs" / "tour.md").read_text(), re.MULTILINE)
    )
