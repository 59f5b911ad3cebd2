"""More processes than cores, and a reader with nothing to do."""

from __future__ import annotations

import contextlib
import resource
import time
from functools import partial
from typing import Any

from benchmarks import native
from benchmarks.harness import Question, Row, Sample, Settings, Target
from benchmarks.oneway import peer
from benchmarks.payload import BATCH, DEFAULT_SLOTS, MESSAGE_BYTES
from benchmarks.processes import Gate, Role, run_together
from benchmarks.several import several

__all__ = ["question"]

NATIVE_BATCH = 256
DEFAULT = 0

# A blocked reader is watched for so many times the length of other measurements.
IDLE = 6
SETTLE_SECONDS = 0.2


def _python(count: int, batched: bool, seconds: float) -> Sample:
    """`count` producers and as many consumers; one and one stay on two cores."""
    rate = several(count, count, seconds, batched=batched)
    return Sample(rate / 1e6, {"GB/s": rate * MESSAGE_BYTES / 1e9})


def _native(count: int, batch: int, seconds: float) -> Sample:
    figures = native.ring(
        "stream",
        seconds,
        slots=DEFAULT_SLOTS,
        batch=batch,
        read="message",
        producers=count,
        consumers=count,
        wait=DEFAULT,
    )
    also = {
        "GB/s": figures["gb_s"],
        "ns of CPU a message": figures["cpu_ns"],
        "sleeps a thousand": figures["sleeps"],
    }
    return Sample(figures["m_s"], also)


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _wait(gate: Gate, name: str, seconds: float) -> float:
    """Wait for a message that never comes; percent of a core, once it has settled."""
    import shmring

    with shmring.attach(name) as ring, ring.consumer("bench") as inp:
        gate.wait()
        with contextlib.suppress(shmring.Empty):
            inp.pop(timeout=SETTLE_SECONDS)
        started, cpu = time.monotonic(), _cpu_seconds()
        with contextlib.suppress(shmring.Empty):
            inp.pop(timeout=seconds)
        used = _cpu_seconds() - cpu
        took = time.monotonic() - started
        gate.wait()
    return 100 * used / took


def _be_silent(gate: Gate, name: str) -> None:
    """A producer that has nothing to say, but lives."""
    import shmring

    with shmring.attach(name) as ring, ring.producer():
        gate.wait()
        gate.wait()


def _idle_python(seconds: float) -> Sample:
    with peer("ring").link() as link:
        percent, _ = run_together(
            [Role(_wait, (link.there, IDLE * seconds)), Role(_be_silent, (link.there,))]
        )
    return Sample(percent)


def _idle_native(seconds: float) -> Sample:
    return Sample(native.ring("idle", IDLE * seconds, wait=DEFAULT)["percent"])


def _pair(label: str, few: Any, more: Any) -> list[Row]:
    one = f"{label}, 1 + 1"
    return [
        Row(one, "M msg/s", few),
        Row(f"{label}, 4 + 4", "M msg/s", more, (Target(0.8, one),)),
    ]


def question(settings: Settings) -> Question:
    """Default waiting everywhere; the consumers of 4 + 4 share the work of one branch."""
    del settings
    idle = {"lower_is_better": True, "targets": (Target(0.5),), "rounds": 2}
    return Question(
        "many",
        "What do more processes than cores cost, and an idle reader?",
        [
            *_pair("C, one at a time", partial(_native, 1, 1), partial(_native, 4, 1)),
            Row(
                "C, one at a time, 16 + 16",
                "M msg/s",
                partial(_native, 16, 1),
                compare=("C, one at a time, 1 + 1",),
            ),
            *_pair(
                f"C, batches of {NATIVE_BATCH}",
                partial(_native, 1, NATIVE_BATCH),
                partial(_native, 4, NATIVE_BATCH),
            ),
            *_pair("Python, one at a time", partial(_python, 1, False), partial(_python, 4, False)),
            *_pair(
                f"Python, batches of {BATCH}", partial(_python, 1, True), partial(_python, 4, True)
            ),
            Row("C, blocked reader", "% of a core", _idle_native, **idle),
            Row("Python, blocked reader", "% of a core", _idle_python, **idle),
        ],
    )
