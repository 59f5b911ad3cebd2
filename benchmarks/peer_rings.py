"""Beside the field's other rings: who is faster, from which language?

The settings of each peer, and where they come from, stand in its file in peers/.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from benchmarks import jvm, native
from benchmarks.harness import Question, Row, Sample, Settings
from benchmarks.oneway import Blocks, Messages, RoundTrip
from benchmarks.payload import BATCH, DEFAULT_SLOTS, MESSAGE_BYTES
from benchmarks.sides import Sides

RATE = "M msg/s"
SECONDS = 0.3  # longest sample, because there are many
WARM_UP = 1.0  # seconds in which a JVM compiles

# Messages in a batch of C and the JVM: 77 KB.
SOME = 256

AERON = "AeronPeer"
OWN = "ShmringPeer"

Run = Callable[[float], Sample]

# Messages in the largest claim that Aeron has for a fragment.
FRAGMENT = 218

SPIN = 1

BLOCKS = {"64 KB": 1 << 16, "1 MB": 1 << 20, "16 MB": 1 << 24}
SLOTS_OF_LARGE = 262_144  # 79 MB


def _rate(bytes_a_second: float) -> Sample:
    """The sample of a rate."""
    return Sample(bytes_a_second / MESSAGE_BYTES / 1e6, {"GB/s": bytes_a_second / 1e9})


def _briefly(run: Run, seconds: float) -> Sample:
    return run(min(seconds, SECONDS))


class _Rows:
    """The rows of one kind, ours and those of others."""

    def __init__(self, kind: str, unit: str, *, lower_is_better: bool = False) -> None:
        self._kind = kind
        self._unit = unit
        self._lower = lower_is_better
        self._ours: list[tuple[str, Run]] = []
        self._theirs: list[tuple[str, Run]] = []

    def ours(self, language: str, run: Run) -> None:
        """A row of shmring; all the others are its rivals."""
        self._ours.append((f"shmring, {language}", run))

    def theirs(self, name: str, run: Run) -> None:
        self._theirs.append((name, run))

    def rows(self) -> list[Row]:
        """Ours first."""
        rivals = tuple(f"{self._kind}: {name}" for name, _ in self._theirs)
        return [self._row(name, run, rivals) for name, run in self._ours] + [
            self._row(name, run, ()) for name, run in self._theirs
        ]

    def _row(self, name: str, run: Run, rivals: tuple[str, ...]) -> Row:
        return Row(
            f"{self._kind}: {name}",
            self._unit,
            partial(_briefly, run),
            lower_is_better=self._lower,
            rivals=rivals,
        )


def _messages(sides: Sides, peer: str, how: str, count: int, seconds: float) -> Sample:
    nbytes = count * MESSAGE_BYTES
    return _rate(sides.stream(peer, seconds, how=how, nbytes=nbytes))


def _blocks(sides: Sides, peer: str, nbytes: int, seconds: float) -> Sample:
    rate = sides.stream(peer, seconds, how="block", nbytes=nbytes)
    return Sample(rate / 1e9, {"us a batch": nbytes / rate * 1e6})


def _trip_of(figures: dict[str, float]) -> Sample:
    also = {"p99 us": figures["p99_ns"] / 1e3, "p99.9 us": figures["p999_ns"] / 1e3}
    return Sample(figures["median_ns"] / 1e3, also)


def _trip(sides: Sides, peer: str, seconds: float) -> Sample:
    return _trip_of(sides.trip(peer, seconds))


def _native_messages(batch: int, seconds: float) -> Sample:
    read = "message" if batch == 1 else "array"
    figures = native.ring(
        "stream", seconds, slots=DEFAULT_SLOTS, batch=batch, take=SOME, read=read, single=1
    )
    return _rate(figures["gb_s"] * 1e9)


def _native_blocks(nbytes: int, seconds: float) -> Sample:
    figures = native.ring("stream", seconds, slots=_slots(nbytes), bytes=nbytes, single=1)
    return Sample(figures["gb_s"], {"us a batch": nbytes / figures["gb_s"] / 1e3})


def _native_trip(seconds: float) -> Sample:
    return _trip_of(native.ring("pingpong", seconds, bytes=MESSAGE_BYTES, wait=SPIN))


def _slots(nbytes: int) -> int:
    """A ring is as large as the others' here: 20 MB, and 79 MB for blocks of 16 MB."""
    return DEFAULT_SLOTS if nbytes < 1 << 23 else SLOTS_OF_LARGE


def _one_by_one(sides: Sides) -> list[Row]:
    run = partial(partial, _messages, sides)
    rows = _Rows("one by one", RATE)
    rows.ours("C", partial(_native_messages, 1))
    rows.ours("Java", run(OWN, "one", 1))
    rows.ours("Python", Messages("ring", guess=5e6, single=True))
    rows.theirs("Aeron IPC, tryClaim", run(AERON, "one", 1))
    rows.theirs("Aeron IPC, offer", run(AERON, "offer", 1))
    return rows.rows()


def _in_batches(sides: Sides) -> list[Row]:
    run = partial(partial, _messages, sides)
    rows = _Rows("in batches", RATE)
    rows.ours("C", partial(_native_messages, SOME))
    rows.ours("Java", run(OWN, "batch", SOME))
    rows.ours("Python", Messages("ring", "_batches", guess=1e7, single=True))
    rows.theirs("Aeron IPC", run(AERON, "batch", FRAGMENT))
    return rows.rows()


def _round_trips(sides: Sides) -> list[Row]:
    run = partial(partial, _trip, sides)
    rows = _Rows("round trip", "us", lower_is_better=True)
    rows.ours("C", _native_trip)
    rows.ours("Java", run(OWN))
    rows.ours("Python", RoundTrip("ring", single=True, wait="spin"))
    rows.theirs("Aeron IPC", run(AERON))
    return rows.rows()


def _large(sides: Sides, label: str, nbytes: int) -> list[Row]:
    def run(peer: str) -> partial[Sample]:
        return partial(_blocks, sides, peer, nbytes)

    rows = _Rows(label, "GB/s")
    rows.ours("C", partial(_native_blocks, nbytes))
    rows.ours("Java", run(OWN))
    rows.ours("Python", Blocks("ring", nbytes=nbytes, slots=_slots(nbytes), single=True))
    rows.theirs("Aeron IPC", run(AERON))
    return rows.rows()


def question(settings: Settings) -> Question:
    """300-byte messages one by one, in batches, to and fro; large blocks; several at each end."""
    del settings
    sides = Sides(jvm.command, warm_up=WARM_UP)
    rows = [*_one_by_one(sides), *_in_batches(sides), *_round_trips(sides)]
    for label, nbytes in BLOCKS.items():
        rows += _large(sides, label, nbytes)
    title = f"How fast is the ring beside others? (300 bytes, Python in batches of {BATCH})"
    return Question("peers", title, rows, setup=sides.open, line=native.line)
