"""A batch for tests of Arrow, and whether anybody still holds one."""

from __future__ import annotations

import pyarrow as pa

import shmring

BATCH = pa.record_batch(
    {
        "x": pa.array([1, None, 3], pa.int32()),
        "s": ["a", "", None],
        "l": [[1, 2], [], None],
        "p": pa.array([{"b": True}, {"b": None}, {"b": False}]),
    }
)


def is_released(ring: shmring.Ring) -> bool:
    """Whether nobody holds a slot."""
    return all(branch["released"] == ring.claimed for branch in ring.branches())
