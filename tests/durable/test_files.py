"""The door to the real disk."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from shmring.durable.base.files import OsDisk

MIB = 1 << 20


@pytest.mark.parametrize(
    "sizes",
    [
        [],
        [0],
        [MIB, 0, 1],
        [1, MIB, MIB - 1, 2 * MIB + 1],
        [5 * MIB + 7],
        [3] * 5000,
        [700] * 3000,
        [MIB // 1024] * 2049,
    ],
)
def test_a_write_arrives_whole_however_it_is_divided(sizes: list[int], tmp_path: Path) -> None:
    parts = [random.Random(i).randbytes(size) for i, size in enumerate(sizes)]
    file = OsDisk().open(str(tmp_path / "file"), create=True)
    file.write(parts, 5)
    assert file.read(8 * MIB, 0) == (bytes(5) + b"".join(parts) if any(sizes) else b"")
    file.close()
