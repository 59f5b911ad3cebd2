"""Which samples of a benchmark count, and which are compared."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(ROOT)
    from benchmarks import company, harness

    monkeypatch.setattr(company, "wait_until_alone", lambda patience: None)
    yield harness
    for name in [name for name in sys.modules if name.partition(".")[0] == "benchmarks"]:
        del sys.modules[name]


class Mark:
    def __init__(self, foreign: float) -> None:
        self._foreign = foreign

    def foreign(self) -> float:
        return self._foreign


def measured(
    harness: Any, monkeypatch: pytest.MonkeyPatch, foreign: list[float], **more: Any
) -> Any:
    """A row of one round, whose samples are 1, 2, 3, ..."""
    marks = iter(foreign)
    values = iter(range(1, 100))
    monkeypatch.setattr(harness.company, "mark", lambda: Mark(next(marks)))
    row = harness.Row("row", "M msg/s", lambda seconds: harness.Sample(float(next(values))))
    question = harness.Question("question", "?", [row], warm_up=False, **more)
    list(harness.measure(question, harness.Settings(rounds=1, seconds=0.1, quick=True)))
    return row


def test_sample_beside_a_busy_foreign_process_is_taken_again(
    harness: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = measured(harness, monkeypatch, [0.5, 0.16, 0.15])
    assert (row.values, row.repeated, row.disturbed) == ([3.0], 2, 0)


def test_sample_is_kept_and_counted_as_disturbed_when_it_never_becomes_quiet(
    harness: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = measured(harness, monkeypatch, [0.5] * 9)
    assert (row.values, row.repeated, row.disturbed) == ([3.0], harness.REPEATS, 1)


def test_sample_during_which_the_cores_moved_is_taken_again(
    harness: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways = iter([100.0, 400.0, 400.0, 410.0])
    row = measured(harness, monkeypatch, [0.0] * 9, line=lambda: next(ways))
    assert (row.values, row.repeated, row.disturbed) == ([2.0], 1, 0)
    assert row.also() == {"ns a line": 405.0}


def test_ratio_is_of_rounds_in_which_the_cores_lay_alike(harness: Any) -> None:
    def row(*samples: tuple[float, float]) -> Any:
        found = harness.Row("row", "M msg/s", lambda seconds: None)
        found.samples = [harness.Sample(value, line=(way, way)) for value, way in samples]
        return found

    assert row((10, 100), (30, 110), (1, 500)).ratio_to(row((5, 100), (10, 120), (1, 100))) == 2.5
    assert row((10, 100)).ratio_to(row((5, 500))) == 2.0


def test_this_process_is_not_foreign_to_itself(harness: Any) -> None:
    begun = harness.company.mark()
    sum(range(3_000_000))
    assert harness.company.mark().ours >= begun.ours
    assert begun.foreign() >= 0
