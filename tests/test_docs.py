"""Runs the examples of README and of the pages of docs/ as they are printed there."""

from __future__ import annotations

from pathlib import Path

import pytest
from blocks import ROOT, Page, blocks_of
from programs import ended

pytestmark = pytest.mark.slow
# `make wheel-check` runs the first two; the others start Sparks.
LONG = ("README.md", "docs/start/spark.md", "docs/guides/model-server.md")
LONG += ("docs/guides/streaming.md", "docs/guides/dataframe.md")


def pages() -> list[Path]:
    """README and all pages that are kept in docs/."""
    which = ("--cached", "--others", "--exclude-standard", "README.md", "docs")
    listed = ended("git", "ls-files", *which, cwd=ROOT, check=True)
    return sorted(ROOT / line for line in listed.stdout.splitlines() if line.endswith(".md"))


def marked(page: Path) -> object:
    name = str(page.relative_to(ROOT))
    marks = [pytest.mark.spark] if "pyspark" in page.read_text() else []
    if name in LONG:
        marks.append(pytest.mark.long)
    return pytest.param(page, id=name, marks=marks)


@pytest.mark.parametrize("page", [marked(page) for page in pages() if blocks_of(page)])
def test_page_does_what_it_says(page: Path, name: str, tmp_path: Path) -> None:
    Page(page, tmp_path, f"{name}-").run()
