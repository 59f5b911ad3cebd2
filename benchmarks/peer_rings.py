"""Beside the field's other rings: who is faster, from which language?

The settings of each peer, and where they come from, stand in its file in peers/.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from benchmarks import native
from benchmarks.harness import Question, Row, Sample, Settings
from benchmarks.jvm import Pairs
from benchmarks.oneway import Blocks, Messages, RoundTrip
from benchmarks.payload import BATCH, DEFAULT_SLOTS, MESSAGE_BYTES

__all__ = ["question"]

RATE = "M msg/s"
SECONDS = 0.3  # of a sample at most: there are many

# Messages in a batch of C and of the JVM: 77 KB; Agrona's and Chronicle's limits are megabytes.
SOME = 256
# Messages in the largest claim that Aeron has for a fragment.
FRAGMENT = 218

DEFAULT, SPIN = 0, 1

BLOCKS = {"64 KB": 1 << 16, "1 MB": 1 << 20, "16 MB": 1 << 24}
SLOTS_OF_LARGE = 262_144  # 79 MB

ONE_TO_ONE, MANY_TO_ONE = "AgronaPeer$OneToOne", "AgronaPeer$ManyToOne"
AERON, CHRONICLE, DISRUPTOR = "AeronPeer", "ChroniclePeer", "DisruptorPeer"
OWN = "ShmringPeer"

Run = Callable[[float], Sample]


def _briefly(run: Run, seconds: float) -> Sample:
    return run(min(seconds, SECONDS))


def _messages(pairs: Pairs, peer: str, how: str, count: int, seconds: float) -> Sample:
    nbytes = count * MESSAGE_BYTES
    threads = peer == DISRUPTOR
    rate = pairs.stream(peer, seconds, how=how, nbytes=nbytes, threads=threads)
    return Sample(rate / MESSAGE_BYTES / 1e6, {"GB/s": rate / 1e9})


def _blocks(pairs: Pairs, peer: str, nbytes: int, seconds: float) -> Sample:
    rate = pairs.stream(peer, seconds, how="block", nbytes=nbytes)
    return Sample(rate / 1e9, {"us a batch": nbytes / rate * 1e6})


def _trip_of(figures: dict[str, float]) -> Sample:
    also = {"p99 us": figures["p99_ns"] / 1e3, "p99.9 us": figures["p999_ns"] / 1e3}
    return Sample(figures["median_ns"] / 1e3, also)


def _trip(pairs: Pairs, peer: str, seconds: float) -> Sample:
    return _trip_of(pairs.trip(peer, seconds, threads=peer == DISRUPTOR))


def _native_messages(batch: int, seconds: float) -> Sample:
    read = "message" if batch == 1 else "array"
    figures = native.ring(
        "stream", seconds, slots=DEFAULT_SLOTS, batch=batch, take=SOME, read=read, single=1
    )
    return Sample(figures["m_s"], {"GB/s": figures["gb_s"]})


def _native_blocks(nbytes: int, seconds: float) -> Sample:
    figures = native.ring("stream", seconds, slots=_slots(nbytes), bytes=nbytes, single=1)
    return Sample(figures["gb_s"], {"us a batch": nbytes / figures["gb_s"] / 1e3})


def _native_trip(seconds: float) -> Sample:
    return _trip_of(native.ring("pingpong", seconds, bytes=MESSAGE_BYTES, wait=SPIN))


def _slots(nbytes: int) -> int:
    """A ring is as large as the others' here: 20 MB, and 79 MB for blocks of 16 MB."""
    return DEFAULT_SLOTS if nbytes < 1 << 23 else SLOTS_OF_LARGE


class _Rows:
    """The rows of one kind, ours and those of others."""

    def __init__(self, kind: str, unit: str, *, lower_is_better: bool = False) -> None:
        self._kind = kind
        self._unit = unit
        self._lower = lower_is_better
        self._ours: list[tuple[str, Run, tuple[str, ...]]] = []
        self._theirs: list[tuple[str, Run]] = []

    def ours(self, language: str, run: Run, *, beside: tuple[str, ...] = ()) -> None:
        """A row of shmring; its rivals are all but iceoryx2, which has Python's, unless said."""
        self._ours.append((f"shmring, {language}", run, beside))

    def theirs(self, name: str, run: Run) -> None:
        """A row of a peer."""
        self._theirs.append((name, run))

    def rows(self) -> list[Row]:
        """Ours first."""
        all_but = tuple(name for name, _ in self._theirs if name != ICEORYX)
        return [self._row(name, run, beside or all_but) for name, run, beside in self._ours] + [
            self._row(name, run, ()) for name, run in self._theirs
        ]

    def _row(self, name: str, run: Run, rivals: tuple[str, ...]) -> Row:
        return Row(
            f"{self._kind}: {name}",
            self._unit,
            partial(_briefly, run),
            lower_is_better=self._lower,
            rivals=tuple(f"{self._kind}: {rival}" for rival in rivals),
        )


