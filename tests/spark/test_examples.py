"""The examples are programs that say themselves whether all is well."""

from __future__ import annotations

import json
import shutil
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


def outputs(notebook):
    cells = json.loads(notebook.read_text())["cells"]
    return [output for cell in cells for output in cell.get("outputs", ())]


@pytest.mark.long
def test_notebook(tmp_path):
    notebook = Path(shutil.copy(EXAMPLES / "functions.ipynb", tmp_path))
    assert not outputs(notebook)  # a reader runs it
    execute = Path(sys.executable).with_name("jupyter-execute")
    ended(execute, "--inplace", notebook, cwd=tmp_path, check=True)
    said = outputs(notebook)
    assert len(str(said)) < 10_000
    assert str(said).count("over rings") == 2
    assert said[-1]["text"] == ["equal\n"]
