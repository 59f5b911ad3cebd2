"""Functions over rings beside Comet, Iceberg and Delta, which Spark fetches: beside_others.py."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from programs import ended

pytestmark = [
    pytest.mark.spark,
    pytest.mark.long,
    pytest.mark.spark_version(since="4.1", before="4.2"),  # Comet has no jar for newer ones
]
PROGRAM = Path(__file__).parents[1] / "beside_others.py"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Lines of the program, one for each query."""
    done = ended(sys.executable, PROGRAM, tmp_path_factory.mktemp("beside"))
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 0, done.stderr[-3000:]
    return lines


def test_each_query_gives_the_rows_of_sparks_own_way(found: list[dict[str, Any]]) -> None:
    assert [line for line in found if not line.get("same")] == []


def test_each_query_goes_over_rings(found: list[dict[str, Any]]) -> None:
    """A function that Comet could run itself (with pyarrowUDF) goes over rings too."""
    assert [line for line in found if not line.get("rings")] == []


def test_comet_runs_parts_of_the_queries_where_it_is_on(found: list[dict[str, Any]]) -> None:
    nodes: Counter[tuple[str, str]] = Counter()
    for line in found:
        nodes[line["comet"], line["source"]] += line.get("comet_nodes", 0)
    off = [count for (comet, _), count in nodes.items() if comet == "off"]
    on = [count for (comet, source), count in nodes.items() if comet != "off" and source == "files"]
    assert off == [0, 0, 0]
    assert len(on) == 5
    assert 0 not in on
