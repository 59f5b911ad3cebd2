"""`shmring docs`: where the documentation lies that a wheel brings."""

from __future__ import annotations

import json
import sys
from importlib.metadata import metadata
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from shmring.cli import app


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


@pytest.fixture
def pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with the pages of an installation, whether this one has any or not."""
    monkeypatch.setattr(sys.modules["shmring.cli"], "_FOLDER", tmp_path)
    return tmp_path


@pytest.fixture
def first(pages: Path) -> Path:
    (pages / "index.html").touch()
    return pages / "index.html"


def test_docs_prints_where_the_first_page_lies(first: Path) -> None:
    assert run("docs").stdout == f"{first}\n"
    assert json.loads(run("docs", "--json").stdout) == {"path": str(first)}


def test_docs_without_pages_says_how_they_are_made(pages: Path) -> None:
    said = run("docs")
    assert (said.exit_code, said.stdout) == (1, "")
    assert "`make docs`" in said.stderr


def test_the_page_of_a_package_index_says_what_works_without_the_source_tree() -> None:
    page = metadata("shmring").json["description"]
    assert "`shmring docs`" in page
    for of_the_tree in ("`make ", ".md", "<!--", "docs/"):
        assert of_the_tree not in page
