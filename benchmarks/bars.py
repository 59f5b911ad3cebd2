"""Spark's bars on README: one chart of all questions, in seconds per million rows.

    python benchmarks/run.py --only spark --into figures.json --bars README.md

draws all rows of the chart from `figures.json` and the run. All of them should be measured on one
machine: draw a chart anew when the machine changes.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

OWN, RINGS, MEMORY = "Spark's own", "over rings", "memory"
HEAD = ("seconds per million rows", "Spark at its best", "over rings")
# For each line of the chart: its text, the row of Spark's own way, and the row of shmring's.
LINES = [
    *(
        (text, f"{row}: {OWN}", f"{row}: {ours}")
        for text, row, ours in (
            ("pandas_udf above a scan", "pandas_udf above scan", RINGS),
            ("pandas_udf above a filter", "pandas_udf above filter", RINGS),
            ("pandas_udf above a join", "pandas_udf above join", RINGS),
            ("mapInArrow above a filter", "mapInArrow above filter", RINGS),
            ("mapInPandas of 10 columns", "mapInPandas, 10 numbers", RINGS),
            ("plain @udf beside 10 columns", "udf of a double beside 10 numbers", RINGS),
            ("toArrow() of 10 columns made", "toArrow, rows made, 10 numbers", MEMORY),
            ("toPandas() of 10 columns", "toPandas, parquet, 10 numbers", MEMORY),
            (
                "groups of 100, applyInPandas",
                "applyInPandas, 10 numbers, groups of 100, demean",
                RINGS,
            ),
            (
                "cogroups of 100 and 100",
                "applyInPandas, cogroups of 100 and 100",
                RINGS,
            ),
        )
    ),
    (
        "mapInArrow of 300 bytes",
        "identity mapInArrow, no sidecar",
        "identity mapInArrow, no sidecar, over rings",
    ),
    (
        "the same by a sidecar",
        "identity mapInArrow, no sidecar",
        "identity sidecar through the ring, straight from the JVM",
    ),
]
MARKS_A_SECOND = 14
MOST_SECONDS = 2.0  # a longer time has no bar
_BARS = re.compile(r"(?s)(?<=<!-- bars -->\n).*?(?=<!-- /bars -->)")


def chart(document: dict[str, Any]) -> str:
    """Return the chart of a run's figures; lines that the run has not measured are left out."""
    seconds = {
        row["name"]: 1 / rate
        for question in document["questions"]
        for row in question["rows"]
        if (rate := _millions_a_second(row))
    }
    lines = [
        (text, seconds[own], seconds[ours])
        for text, own, ours in LINES
        if own in seconds and ours in seconds
    ]
    if not lines:
        raise ValueError("no line of the chart is measured in this run")
    width = max(len(HEAD[0]), *(len(text) for text, _, _ in lines))
    left = [_bar(own) for _, own, _ in lines]
    second = max(len(HEAD[1]), *map(len, left))
    drawn = [f"{HEAD[0]:<{width}}  {HEAD[1]:<{second}}  {HEAD[2]}"]
    for (text, _, ours), own in zip(lines, left, strict=True):
        drawn.append(f"{text:<{width}}  {own:<{second}}  {_bar(ours)}")
    return "\n".join(line.rstrip() for line in ("```text", *drawn, "```", ""))


def draw(page: Path, document: dict[str, Any]) -> None:
    """Put the chart on a page, between `<!-- bars -->` and `<!-- /bars -->`."""
    drawn = chart(document)
    page.write_text(_BARS.sub(lambda _: drawn, page.read_text()))


def _millions_a_second(row: dict[str, Any]) -> float | None:
    rate: float | None = row["median"] if row["unit"] == "M rows/s" else row["also"].get("M rows/s")
    return rate


def _bar(seconds: float) -> str:
    if seconds > MOST_SECONDS:
        return f"{seconds:.1f}"
    return f"{seconds:.2f} {'#' * round(MARKS_A_SECOND * seconds)}"
