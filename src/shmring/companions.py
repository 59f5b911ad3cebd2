"""What programs keep beside a ring, which goes with it: ``.shmring-KIND-FILE-OWNER``.

FILE is the ring's, OWNER a streaming query or a job. Spark's sources and sinks keep such
records, and the rows of jobs that are not committed yet. The core leaves ``.shmring-new-UUID``
where it was killed while it made a ring, on a file system without O_TMPFILE.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

from shmring.errors import ShmringError

__all__ = [
    "SINK",
    "STAGING",
    "companions_of",
    "discard",
    "drafts",
    "left_by_the_dead",
    "orphans",
    "place",
]

SINK = "sink"  # which epoch of a query the ring has seen last
STAGING = "staging"  # rows of a job, whose driver is a participant while it lasts
_KINDS = (SINK, STAGING)
_JOB_PARTICIPANT = "spark write "  # and the job: what Staging.java calls that participant

_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
# An owner has its form, so that ring "a" is not taken for the ring of what lies beside "a-b".
_NAME = re.compile(rf"\.shmring-({'|'.join(_KINDS)})-(.+)-({_UUID})")
_DRAFT = re.compile(rf"\.shmring-new-{_UUID}")


class _Kept(NamedTuple):
    path: str
    kind: str
    file: str
    owner: str


def place(ring: str, kind: str, owner: str) -> str:
    """Where an owner keeps something beside the ring at this path."""
    folder, file = os.path.split(ring)
    return os.path.join(folder, f".shmring-{kind}-{file}-{owner}")


def companions_of(ring: str) -> list[str]:
    """What is kept beside the ring at this path."""
    return [kept.path for kept in _companions_of(ring)]


def left_by_the_dead(ring: str, living: Callable[[str], set[str]]) -> list[str]:
    """What jobs whose driver is dead have left beside the ring at this path.

    Parameters
    ----------
    ring : path
    living : names of the living participants of the ring at a path, asked after the folder: a
        driver takes part before it stages
    """
    staging = [kept for kept in _companions_of(ring) if kept.kind == STAGING]
    if staging:
        with suppress(ShmringError):  # of a ring that cannot be looked at nothing is removed
            names = living(ring)
            return [k.path for k in staging if _JOB_PARTICIPANT + k.owner not in names]
    return []


def orphans(folder: str, file: str | None = None) -> list[str]:
    """What is kept in this folder beside rings, or the ring in this file, that are gone."""
    gone = (k for k in _all_kept(folder) if not os.path.lexists(os.path.join(folder, k.file)))
    return [k.path for k in gone if file in (None, k.file)]


def drafts(folder: str) -> list[str]:
    """Rings in this folder that are being made, or whose maker was killed."""
    return [os.path.join(folder, name) for name in _listed(folder) if _DRAFT.fullmatch(name)]


def discard(paths: Iterable[str]) -> None:
    """Remove it; what is somebody else's stays."""
    for path in paths:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):
                os.unlink(path)


def _companions_of(ring: str) -> list[_Kept]:
    folder, file = os.path.split(ring)
    return [kept for kept in _all_kept(folder) if kept.file == file]


def _all_kept(folder: str) -> list[_Kept]:
    found = ((name, _NAME.fullmatch(name)) for name in _listed(folder))
    return [_Kept(os.path.join(folder, name), m[1], m[2], m[3]) for name, m in found if m]


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
