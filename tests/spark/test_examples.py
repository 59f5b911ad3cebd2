"""The examples are programs that say themselves whether all is well."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from programs import ended

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
    run = ended(sys.executable, EXAMPLES / program, *arguments, cwd=tmp_path, check=True)
    assert says in run.stdout
