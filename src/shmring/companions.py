"""Companion files, which are removed with their ring: ``.shmring-KIND-FILE-OWNER``.

FILE is the ring's, OWNER a streaming query or a job. Spark's sinks keep their records in such
files, and the rows of jobs that are not committed yet. On a file system without O_TMPFILE, a
process that is killed while it makes a ring leaves ``.shmring-new-UUID``.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

from shmring.errors import ShmringError

SINK = "sink"  # the last epoch of a query that the ring has
STAGING = "staging"  # rows of a job; its driver is a participant until the job ends
_KINDS = (SINK, STAGING)
_JOB_PARTICIPANT = "spark write "  # before the job's id: the participant's name in RingJob.java

_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
# The form of an owner is fixed, so that a file of ring "a-b" is not taken for one of ring "a".
_NAME = re.compile(rf"\.shmring-({'|'.join(_KINDS)})-(.+)-({_UUID})")
_DRAFT = re.compile(rf"\.shmring-new-{_UUID}")


class _Kept(NamedTuple):
    path: str
    kind: str
    file: str
    owner: str


def companions_of(ring: str) -> list[str]:
    """The companion files of the ring at this path."""
    return [kept.path for kept in _companions_of(ring)]


def left_by_the_dead(ring: str, living: Callable[[str], set[str]]) -> list[str]:
    """The companion files of the ring at this path that belong to jobs whose driver is dead.

    Parameters
    ----------
    ring : path
    living : returns the names of the living participants of a ring. It is called after the folder
        was read: a driver joins the ring before it stages rows
    """
    staging = [kept for kept in _companions_of(ring) if kept.kind == STAGING]
    if staging:
        with suppress(ShmringError):  # nothing is removed of a ring that cannot be observed
            names = living(ring)
            return [k.path for k in staging if _JOB_PARTICIPANT + k.owner not in names]
    return []


def orphans(folder: str, file: str | None = None) -> list[str]:
    """The companion files in this folder whose ring is gone; with `file` only of that ring."""
    gone = (k for k in _all_kept(folder) if not os.path.lexists(os.path.join(folder, k.file)))
    return [k.path for k in gone if file in (None, k.file)]


def drafts(folder: str) -> list[str]:
    """Rings in this folder that are being made, or whose maker was killed."""
    return [os.path.join(folder, name) for name in _listed(folder) if _DRAFT.fullmatch(name)]


def discard(paths: Iterable[str]) -> None:
    """Remove these files, except those of other users."""
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
