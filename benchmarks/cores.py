"""How fast is the ring where each process has a core? "On sixteen cores" in docs/performance.md."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from benchmarks import native
from benchmarks.harness import Question, Row, Sample, Settings
from benchmarks.several import several

SMALL, LARGE = 4_096, 65_536  # slots
BATCH = 256
SPIN = 1
WAYS: dict[str, dict[str, Any]] = {
    "one by one, 1.2 MB": {"slots": SMALL},
    "one by one, 19.7 MB": {},
    "2 producers": {"producers": 2},
    "4 producers": {"producers": 4},
    "2 readers of all": {"consumers": 2, "each": 1},
    "4 readers of all": {"consumers": 4, "each": 1},
    "4 readers of all, 1.2 MB": {"consumers": 4, "each": 1, "slots": SMALL},
    "8 readers of all": {"consumers": 8, "each": 1},
    "4 + 4 that share": {"producers": 4, "consumers": 4},
}


def _from_c(seconds: float, **way: Any) -> Sample:
    producers, each = way.get("producers", 1), way.get("each", 0)
    single = producers == 1 and (each or way.get("consumers", 1) == 1)
    way = {"slots": LARGE, "single": int(single), "batch": 1, **way}
    return Sample(native.ring("stream", seconds, **way)["m_s"])


def _from_python(producers: int, consumers: int, seconds: float, **how: bool) -> Sample:
    return Sample(several(producers, consumers, seconds, **how) / 1e6)


def _round_trip(seconds: float) -> Sample:
    figures = native.ring("pingpong", seconds, bytes=8, wait=SPIN, trips=1_000)
    return Sample(figures["median_ns"] / native.line())


def question(settings: Settings) -> Question:
    """C, each with the same of Python; a round trip in lines' ways."""
    del settings
    rows: list[Row] = []
    for name, way in WAYS.items():
        rows.append(Row(f"C: {name}", "M msg/s", partial(_from_c, **way)))
        if "slots" not in way:
            sides = way.get("producers", 1), way.get("consumers", 1)
            each = bool(way.get("each"))
            one = partial(_from_python, *sides, each=each)
            rows.append(Row(f"Python: {name}", "M msg/s", one))
    rows += [
        Row("C: 1 + 1 in batches", "M msg/s", partial(_from_c, batch=BATCH)),
        Row(
            "C: 4 + 4 in batches",
            "M msg/s",
            partial(_from_c, batch=BATCH, **WAYS["4 + 4 that share"]),
        ),
        Row("Python: 4 + 4 in batches", "M msg/s", partial(_from_python, 4, 4, batched=True)),
        Row("C: round trip of 8 bytes", "ways of a line", _round_trip),
    ]
    cores = len(os.sched_getaffinity(0))
    return Question("cores", f"How fast is the ring on {cores} cores?", rows)
