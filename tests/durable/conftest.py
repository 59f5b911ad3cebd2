"""What the tests of this folder share; and they can import the helpers beside them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


def pytest_itemcollected(item: pytest.Item) -> None:
    if "table_ring" in item.path.parts:
        item.add_marker(pytest.mark.database)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 2 MB."""
    mount = tmp_path / "small"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(mount)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.fail(
            f"this test mounts a tmpfs of 2 MB to fill it, and may not: {mounted.stderr.strip()}; "
            f"run it as root, or under `unshare --map-root-user --mount`"
        )
    try:
        yield mount
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=True)
