"""The examples are programs that say themselves whether all is well."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent.parent / "spark_examples"

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    ("example", "says"),
    [
        ("ticks.py", "48 windows, as they should be"),
        pytest.param("frames.py", "as DuckDB has it", marks=pytest.mark.long),
        pytest.param(
            "score_lineitem.py --scale 0.01 --data lineitem",
            "results: equal",
            marks=pytest.mark.long,
        ),
    ],
)
def test_example(example, says, tmp_path):
    program, *arguments = example.split()
    run = subprocess.run(
        [sys.executable, str(EXAMPLES / program), *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert says in run.stdout
