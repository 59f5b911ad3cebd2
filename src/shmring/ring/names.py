"""Names and files of rings on this host: the one entry point to shared memory.

A named ring is the file ``/dev/shm/shmring.<name>``; with ``path=`` it is any file. This module
finds, opens, makes, lists and removes rings, and knows the free room of their folder. The core
makes and opens the file; posix_ipc, or the core, removes the name of an object in shared memory
(docs/layout.md, "Creation" and "Removal", says why).

Companion files, ``.shmring-KIND-FILE-OWNER``, are removed with their ring. FILE is the name of the
ring's file, and OWNER is a streaming query or a job. In a companion file, Spark's sinks keep the
record of a query, or rows of a job that has not committed yet. On a file system without O_TMPFILE,
a process that is killed while it makes a ring leaves ``.shmring-new-UUID``.
"""

from __future__ import annotations

import os
import re
import resource
import shlex
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple, cast

from shmring import _shmring
from shmring.errors import (
    Damaged,
    NotARing,
    PermissionRefused,
    RingNotFound,
    ShmringError,
)

SHM_FOLDER = "/dev/shm"
_PREFIX = "shmring."
REPLIES = "reply."  # prefix, before a sidecar's name, of the rings with the sidecar's answers
# Bytes of a ring's file besides the slots and the schema: the header, the cursors of the branches
# and the seats of the most participants that a ring may have, 248 (see docs/layout.md).
RING_OVERHEAD = 344 * 1024
# Prefix, before a sidecar's name, of rings with one request each: a worker that holds a request for
# long moves the request out of the sidecar's ring.
PARKED = "parked."
# Prefix of the rings of Spark's Python workers. A ring has a name until its worker attaches.
WORKERS = "worker."
REQUESTS = "sidecar."  # prefix, before a sidecar's name, of the ring with the sidecar's requests

Path = str | os.PathLike[str]


def is_name(text: str) -> bool:
    """Return whether `text` is a valid name of a ring."""
    try:
        _shmring.path_of(text)
    except ValueError:
        return False
    return True


def path_text(path: Path) -> str:
    """Return a path as text; refuse "", which some calls take for the working directory."""
    text = cast("str | bytes", os.fspath(path))
    if isinstance(text, bytes):
        raise TypeError(f"path must be a str or a path object, not {text!r}: os.fsdecode() it")
    if not text or "\0" in text:
        raise ValueError(f"path must be the path of a file or a directory, not {text!r}")
    return text


def locate(name: object, path: Path | None) -> tuple[str, str]:
    """Return the label that error messages show for a ring, and the path of the ring's file."""
    if (name is None) == (path is None):
        raise ValueError("a ring is found by its name or by its path: give one of the two")
    if path is not None:
        file = path_text(path)
        if os.path.basename(file) in ("", ".", ".."):
            raise ValueError(
                f"{file!r} cannot be a ring's path: it has to end in the name of the ring's file"
            )
        # Without a slash, the label would be taken for the name of a ring in shared memory.
        label = file if "/" in file else f"./{file}"
        # abspath() removes "..", but only the kernel knows where a symbolic link before it leads.
        goes_up = "/../" in f"/{file}/"
        whole = os.path.join(os.getcwd(), file) if goes_up else os.path.abspath(file)
        return label, whole
    if not isinstance(name, str):
        raise TypeError(f"a ring's name must be a str, not {name!r}")
    try:
        return name, _shmring.path_of(name)
    except ValueError:
        raise ValueError(
            f"{name!r} cannot name a ring: a name has 1 to 200 of the characters A-Z a-z 0-9 . _ - "
            "and begins with none of . and -; for a file elsewhere use path=..."
        ) from None


def locate_text(ring: str) -> tuple[str, str]:
    """Return what locate() returns; `ring` is a ring's name or, if it has a slash, a path."""
    return locate(None, ring) if "/" in ring else locate(ring, None)


def path_of(ring: str) -> str:
    """Return the path of a ring's file; `ring` is its name or, if it has a slash, a path."""
    return locate_text(ring)[1]


def memory() -> tuple[int, int]:
    """Return the bytes of shared memory on this host, and how many of them are free."""
    found = os.statvfs(SHM_FOLDER)
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize


def not_found(label: str, path: str) -> RingNotFound:
    if path != f"{SHM_FOLDER}/{_PREFIX}{label}":
        folder = os.path.dirname(path)
        if not os.path.isdir(folder):
            return RingNotFound(f"no ring at {path}: there is no folder {folder}")
        return RingNotFound(f"no ring at {path}; create it with shmring.create(path={path!r})")
    return RingNotFound(
        f'no ring "{label}" on this host (looked for {path}); create it with '
        f'shmring.create("{label}", slots=...) or `{command_line("create", label)}`'
    )


def attach_core(label: str, path: str, flags: int) -> _shmring.Ring:
    try:
        return _shmring.attach(path, label, flags)
    except RingNotFound:
        raise not_found(label, path) from None


