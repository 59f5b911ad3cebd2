"""Beside the field's other rings: who is faster, from which language?

The settings of each peer, and where they come from, stand in its file in peers/.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial

from benchmarks import native, peer_crowds
from benchmarks.harness import Question, Row, Sample, Settings
from benchmarks.oneway import Blocks, Messages, RoundTrip
from benchmarks.payload import BATCH, DEFAULT_SLOTS, MESSAGE_BYTES
from benchmarks.peer_rows import (
    AERON,
    ICEORYX,
    OWN,
    RATE,
    SOME,
    Programs,
    Rows,
    messages,
)

__all__ = ["question"]

# Messages in the largest claim that Aeron has for a fragment.
FRAGMENT = 218

DEFAULT, SPIN = 0, 1

BLOCKS = {"64 KB": 1 << 16, "1 MB": 1 << 20, "16 MB": 1 << 24}
SLOTS_OF_LARGE = 262_144  # 79 MB


def _messages(programs: Programs, peer: str, how: str, count: int, seconds: float) -> Sample:
    sides = programs.of(peer)
    nbytes = count * MESSAGE_BYTES
    return messages(sides.stream(peer, seconds, how=how, nbytes=nbytes))


def _blocks(programs: Programs, peer: str, nbytes: int, seconds: float) -> Sample:
    rate = programs.of(peer).stream(peer, seconds, how="block", nbytes=nbytes)
    return Sample(rate / 1e9, {"us a batch": nbytes / rate * 1e6})


def _trip_of(figures: dict[str, float]) -> Sample:
    also = {"p99 us": figures["p99_ns"] / 1e3, "p99.9 us": figures["p999_ns"] / 1e3}
    return Sample(figures["median_ns"] / 1e3, also)


def _trip(programs: Programs, peer: str, seconds: float) -> Sample:
    return _trip_of(programs.of(peer).trip(peer, seconds))


def _native_messages(batch: int, seconds: float) -> Sample:
    read = "message" if batch == 1 else "array"
    figures = native.ring(
        "stream", seconds, slots=DEFAULT_SLOTS, batch=batch, take=SOME, read=read, single=1
    )
    return messages(figures["gb_s"] * 1e9)


def _native_blocks(nbytes: int, seconds: float) -> Sample:
    figures = native.ring("stream", seconds, slots=_slots(nbytes), bytes=nbytes, single=1)
    return Sample(figures["gb_s"], {"us a batch": nbytes / figures["gb_s"] / 1e3})


def _native_trip(seconds: float) -> Sample:
    return _trip_of(native.ring("pingpong", seconds, bytes=MESSAGE_BYTES, wait=SPIN))


def _slots(nbytes: int) -> int:
    """A ring is as large as the others' here: 20 MB, and 79 MB for blocks of 16 MB."""
    return DEFAULT_SLOTS if nbytes < 1 << 23 else SLOTS_OF_LARGE


def _one_by_one(programs: Programs) -> list[Row]:
    run = partial(partial, _messages, programs)
    rows = Rows("one by one", RATE)
    rows.ours("C", partial(_native_messages, 1))
    rows.ours("Java", run(OWN, "one", 1))
    rows.ours("Python", Messages("ring", guess=5e6, single=True))
    rows.theirs("Aeron IPC, tryClaim", run(AERON, "one", 1))
    rows.theirs("Aeron IPC, offer", run(AERON, "offer", 1))
    rows.theirs("iceoryx2", run(ICEORYX, "one", 1))
    return rows.rows()


def _in_batches(programs: Programs) -> list[Row]:
    run = partial(partial, _messages, programs)
    rows = Rows("in batches", RATE)
    rows.ours("C", partial(_native_messages, SOME))
    rows.ours("Java", run(OWN, "batch", SOME))
    rows.ours("Python", Messages("ring", "_batches", guess=1e7, single=True))
    rows.theirs("Aeron IPC", run(AERON, "batch", FRAGMENT))
    rows.theirs("iceoryx2", run(ICEORYX, "batch", SOME))
    return rows.rows()


def _round_trips(programs: Programs) -> list[Row]:
    run = partial(partial, _trip, programs)
    rows = Rows("round trip", "us", lower_is_better=True)
    rows.ours("C", _native_trip)
    rows.ours("Java", run(OWN))
    rows.ours("Python", RoundTrip("ring", single=True, wait="spin"))
    rows.theirs("Aeron IPC", run(AERON))
    rows.theirs("iceoryx2", run(ICEORYX))
    return rows.rows()


def _large(programs: Programs, label: str, nbytes: int) -> list[Row]:
    def run(peer: str) -> partial[Sample]:
        return partial(_blocks, programs, peer, nbytes)

    rows = Rows(label, "GB/s")
    rows.ours("C", partial(_native_blocks, nbytes))
    rows.ours("Java", run(OWN))
    rows.ours("Python", Blocks("ring", nbytes=nbytes, slots=_slots(nbytes), single=True))
    rows.theirs("Aeron IPC", run(AERON))
    rows.theirs("iceoryx2", run(ICEORYX))
    return rows.rows()


def question(settings: Settings) -> Question:
    """300-byte messages one by one, in batches, to and fro; large blocks; several at each end."""
    del settings
    programs = Programs()
    rows = [*_one_by_one(programs), *_in_batches(programs), *_round_trips(programs)]
    for label, nbytes in BLOCKS.items():
        rows += _large(programs, label, nbytes)
    rows += peer_crowds.rows(programs)

    @contextlib.contextmanager
    def open_all() -> Iterator[None]:
        with programs.jvm.open(), programs.rust.open():
            yield

    title = f"How fast is the ring beside others? (300 bytes, Python in batches of {BATCH})"
    return Question("peers", title, rows, setup=open_all, line=native.line)
