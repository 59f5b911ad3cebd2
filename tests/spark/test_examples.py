"""The examples are programs that say themselves whether all is well."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import shmring

EXAMPLES = Path(__file__).parent.parent.parent / "spark_examples"
SOURCE = str(Path(shmring.__file__).parent.parent)


@pytest.mark.parametrize(
    ("example", "says"),
    [("ticks.py", "48 windows, as they should be"), ("frames.py", "as DuckDB has it")],
)
def test_example(example, says):
    path = os.pathsep.join(filter(None, (SOURCE, os.environ.get("PYTHONPATH"))))
    run = subprocess.run(
        [sys.executable, str(EXAMPLES / example)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert says in run.stdout
