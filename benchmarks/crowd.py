"""Many participants on one ring: what each costs the others."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from benchmarks import native
from benchmarks.harness import Question, Row, Sample, Settings, Target
from benchmarks.payload import unique_name

__all__ = ["question"]

# Idle consumers are watched for so many times the length of other measurements.
IDLE = 6


def _crowd(what: str, seconds: float, figure: str, **options: int) -> Sample:
    path = Path(f"/dev/shm/shmring.{unique_name()}")
    try:
        figures = native.run("crowd", what, seconds, path=path, **options)
    finally:
        path.unlink(missing_ok=True)
    also = {"CPU us": figures["cpu_us"]} if "cpu_us" in figures else {}
    return Sample(figures[figure], also)


def _redelivery(participants: int, seconds: float) -> Sample:
    return _crowd("redelivery", seconds, "us", participants=participants)


def _idle(consumers: int, seconds: float) -> Sample:
    return _crowd("idle", IDLE * seconds, "percent", consumers=consumers)


def _share(consumers: int, seconds: float) -> Sample:
    return _crowd("share", seconds, "us", consumers=consumers)


def _times(name: str, measure: partial[Sample], *targets: Target) -> Row:
    return Row(name, "us a message", measure, targets, lower_is_better=True)


def question(settings: Settings) -> Question:
    """Default waiting; each pair shows that the crowd costs no more than a few."""
    del settings
    return Question(
        "crowd",
        "What do 200 participants cost, and what do they cost each other?",
        [
            _times("redelivery, nobody else", partial(_redelivery, 0)),
            _times(
                "redelivery with 200 seats",
                partial(_redelivery, 200),
                Target(2.0, "redelivery, nobody else"),
            ),
            Row(
                "200 idle consumers",
                "% of a core",
                partial(_idle, 200),
                (Target(1.0),),
                lower_is_better=True,
                rounds=2,
            ),
            _times("1 consumer alone on a branch", partial(_share, 1)),
            _times(
                "48 consumers sharing a branch",
                partial(_share, 48),
                Target(2.0, "1 consumer alone on a branch"),
            ),
        ],
    )
