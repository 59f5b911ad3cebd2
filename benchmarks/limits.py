"""What can this machine do at all? memcpy, a cache line's way, a futex' way."""

from __future__ import annotations

from functools import partial

from benchmarks import native
from benchmarks.harness import Question, Row, Settings
from benchmarks.payload import BATCH, MESSAGE_BYTES

__all__ = ["question"]

BLOCK = BATCH * MESSAGE_BYTES
SETS = {"1.2 MB": 4_096, "4.9 MB": 16_384, "20 MB": 65_536, "79 MB": 262_144}


def question(settings: Settings) -> Question:
    """The limits; the other questions measure those they need once more in their own rounds."""
    del settings
    rows = [
        Row(
            f"memcpy within one block of {BLOCK // 1000} KB",
            "GB/s",
            partial(native.memcpy, block=BLOCK, working=BLOCK),
        )
    ]
    for label, slots in SETS.items():
        working = slots * MESSAGE_BYTES
        rows += [
            Row(
                f"memcpy through {label}",
                "GB/s",
                partial(native.memcpy, block=BLOCK, working=working),
            ),
            Row(
                f"memcpy of one block into {label}",
                "GB/s",
                partial(native.memcpy, block=BLOCK, working=working, source="block"),
            ),
        ]
    rows += [
        Row(
            "cache-line round trip",
            "ns",
            lambda seconds: native.trip(native.limit("cacheline", seconds)),
            lower_is_better=True,
        ),
        Row(
            "futex round trip",
            "ns",
            lambda seconds: native.trip(native.limit("futex", seconds)),
            lower_is_better=True,
        ),
    ]
    return Question("limits", "What can this machine do at all?", rows)
