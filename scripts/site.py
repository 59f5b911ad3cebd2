"""Lays the pages of a version beside those of others: site.py PAGES VERSION SITE.

A version's pages are in the folder SITE/VERSION, and so a link to a page of a version stays true.
SITE/versions.json lists the versions, newest first, for the switch on each page (versions.js), and
SITE/index.html leads to the newest released version.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)(.*)")
INDEX = """<!doctype html>
<meta charset="utf-8">
<title>shmring</title>
<meta http-equiv="refresh" content="0; url={version}/">
<a href="{version}/">shmring {version}</a>
"""


def _rank(version: str) -> tuple[bool, int, int, int, str]:
    """Released versions before others, and newer ones before older ones, in reverse."""
    found = VERSION.fullmatch(version)
    assert found is not None
    major, minor, patch = (int(found[i]) for i in (1, 2, 3))
    return (not found[4], major, minor, patch, found[4])


def publish(pages: Path, version: str, site: Path) -> list[str]:
    """Replace the pages of a version; return all versions that the site has, newest first."""
    if not VERSION.fullmatch(version):
        raise ValueError(f"{version!r} is no version: wanted one such as 1.2.0 or 1.3.0rc1")
    folder = site / version
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(pages, folder)
    names = (path.name for path in site.iterdir() if path.is_dir())
    versions = sorted(filter(VERSION.fullmatch, names), key=_rank, reverse=True)
    (site / "versions.json").write_text(json.dumps(versions))
    (site / "index.html").write_text(INDEX.format(version=versions[0]))
    return versions


if __name__ == "__main__":
    publish(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
