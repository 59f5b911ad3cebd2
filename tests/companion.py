"""Where Spark's sinks keep what belongs to a ring: a name that Java makes, and Python reads."""

from __future__ import annotations

import os


def place(ring: str, kind: str, owner: str) -> str:
    """The path of an owner's companion file of the ring at this path."""
    folder, file = os.path.split(ring)
    return os.path.join(folder, f".shmring-{kind}-{file}-{owner}")