def is_own_limit(slots: int) -> bool:
    """Return whether this process's limit (ulimit -f) is too small for a ring with these slots."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    most = slots * _shmring.SLOT_FILE_BYTES + RING_OVERHEAD
    return limit != resource.RLIM_INFINITY and most > limit


def command_line(verb: str, target: str, *arguments: str, **options: str) -> str:
    """Return the text of a command of `shmring`, quoted for a shell.

    Parameters
    ----------
    verb : the command's name, such as "unlink" or "journal truncate"
    target : what the command is for: the name or path of a ring, or a directory
    arguments : further arguments
    options : options with a value; `until="empty"` gives "--until empty"
    """
    if target.startswith("-"):
        target = f"./{target}"  # a path: a ring's name cannot begin with "-"
    # Put "--" before arguments that begin with "-", so that the command takes none for an option.
    dashes = ["--"] if any(each.startswith("-") for each in arguments) else []
    given = [word for name, value in options.items() for word in (f"--{name}", value)]
    return f"shmring {verb} {shlex.join([target, *given, *dashes, *arguments])}"


def unlink(name: str | None = None, *, path: Path | None = None) -> None:
    """Remove a ring's file. Attached processes continue to use it; no other process can attach.

    The files that Spark's sinks keep beside the ring go too: a job that has not committed fails.

    Parameters
    ----------
    name, path : one of the two

    Raises
    ------
    RingNotFound : there is no such ring
    NotARing : the file is not a ring; it stays
    PermissionRefused : the ring is another user's
    Contended : a process was stopped while it joined the ring or recovered it
    """
    label, where = locate(name, path)
    try:
        remove(where)
    except RingNotFound:
        raise not_found(label, where) from None


def remove(
    path: str,
    uuid: bytes | None = None,
    *,
    is_used: Callable[[list[dict[str, Any]]], bool] | None = None,
) -> bool:
    """Unlink the ring at this path, unless it is used; return whether it was unlinked.

    With `uuid`, only the ring with this uuid is unlinked. The function `is_used` gets the living
    participants (none if the ring is damaged) and returns whether the ring has to stay. Every
    process takes the ring's own lock to join, and this lock is held from the call of `is_used` to
    the unlink: no process can join in between. A handle of the caller counts as a participant
    unless it is closed before.
    """
    # List the companion files before the unlink: afterwards another ring of the same name may have
    # files here.
    kept = companions_of(path)
    unlink_name = _shm_unlink(path)
    removed = True

    def unlink_unless_used() -> None:
        nonlocal removed
        removed = is_used is None or not is_used(_users(path))
        if removed:
            (unlink_name or partial(_unlink_file, path))()

    _shmring.unlink(path, uuid, unlink_name if is_used is None else unlink_unless_used)
    if removed:
        _discard(kept)
    return removed


def _shm_unlink(path: str) -> Callable[[], None] | None:
    """Return the call of posix_ipc that removes the ring's name; None if unlink(2) has to do it."""
    folder, file = os.path.split(path)
    if folder != SHM_FOLDER:
        return None
    try:
        posix_ipc = import_module("posix_ipc")
    except ImportError:  # posix_ipc is only installed where it needs no compiler
        return None
    return partial(_unlink_object, posix_ipc, f"/{file}")


def _unlink_object(posix_ipc: Any, name: str) -> None:  # Any: posix_ipc has no types
    try:
        posix_ipc.unlink_shared_memory(name)
    except posix_ipc.ExistentialError:
        pass  # another process has removed the name already
    except posix_ipc.PermissionsError as error:
        raise PermissionRefused(f"cannot unlink {SHM_FOLDER}{name}: {error}") from None


