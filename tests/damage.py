"""Bytes of files, changed as by a disk or by a stranger."""

from __future__ import annotations

from pathlib import Path


def overwrite(path: str | Path, at: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(data)


def flip(path: Path, at: int | None = None) -> bytes:
    """One bit of this byte, or of the one in the middle; all that the file has then."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if at is None else at] ^= 1
    path.write_bytes(data)
    return bytes(data)
