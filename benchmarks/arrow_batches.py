"""How fast are Arrow batches, here and as an IPC stream over a Unix socket?"""

from __future__ import annotations

from functools import partial

from benchmarks import native
from benchmarks.harness import Question, Row, Settings, Target
from benchmarks.oneway import ArrowBatches
from benchmarks.payload import DEFAULT_SLOTS, MESSAGE_BYTES

# Size of a batch, slots of its ring, and the ratios to the socket and to memcpy that are wanted.
SIZES = {
    "64 KB": (64 << 10, DEFAULT_SLOTS, 2.5, None),
    "1 MB": (1 << 20, DEFAULT_SLOTS, 3.5, 0.85),
    "16 MB": (16 << 20, 262_144, 4.0, 0.85),
}


def _rows_of(label: str) -> list[Row]:
    nbytes, slots, over_socket, of_memcpy = SIZES[label]
    working = slots * MESSAGE_BYTES
    copy = f"memcpy of {label} blocks through {working / 1e6:.1f} MB"
    socket = f"IPC over a Unix socket, {label}"
    touched = f"IPC over a Unix socket, {label}, every byte read"
    targets = (Target(over_socket, socket),)
    if of_memcpy is not None:
        targets += (Target(of_memcpy, copy),)
    return [
        Row(copy, "GB/s", partial(native.memcpy, block=nbytes, working=working)),
        Row(socket, "GB/s", ArrowBatches("arrow_socket", nbytes=nbytes, touch=False)),
        Row(
            f"ring, {label}",
            "GB/s",
            ArrowBatches("arrow_ring", nbytes=nbytes, slots=slots, touch=False),
            targets,
        ),
        Row(touched, "GB/s", ArrowBatches("arrow_socket", nbytes=nbytes, touch=True)),
        Row(
            f"ring, {label}, every byte read",
            "GB/s",
            ArrowBatches("arrow_ring", nbytes=nbytes, slots=slots, touch=True),
            compare=(touched,),
        ),
    ]


def question(settings: Settings) -> Question:
    """Three sizes; the reader receives every batch, and in some rows reads every byte."""
    del settings
    rows = [row for label in SIZES for row in _rows_of(label)]
    title = "How fast are Arrow batches from Python, between processes?"
    return Question("arrow", title, rows, line=native.line)
