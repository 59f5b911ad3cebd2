"""Looking on: what it costs, and what it costs those who are looked at."""

from __future__ import annotations

import time
from contextlib import ExitStack

import shmring
from benchmarks import native
from benchmarks.harness import Question, Row, Sample, Settings, Target
from benchmarks.oneway import Messages
from benchmarks.payload import unique_name
from benchmarks.processes import Gate, Role, run_together
from shmring.host import Observer
from shmring.metrics import Metrics

__all__ = ["question"]

RINGS, PARTICIPANTS = 20, 50
A_SECOND = 2  # looks
BUSY = "a busy ring"


def _look(gate: Gate, seconds: float) -> float:
    """CPU seconds of a look at all of them."""
    with ExitStack() as stack:
        names = [unique_name() for _ in range(RINGS)]
        for name in names:
            ring = stack.enter_context(shmring.create(name, slots=1024, temporary=True))
            for number in range(PARTICIPANTS - 1):
                handle = ring.consumer("b") if number % 2 else ring.producer()
                stack.enter_context(handle)
        observer = stack.enter_context(Observer(names))
        observer.look()
        gate.wait()
        looks, begun, used = 0, time.monotonic(), time.process_time()
        while time.monotonic() - begun < seconds:
            observer.look()
            looks += 1
        return (time.process_time() - used) / looks


def _crowd(seconds: float) -> Sample:
    (spent,) = run_together([Role(_look, (seconds,), 0)])
    return Sample(100 * A_SECOND * spent, {"ms a look": 1e3 * spent})


class _Watched(Messages):
    """Messages through a ring, while the host is looked at."""

    def __call__(self, seconds: float) -> Sample:
        with Metrics(interval=1 / A_SECOND):
            return super().__call__(seconds)


def question(settings: Settings) -> Question:
    """A process that looks on twice a second, as `shmring top` and the exporter may."""
    del settings
    return Question(
        "looking",
        "What does looking on cost, and whom?",
        [
            Row(
                f"{RINGS} rings of {PARTICIPANTS} participants, twice a second",
                "% of a core",
                _crowd,
                (Target(2.0),),
                lower_is_better=True,
            ),
            Row(BUSY, "M msg/s", Messages("ring", guess=5e6)),
            Row(
                f"{BUSY}, looked at twice a second",
                "M msg/s",
                _Watched("ring", guess=5e6),
                (Target(0.95, BUSY),),
            ),
        ],
        line=native.line,
    )
