"""The demonstration works: everything is killed, and nothing committed is missing or double."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from programs import ended

import shmring

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.kill
def test_the_demonstration_finds_nothing_missing_or_double() -> None:
    program = ROOT / "spark_examples/durable_demo.py"
    env = {**os.environ, "PYTHONPATH": str(Path(shmring.__file__).parent.parent)}
    result = ended(sys.executable, program, "--rounds", "2", env=env, timeout=600, check=True)
    assert "is there, once, in order" in " ".join(result.stdout.split())
