"""The demonstration works: everything is killed, and nothing committed is missing or double."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import shmring

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.kill
def test_the_demonstration_finds_nothing_missing_or_double() -> None:
    source = Path(shmring.__file__).parent.parent
    result = subprocess.run(
        [sys.executable, ROOT / "spark_examples/durable_demo.py", "--rounds", "2"],
        env={**os.environ, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "is there, once, in order" in " ".join(result.stdout.split())
