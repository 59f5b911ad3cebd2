"""The README of each large folder names the folder's files, and no others."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MOST_FILES_WITHOUT = 5
MOST_LINES = 20
CODE = {".c", ".h", ".java", ".py", ".sql"}
NOT_LISTED = {"__init__", "__main__", "package-info"}


def tracked() -> list[Path]:
    """All files of the product, in git's index or not yet, relative to the root."""
    which = ("--cached", "--others", "--exclude-standard", "src/shmring", "native")
    listed = subprocess.run(
        ["git", "ls-files", *which], cwd=ROOT, check=True, capture_output=True, text=True
    )
    paths = [Path(line) for line in listed.stdout.splitlines()]
    return [path for path in paths if path.suffix in CODE and (ROOT / path).exists()]


def files_by_folder() -> dict[Path, set[str]]:
    found: dict[Path, set[str]] = {}
    for path in tracked():
        if "tests" not in path.parts and path.stem not in NOT_LISTED:
            found.setdefault(path.parent, set()).add(path.stem)
    return found


def readme_of(folder: Path) -> Path:
    """The core's README is beside its CMake files, not in src."""
    return ROOT / (folder.parent if folder.name == "src" else folder) / "README.md"


def listed_in(readme: Path) -> set[str]:
    """Names in the first column of the README's table, without their suffixes."""
    rows = [line.split("|")[1] for line in readme.read_text().splitlines() if line.startswith("|")]
    return {name.partition(".")[0] for row in rows for name in re.findall(r"`([\w.]+)`", row)}


LARGE = {
    folder: names for folder, names in files_by_folder().items() if len(names) > MOST_FILES_WITHOUT
}


@pytest.mark.parametrize("folder", sorted(LARGE), ids=str)
def test_readme_of_a_large_folder_names_each_of_its_files(folder: Path) -> None:
    readme = readme_of(folder)
    assert readme.exists(), f"{folder} has more than {MOST_FILES_WITHOUT} files and no README.md"
    assert listed_in(readme) == LARGE[folder]
    assert len(readme.read_text().splitlines()) <= MOST_LINES
