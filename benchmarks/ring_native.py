"""How fast is the ring from C? Two processes, 300-byte messages, every byte read."""

from __future__ import annotations

from functools import partial

from benchmarks import native
from benchmarks.harness import Question, Row, Sample, Settings, Target
from benchmarks.payload import DEFAULT_SLOTS, MESSAGE_BYTES

__all__ = ["question"]

# Slots of the ring: its payload is the working set that memcpy is measured for.
SMALL = 4_096
LARGE = DEFAULT_SLOTS
BATCH = 256

DEFAULT, SPIN, FUTEX = 0, 1, 4


def _one_by_one(slots: int, single: bool, seconds: float) -> Sample:
    figures = native.ring("stream", seconds, slots=slots, batch=1, single=int(single), wait=DEFAULT)
    return Sample(figures["m_s"], {"GB/s": figures["gb_s"]})


def _batched(slots: int, single: bool, read: str, seconds: float) -> Sample:
    figures = native.ring(
        "stream", seconds, slots=slots, batch=BATCH, single=int(single), read=read, wait=DEFAULT
    )
    return Sample(figures["gb_s"], {"M/s": figures["m_s"]})


def _round_trip(nbytes: int, wait: int, seconds: float) -> Sample:
    # As the cache line's: a look at the clock is a tenth of a trip that spins.
    trips = 1_000 if wait == SPIN else 1
    figures = native.ring("pingpong", seconds, bytes=nbytes, wait=wait, trips=trips)
    return native.trip(figures)


def _rows_of(slots: int) -> list[Row]:
    working = slots * MESSAGE_BYTES
    label = f"{working / 1e6:.1f} MB"
    copy = f"memcpy through {label}"
    sp = f"batched, SP/SC, as one array, {label}"
    sp_read = f"batched, SP/SC, message by message, {label}"
    mp = f"batched, MP/MC, as one array, {label}"
    block = BATCH * MESSAGE_BYTES
    bare = f"bare hand-over through {label}"
    return [
        Row(copy, "GB/s", partial(native.memcpy, block=block, working=working)),
        Row(
            bare,
            "GB/s",
            partial(native.handover, block=block, working=working),
            compare=(copy,),
        ),
        Row(
            f"one at a time, SP/SC, {label}",
            "M msg/s",
            partial(_one_by_one, slots, True),
            (Target(20.0),),
        ),
        Row(
            f"one at a time, MP/MC, {label}",
            "M msg/s",
            partial(_one_by_one, slots, False),
            compare=(f"one at a time, SP/SC, {label}",),
        ),
        Row(
            sp,
            "GB/s",
            partial(_batched, slots, True, "array"),
            (Target(0.7, copy),),
            compare=(bare,),
        ),
        Row(sp_read, "GB/s", partial(_batched, slots, True, "message"), compare=(copy, bare)),
        Row(mp, "GB/s", partial(_batched, slots, False, "array"), (Target(1 / 1.3, sp),)),
        Row(
            f"batched, MP/MC, message by message, {label}",
            "GB/s",
            partial(_batched, slots, False, "message"),
            (Target(1 / 1.3, sp_read),),
        ),
    ]


def _round_trips() -> list[Row]:
    line = "cache-line round trip"
    futex = "futex round trip"
    return [
        Row(
            line,
            "ns",
            lambda seconds: native.trip(native.limit("cacheline", seconds)),
            lower_is_better=True,
        ),
        Row(
            "round trip, 8 bytes, spinning",
            "ns",
            partial(_round_trip, 8, SPIN),
            (Target(3.0, line),),
            lower_is_better=True,
        ),
        Row(
            "round trip, 300 bytes, spinning",
            "ns",
            partial(_round_trip, 300, SPIN),
            lower_is_better=True,
            compare=(line,),
        ),
        Row(
            futex,
            "ns",
            lambda seconds: native.trip(native.limit("futex", seconds)),
            lower_is_better=True,
        ),
        Row(
            "round trip, 8 bytes, sleeping",
            "ns",
            partial(_round_trip, 8, FUTEX),
            (Target(1.3, futex),),
            lower_is_better=True,
        ),
    ]


def question(settings: Settings) -> Question:
    """Throughput for two working sets, and round trips, each beside its limit."""
    del settings
    rows = _rows_of(SMALL) + _rows_of(LARGE) + _round_trips()
    title = "How fast is the ring from C, between two processes?"
    return Question("native", title, rows, line=native.line)