def _unlink_file(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass  # another process has removed the file already
    except PermissionError as error:
        raise PermissionRefused(f"cannot unlink {path}: {error}") from None


def rings() -> list[str]:
    """Return the names of the rings on this host."""
    # A container may have no /dev/shm.
    files = os.listdir(SHM_FOLDER) if os.path.isdir(SHM_FOLDER) else []
    names = (f.removeprefix(_PREFIX) for f in files if f.startswith(_PREFIX))
    return sorted(n for n in names if is_name(n))


def reap(path: str, *, dry_run: bool = False) -> tuple[bool, list[str]]:
    """Remove the ring at this path if its participants are dead, and companion files of dead jobs.

    Return whether the ring was removed, and the paths of the removed companion files. A dry run
    removes nothing, and returns the same values.
    """
    kept = companions_of(path)
    reaped = _shmring.reapable(path) if dry_run else _shmring.reap(path)
    left = kept if reaped else _left_by_the_dead(path)
    if not dry_run:
        _discard(left)
    return reaped, left


def _living(path: str) -> list[dict[str, Any]]:
    ring = _shmring.attach(path, path, _shmring.READ_ONLY | _shmring.FOREIGN_COPY)
    try:
        return [participant for participant in ring.participants() if participant["alive"]]
    finally:
        ring.close()


# CHANGE: edit this for a new error
def _users(path: str) -> list[dict[str, Any]]:
    """Return the living participants; none for a damaged ring, because no process can join it."""
    try:
        return _living(path)
    except (Damaged, NotARing):
        return []


def sweep_folder(folder: str, file: str | None = None, *, dry_run: bool = False) -> list[str]:
    """Remove from a folder the companion files of rings that are gone, and unfinished rings.

    Return the paths that were removed; with `dry_run`, the paths that would be removed. `file` is
    the name of a ring's file: then companion files of other rings stay.
    """
    left = [
        kept.path for kept in _all_kept(folder) if file in (None, kept.file) and not _has_ring(kept)
    ]
    if not dry_run:
        _discard(left)
    for draft in filter(_DRAFT.fullmatch, _listed(folder)):
        draft = os.path.join(folder, draft)
        with suppress(ShmringError):  # keep an unfinished ring that a process is still making
            if _shmring.reapable(draft) if dry_run else _shmring.reap(draft):
                left.append(draft)
    return left


class Swept(NamedTuple):
    """The rings and files that gc() has removed, or would remove."""

    rings: list[str]  # names, or paths of rings without a name
    files: list[str]  # paths of companion files and unfinished rings
    skipped: list[tuple[str, str]]  # damaged or other users' rings, each with the error's text


def sweep(name: str | None, path: Path | None, *, dry_run: bool) -> Swept:
    """Do the work of gc(); with `dry_run` remove nothing, and return what gc() would remove."""
    swept = Swept([], [], [])
    one = name is not None or path is not None
    found = [locate(name, path)] if one else [locate(ring, None) for ring in rings()]
    for label, where in found:
        try:
            gone, beside = reap(where, dry_run=dry_run)
        except ShmringError as error:
            if one:
                raise
            swept.skipped.append((label, str(error)))
            continue
        swept.rings.extend([label] if gone else [])
        swept.files.extend(beside)
    folder, file = os.path.split(found[0][1]) if one else (SHM_FOLDER, None)
    swept.files.extend(sweep_folder(folder, file, dry_run=dry_run))
    return swept


def gc(name: str | None = None, *, path: Path | None = None) -> list[str]:
    """Unlink the rings whose participants are all dead; return their names (or the path).

    A ring stays if its participants have closed it, or if no process ever attached to it: it may be
    needed later. A temporary ring is unlinked when no living process is attached. The files of
    Spark's sinks are removed with their ring, and also if the ring is gone already or the job's
    driver is dead. A ring that a killed process left unfinished is removed, too. No other file is
    touched.

    Parameters
    ----------
    name, path : the only ring to examine; without both, all named rings, except rings that are
        damaged or another user's
    """
    return sweep(name, path, dry_run=False).rings


# --- companion files ------------------------------------------------------------------------------

SINK = "sink"  # kind of companion file: the last epoch that a streaming query began to write
STAGING = "staging"  # kind of companion file: rows of a job that has not committed yet
_KINDS = (SINK, STAGING)
# Beginning of a participant's name; a job's id follows. While a job runs, its driver takes part in
# the ring under this name (see RingJob.java).
_JOB_PARTICIPANT = "spark write "

_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
# The owner in a file's name is always a UUID. Otherwise ring "a" might take a file of ring "a-b"
# for its own.
_NAME = re.compile(rf"\.shmring-({'|'.join(_KINDS)})-(.+)-({_UUID})")
_DRAFT = re.compile(rf"\.shmring-new-{_UUID}")


class _Kept(NamedTuple):
    path: str
    kind: str
    file: str
    owner: str


def companions_of(ring: str) -> list[str]:
    """Return the companion files of the ring at this path."""
    return [kept.path for kept in _companions_of(ring)]


def _left_by_the_dead(ring: str) -> list[str]:
    """Return the ring's companion files that belong to jobs whose driver is dead."""
    staging = [kept for kept in _companions_of(ring) if kept.kind == STAGING]
    if staging:
        with suppress(ShmringError):  # keep all files if the ring's participants cannot be read
            # Read the participants after the folder: a driver joins the ring before it stages rows,
            # so the driver of each listed file, if alive, is among the participants.
            names = {participant["name"] for participant in _living(ring)}
            return [k.path for k in staging if _JOB_PARTICIPANT + k.owner not in names]
    return []


def _discard(paths: Iterable[str]) -> None:
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
    """Return the companion files that this user may remove.

    Other users' files are left out: any user can give a file the name of a companion file.
    """
    found = ((os.path.join(folder, name), _NAME.fullmatch(name)) for name in _listed(folder))
    return [_Kept(path, m[1], m[2], m[3]) for path, m in found if m and _is_ours(path)]


def _has_ring(kept: _Kept) -> bool:
    """Return whether the companion file's ring exists, made by the same user.

    After a ring is gone, another user may make a ring of the same name.
    """
    ring = os.path.join(os.path.dirname(kept.path), kept.file)
    with suppress(OSError):
        return os.lstat(ring).st_uid == os.lstat(kept.path).st_uid
    return False


def _is_ours(path: str) -> bool:
    with suppress(OSError):
        return os.geteuid() in (0, os.lstat(path).st_uid)
    return False


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
