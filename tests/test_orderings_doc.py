"""docs/orderings.md has every memory ordering of the core, and no other."""

import os
import sys
from pathlib import Path

from programs import ended

ROOT = Path(__file__).parents[1]


def test_page_of_orderings_agrees_with_the_core() -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT / "native")}
    ended(sys.executable, "-m", "explore.orderings", "--page", env=env, check=True)
