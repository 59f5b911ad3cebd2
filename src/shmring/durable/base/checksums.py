"""What the version of a queue's files says about the checksums of items and of what is as long."""

from __future__ import annotations

import zlib
from collections.abc import Callable

from shmring._shmring import crc32c
from shmring.durable.base.files import Buffer
from shmring.errors import VersionMismatch

__all__ = ["VERSION", "Checksum", "checksum_of"]

Checksum = Callable[[Buffer, int], int]

# Of new files.  Files of version 1 stay what they are: the checksums in them do.
VERSION = 2
_CHECKSUMS: dict[int, Checksum] = {1: zlib.crc32, 2: crc32c}


def checksum_of(version: int, path: str) -> Checksum:
    """How a file of this version is checked.

    Raises
    ------
    VersionMismatch : not known here
    """
    if version not in _CHECKSUMS:
        raise VersionMismatch(f"{path} has version {version}; this shmring reads 1 and {VERSION}")
    return _CHECKSUMS[version]