ICEORYX = "iceoryx2, Python"


def _one_by_one(pairs: Pairs) -> list[Row]:
    rows = _Rows("one by one", RATE)
    rows.ours("C", partial(_native_messages, 1))
    rows.ours("Java", partial(_messages, pairs, OWN, "one", 1))
    rows.ours("Python", Messages("ring", guess=5e6, single=True), beside=(ICEORYX,))
    rows.theirs("Aeron IPC, tryClaim", partial(_messages, pairs, AERON, "one", 1))
    rows.theirs("Aeron IPC, offer", partial(_messages, pairs, AERON, "offer", 1))
    rows.theirs("Agrona OneToOne", partial(_messages, pairs, ONE_TO_ONE, "one", 1))
    rows.theirs("Agrona ManyToOne", partial(_messages, pairs, MANY_TO_ONE, "one", 1))
    rows.theirs("Chronicle Queue", partial(_messages, pairs, CHRONICLE, "one", 1))
    rows.theirs("Disruptor, threads", partial(_messages, pairs, DISRUPTOR, "one", 1))
    rows.theirs(ICEORYX, Messages("iceoryx", guess=2e5))
    return rows.rows()


def _in_batches(pairs: Pairs) -> list[Row]:
    rows = _Rows("in batches", RATE)
    rows.ours("C", partial(_native_messages, SOME))
    rows.ours("Java", partial(_messages, pairs, OWN, "batch", SOME))
    rows.ours("Python", Messages("ring", "_batches", guess=1e7, single=True), beside=(ICEORYX,))
    rows.theirs("Aeron IPC", partial(_messages, pairs, AERON, "batch", FRAGMENT))
    rows.theirs("Agrona OneToOne", partial(_messages, pairs, ONE_TO_ONE, "batch", SOME))
    rows.theirs("Agrona ManyToOne", partial(_messages, pairs, MANY_TO_ONE, "batch", SOME))
    rows.theirs("Chronicle Queue", partial(_messages, pairs, CHRONICLE, "batch", SOME))
    rows.theirs("Disruptor, threads", partial(_messages, pairs, DISRUPTOR, "batch", SOME))
    rows.theirs(ICEORYX, Messages("iceoryx", "_batches", guess=5e6))
    return rows.rows()


def _round_trips(pairs: Pairs) -> list[Row]:
    rows = _Rows("round trip", "us", lower_is_better=True)
    rows.ours("C", _native_trip)
    rows.ours("Java", partial(_trip, pairs, OWN))
    rows.ours("Python", RoundTrip("ring", single=True, wait="spin"), beside=(ICEORYX,))
    rows.theirs("Aeron IPC", partial(_trip, pairs, AERON))
    rows.theirs("Agrona OneToOne", partial(_trip, pairs, ONE_TO_ONE))
    rows.theirs("Agrona ManyToOne", partial(_trip, pairs, MANY_TO_ONE))
    rows.theirs("Chronicle Queue", partial(_trip, pairs, CHRONICLE))
    rows.theirs("Disruptor, threads", partial(_trip, pairs, DISRUPTOR))
    rows.theirs(ICEORYX, RoundTrip("iceoryx"))
    return rows.rows()


def _large(pairs: Pairs, label: str, nbytes: int) -> list[Row]:
    rows = _Rows(label, "GB/s")
    rows.ours("C", partial(_native_blocks, nbytes))
    rows.ours("Java", partial(_blocks, pairs, OWN, nbytes))
    rows.ours(
        "Python",
        Blocks("ring", nbytes=nbytes, slots=_slots(nbytes), single=True),
        beside=(ICEORYX,),
    )
    rows.theirs("Aeron IPC", partial(_blocks, pairs, AERON, nbytes))
    rows.theirs("Agrona OneToOne", partial(_blocks, pairs, ONE_TO_ONE, nbytes))
    rows.theirs("Chronicle Queue", partial(_blocks, pairs, CHRONICLE, nbytes))
    rows.theirs(ICEORYX, Blocks("iceoryx", nbytes=nbytes))
    return rows.rows()


def question(settings: Settings) -> Question:
    """300-byte messages one by one and in batches, to and fro, and large blocks."""
    del settings
    pairs = Pairs()
    rows = [*_one_by_one(pairs), *_in_batches(pairs), *_round_trips(pairs)]
    for label, nbytes in BLOCKS.items():
        rows += _large(pairs, label, nbytes)
    title = f"How fast is the ring beside others? (300 bytes, Python in batches of {BATCH})"
    return Question("peers", title, rows, setup=pairs.open, line=native.line)
