"""What does a head start for the producer bring, and what does it cost?"""

from __future__ import annotations

from functools import partial

from benchmarks import native
from benchmarks.harness import Question, Row, Sample, Settings

__all__ = ["question"]

HEAD_STARTS = (0, 16, 64, 256, 1_024, 4_096, 20_000)  # messages; the ring has 65,536 slots
PACE = 1_000_000  # messages a second, where their age is measured


def _distance(seconds: float, messages: int, rate: int) -> dict[str, float]:
    return native.ring("distance", seconds, head_start=messages, rate=rate)


def _throughput(messages: int, seconds: float) -> Sample:
    return Sample(_distance(seconds, messages, 0)["m_s"])


def _age(messages: int, seconds: float) -> Sample:
    figures = _distance(seconds, messages, PACE)
    return Sample(figures["age_ns"] / 1000, {"p99 us": figures["age_p99_ns"] / 1000})


def question(settings: Settings) -> Question:
    """From C, single messages of 300 bytes, one process each; a reader that waits by default."""
    del settings
    rows = [
        Row(f"as fast as it goes, head start {n:,}", "M msg/s", partial(_throughput, n))
        for n in HEAD_STARTS
    ] + [
        Row(f"age, 1 M messages/s, head start {n:,}", "us", partial(_age, n), lower_is_better=True)
        for n in HEAD_STARTS
    ]
    title = "What does a head start bring, and what does it cost?"
    return Question("head-start", title, rows, line=native.line)
