"""Names and files of rings on this host.

A named ring is the file ``/dev/shm/shmring.<name>``; with ``path=`` it is any file.
"""

from __future__ import annotations

import os
import re
import stat
from importlib import import_module
from typing import Any

from shmring import _shmring, beside
from shmring.errors import NotARing, PermissionRefused, RingExists, RingNotFound, ShmringError

SHM_FOLDER = "/dev/shm"
PREFIX = "shmring."
MAGIC = b"\x89SHMRNG\n"

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")

Path = str | os.PathLike[str]


def is_name(text: str) -> bool:
    """Whether `text` can name a ring."""
    return NAME.fullmatch(text) is not None


def locate(name: object, path: Path | None) -> tuple[str, str]:
    """The label used in messages and the path of the file."""
    if (name is None) == (path is None):
        raise ValueError("a ring is found by its name or by its path: give one of the two")
    if path is not None:
        file = os.fspath(path)
        if not file or "\0" in file:
            raise ValueError(f"path must be the path of a file, not {file!r}")
        return file, os.path.abspath(file)
    if not isinstance(name, str):
        raise TypeError(f"a ring's name must be a str, not {name!r}")
    if not is_name(name):
        raise ValueError(
            f"{name!r} cannot name a ring: a name has 1 to 200 of the characters A-Z a-z 0-9 . _ - "
            "and begins with none of . and -; for a file elsewhere use path=..."
        )
    return name, f"{SHM_FOLDER}/{PREFIX}{name}"


def not_found(label: str, path: str) -> RingNotFound:
    if label == path or not path.startswith(f"{SHM_FOLDER}/{PREFIX}"):
        return RingNotFound(f"no ring at {path}; create it with shmring.create(path={path!r})")
    return RingNotFound(
        f'no ring "{label}" on this host (looked for {path}); create it with '
        f'shmring.create("{label}", slots=...) or `shmring create {label}`'
    )


def attach_core(label: str, path: str, flags: int) -> _shmring.Ring:
    try:
        return _shmring.attach(path, label, flags)
    except RingNotFound:
        raise not_found(label, path) from None


def _posix_ipc() -> Any:
    return import_module("posix_ipc")  # it has no types


def make_named(name: str, path: str, mode: int, **options: Any) -> None:
    posix_ipc = _posix_ipc()

    key = f"/{PREFIX}{name}"
    try:
        memory = posix_ipc.SharedMemory(key, flags=posix_ipc.O_CREX, mode=mode, size=0)
    except posix_ipc.ExistentialError:
        raise RingExists(
            f'ring "{name}" exists already ({path}); attach to it with shmring.attach("{name}"), '
            f'or remove it with shmring.unlink("{name}") or `shmring unlink {name}`'
        ) from None
    except posix_ipc.PermissionsError as error:
        raise PermissionRefused(f'ring "{name}": {SHM_FOLDER} is not writable: {error}') from None
    try:
        _shmring.make(name, memory.fd, mode=mode, **options)
    except BaseException:
        posix_ipc.unlink_shared_memory(key)
        raise
    finally:
        memory.close_fd()


def unlink(name: str | None = None, *, path: Path | None = None) -> None:
    """Remove a ring's file. Who is attached goes on with it; nobody can attach any more.

    What Spark's sinks keep beside it goes too: a job that has not committed fails.

    Parameters
    ----------
    name, path : one of the two

    Raises
    ------
    RingNotFound : there is none
    NotARing : the path is some other file; it is left alone
    PermissionRefused : it is somebody else's
    """
    label, where = locate(name, path)
    kept = beside.kept_beside(where)  # not afterwards: another ring may take the name
    try:
        if name is None:
            _check_magic(where)
            os.unlink(where)
        else:
            _unlink_named(name)
    except FileNotFoundError:
        raise not_found(label, where) from None
    except PermissionError as error:
        raise PermissionRefused(f'ring "{label}": cannot unlink {where}: {error}') from None
    beside.discard(kept)


def _unlink_named(name: str) -> None:
    posix_ipc = _posix_ipc()

    try:
        posix_ipc.unlink_shared_memory(f"/{PREFIX}{name}")
    except posix_ipc.ExistentialError as error:
        raise FileNotFoundError(error) from None
    except posix_ipc.PermissionsError as error:
        raise PermissionError(error) from None


def _check_magic(path: str) -> None:
    """A damaged ring or one of another version may go, any other file stays."""
    if stat.S_ISREG(os.stat(path).st_mode):  # to open a FIFO would wait for a writer
        with open(path, "rb") as file:
            if file.read(len(MAGIC)) == MAGIC:
                return
    raise NotARing(f"{path} is not a ring; it is left alone")


def rings() -> list[str]:
    """Names of the rings on this host."""
    names = (f.removeprefix(PREFIX) for f in os.listdir(SHM_FOLDER) if f.startswith(PREFIX))
    return sorted(n for n in names if is_name(n))


def _reap(path: str) -> bool:
    kept = beside.kept_beside(path)
    reaped = _shmring.reap(path)
    if reaped:
        beside.discard(kept)
    return reaped


def _reaped(path: str) -> bool:
    try:
        return _reap(path)
    except ShmringError:
        return False


def gc(name: str | None = None, *, path: Path | None = None) -> list[str]:
    """Unlink rings whose every participant is dead, or that were never finished.

    A ring that was closed in order, or never attached, stays: somebody may come for it. A
    temporary one goes when nobody living is attached. What Spark's sinks have kept beside a ring
    goes with it, or without a name when the ring is gone already.

    Parameters
    ----------
    name, path : only this ring; neither: all named rings, and those that are damaged or
        somebody else's are passed over

    Returns
    -------
    names (or the path) of what was unlinked
    """
    if name is None and path is None:
        swept = [n for n in rings() if _reaped(locate(n, None)[1])]
        beside.discard(beside.orphans(SHM_FOLDER))
        return swept
    label, where = locate(name, path)
    return [label] if _reap(where) else []
