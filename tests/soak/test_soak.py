"""A short soak; `make soak MINUTES=10` is the long one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.kill
@pytest.mark.long
def test_twenty_seconds_of_kills_and_stops_lose_nothing(tmp_path: Path) -> None:
    core = ROOT / "native" / "core"
    program = tmp_path / "soak"
    sources = [*(core / "src").glob("*.c"), Path(__file__).with_name("soak.c")]
    folders = [core / "include", core / "src", core / "tests"]
    subprocess.run(
        [
            *("cc", "-std=c11", "-O2", "-D_GNU_SOURCE", *(f"-I{folder}" for folder in folders)),
            *(*map(str, sources), "-o", str(program), "-lpthread"),
        ],
        check=True,
    )
    soak = subprocess.run([program, "20"], capture_output=True, text=True, check=False)
    assert soak.returncode == 0, soak.stdout + soak.stderr
    assert soak.stdout.rstrip().endswith(" 0 errors")
