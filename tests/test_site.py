"""Tests of scripts/site.py, which lays the pages of a version beside those of others."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

publish = runpy.run_path(str(Path(__file__).parents[1] / "scripts" / "site.py"))["publish"]


def test_each_version_keeps_its_pages_and_the_newest_release_is_the_first(tmp_path: Path) -> None:
    site, pages = tmp_path / "site", tmp_path / "pages"
    (site / "java").mkdir(parents=True)
    pages.mkdir()
    for version in ("0.9.0", "0.10.0", "0.10.1rc1", "0.2.0"):
        (pages / "index.html").write_text(version)
        publish(pages, version, site)
    assert json.loads((site / "versions.json").read_text()) == [
        *("0.10.0", "0.9.0", "0.2.0"),
        "0.10.1rc1",
    ]
    assert 'url=0.10.0/"' in (site / "index.html").read_text()
    assert (site / "0.9.0/index.html").read_text() == "0.9.0"


def test_pages_of_a_version_replace_all_of_its_earlier_ones(tmp_path: Path) -> None:
    site, pages = tmp_path / "site", tmp_path / "pages"
    pages.mkdir()
    (pages / "gone.html").touch()
    publish(pages, "1.0.0", site)
    (pages / "gone.html").rename(pages / "new.html")
    publish(pages, "1.0.0", site)
    assert [path.name for path in (site / "1.0.0").iterdir()] == ["new.html"]


def test_name_that_is_no_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'latest' is no version"):
        publish(tmp_path, "latest", tmp_path / "site")
