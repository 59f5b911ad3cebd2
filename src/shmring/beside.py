"""What programs keep beside a ring, which goes with it: ``.shmring-KIND-FILE-OWNER``.

FILE is the ring's, OWNER a streaming query, a job or a process. Spark's sinks keep such records,
and the rows of jobs that are not committed yet.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable
from contextlib import suppress

__all__ = ["SINK", "STAGED", "STAGING", "discard", "kept_beside", "orphans", "place"]

SINK = "sink"  # which epoch of a query the ring has seen last
STAGED = "staged"  # rows of a job of the Python data source
STAGING = "staging"  # of one of the jar's
_KINDS = (SINK, STAGED, STAGING)

_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_PROCESS = r"\d+\.\d+\.\d+\.[0-9a-f]{12}"
# An owner has its form, so that ring "a" is not taken for the ring of what lies beside "a-b".
_NAME = re.compile(rf"\.shmring-({'|'.join(_KINDS)})-(.+)-(?:{_UUID}|{_PROCESS})")


def place(ring: str, kind: str, owner: str) -> str:
    """Where an owner keeps something beside the ring at this path."""
    folder, file = os.path.split(ring)
    return os.path.join(folder, f".shmring-{kind}-{file}-{owner}")


def kept_beside(ring: str, *kinds: str) -> list[str]:
    """What is kept beside the ring at this path, of these kinds or any."""
    folder, file = os.path.split(ring)
    return [
        path for path, kind, of in _all_kept(folder) if of == file and kind in (kinds or _KINDS)
    ]


def orphans(folder: str) -> list[str]:
    """What is kept in this folder beside rings that are not there any more."""
    return [
        path for path, _, of in _all_kept(folder) if not os.path.lexists(os.path.join(folder, of))
    ]


def discard(paths: Iterable[str]) -> None:
    """Remove it; what is somebody else's stays."""
    for path in paths:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):
                os.unlink(path)


def _all_kept(folder: str) -> list[tuple[str, str, str]]:
    """Paths, with their kinds and the files of their rings."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    found = ((name, _NAME.fullmatch(name)) for name in names)
    return [(os.path.join(folder, name), match[1], match[2]) for name, match in found if match]
