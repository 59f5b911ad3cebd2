"""docs/orderings.md has every memory ordering of the core, and no other."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_page_of_orderings_agrees_with_the_core() -> None:
    command = [sys.executable, "-m", "explore.orderings", "--page"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "native")}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
