"""Looks at all rings and sidecars of this host, without joining any ring."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from shmring.common.closing import Closing
from shmring.errors import PermissionRefused, RingNotFound, ShmringError
from shmring.observers.spark_workers import SparkWorker, spark_workers
from shmring.ring import Ring, look_on
from shmring.ring.names import (
    PARKED,
    REPLIES,
    REQUESTS,
    SHM_FOLDER,
    WORKERS,
    memory,
    path_of,
    reap,
    rings,
    sweep_folder,
)
from shmring.ring.records import BranchLag, ParticipantRecord, RingInfo, RingStats
from shmring.sidecars.rings import request_at


# CHANGE: edit this for a new finding of check
# CHANGE: edit this for a new metric
@dataclass(frozen=True)
class Seen:
    """One look at a ring: its information, its statistics, and the ages of its messages."""

    info: RingInfo
    stats: RingStats
    # Seconds since the branch's oldest unreleased message was published, by the branch's name. A
    # branch is missing here if the time is not known.
    ages: dict[str, float]
    # Upper limit of the seconds for which a participant has had its oldest unreleased message, by
    # the participant's seat. The ring does not store when a message was taken. The message was
    # taken after it was published, after the consumer joined, and after the last look at which
    # the consumer did not have it yet.
    held: dict[int, float]
    # Description of the request that a sidecar's worker handles, by the worker's seat.
    requests: dict[int, str]

    @property
    def is_full(self) -> bool:
        """True if at least 90 % of the slots are used: producers wait, or soon will."""
        return self.stats["used"] >= 0.9 * self.stats["slots"]

    def due(self, branch: BranchLag) -> int:
        """Return the sequence before which the branch may take messages.

        A branch may take a message only after the branches that it follows have released it.
        """
        upstream = [b["released"] for b in self.stats["branches"] if b["name"] in branch["after"]]
        return min(upstream, default=self.stats["claimed"])

    def processes(self) -> list[ParticipantRecord]:
        """Return the participants that are processes.

        The others have no process id: each stands for messages that were handed back.
        """
        return [p for p in self.stats["participants"] if p["pid"]]

    def consumers(self, branch: str) -> list[ParticipantRecord]:
        """Return the living consumers of a branch."""
        those = self.stats["participants"]
        return [p for p in those if p["alive"] and p["branch"] == branch]

    def reaches(self, pid: int) -> bool:
        """Return whether the process with this id has the ring mapped and runs as the ring's owner.

        The process id in the ring may be wrong: any process that may write to the ring can change
        it, and a process in another PID namespace has another id here.
        """
        try:
            file = os.stat(self.stats["path"])
            dev, ino = file.st_dev, file.st_ino
            mapped = [f"{os.major(dev):02x}:{os.minor(dev):02x}", str(ino)]
            # Fields of a line: address range, rights, offset, device, inode, path.
            with open(f"/proc/{pid}/maps") as maps:
                if os.fstat(maps.fileno()).st_uid != file.st_uid:
                    return False
                return any(line.split(maxsplit=5)[3:5] == mapped for line in maps)
        except OSError:
            return False


@dataclass(frozen=True)
class RingLook:
    """One look at a ring, or the error that prevented the look."""

    name: str  # the ring's name; the path of its file if the ring has no name
    seen: Seen | None
    error: Exception | None = None
    target: str | None = None  # target of the ring's file, if the file is a symbolic link
    owner: int | None = None  # user id that owns the ring's file
    abandoned: bool = False  # True if `shmring gc` would remove the ring
    # Files that dead processes left beside the ring.
    left: list[str] = field(default_factory=list[str])

    @property
    def sidecar(self) -> str | None:
        """Name of the sidecar whose requests go through this ring; None for any other ring."""
        return self.name.removeprefix(REQUESTS) if self.name.startswith(REQUESTS) else None

    @property
    def is_reply(self) -> bool:
        """True if the ring carries the answers for one client of a sidecar."""
        return self.name.startswith(REPLIES)

    @property
    def is_parked(self) -> bool:
        """True if the ring holds one request that was moved out of its sidecar's ring."""
        return self.name.startswith(PARKED)

    @property
    def is_of_spark(self) -> bool:
        """True if a Python worker of Spark is about to attach to the ring, and remove its name."""
        return self.name.startswith(WORKERS)


@dataclass(frozen=True)
class HostLook:
    """One look at the rings and the shared memory of this host."""

    rings: list[RingLook]
    left: list[str]  # paths of files left by rings that are gone, or whose creation never ended
    memory: int  # bytes of shared memory
    free: int  # bytes of shared memory that are free
    missing: list[str]  # requested names that belong to no ring and to no sidecar
    foreign: int  # number of other users' rings that were left out
    whole: bool  # True if the look was for the whole host, False if for requested names only
    spark: list[SparkWorker]  # workers with functions over rings; none if names were requested

    def ring(self, name: str) -> Seen | None:
        """Return what was seen of a ring; None if the ring is missing or could not be read."""
        return next((each.seen for each in self.rings if each.name == name), None)


class Observer(Closing):
    """Looks at all rings of this host, or at the named rings, without joining any ring.

    Without names, the rings of other users are left out unless `foreign` is set: another user can
    make any number of rings.
    """

    def __init__(self, names: Sequence[str] = (), *, foreign: bool = False) -> None:
        self._names = list(dict.fromkeys(names))
        self._foreign = foreign
        self._attached: dict[str, _Attached] = {}  # attached rings, by path

    def close(self) -> None:
        for attached in self._attached.values():
            attached.ring.close()
        self._attached.clear()

    def look(self) -> HostLook:
        there = rings()
        wanted, missing = self._requested(there) if self._names else (self._ours(there), [])
        # One listing of the folder shows whether dead processes left files beside any ring; mostly
        # there are none, and no ring has to be examined for them.
        litter = any(file.startswith(".shmring-") for file in os.listdir(SHM_FOLDER))
        looks = {name: self._look_at(name, litter) for name in wanted}
        missing += [name for name, look in looks.items() if look is None and self._names]
        for path in self._attached.keys() - {path_of(name) for name in wanted}:
            self._attached.pop(path).ring.close()
        whole = not self._names
        left = sweep_folder(SHM_FOLDER, dry_run=True) if whole and litter else []
        return HostLook(
            [look for look in looks.values() if look is not None],
            [file for file in left if self._foreign or _is_own(file)],
            *memory(),
            missing,
            len(there) - len(wanted) if whole else 0,
            whole,
            spark_workers() if whole else [],
        )

    def _ours(self, there: list[str]) -> list[str]:
        """Return the rings to look at if no names were requested."""
        return [name for name in there if self._foreign or _is_own(path_of(name))]

    def _requested(self, there: list[str]) -> tuple[list[str], list[str]]:
        """Return the requested rings, each once, and the requested names that no ring has."""
        missing: list[str] = []
        named: dict[str, str] = {}  # names by path: a ring may have been named in two ways
        for name in self._names:
            found = [n for n in (name, f"{REQUESTS}{name}") if n in there]
            if not found and "/" in name and _is_there(name):
                found = [name]
            for each in found:
                folder, file = os.path.split(path_of(each))
                named.setdefault(os.path.join(os.path.realpath(folder), file), each)
            missing += [] if found else [name]
        return list(named.values()), missing

    def _look_at(self, name: str, litter: bool) -> RingLook | None:
        path = path_of(name)
        target = os.path.realpath(path) if os.path.islink(path) else None
        try:
            seen = _see(self._attach(name, path))
            there = seen.processes()
            dead = bool(there) and not any(participant["alive"] for participant in there)
            abandoned, left = dead, list[str]()
            if litter or dead:
                # Leave out the files of another user's ring: gc of this user cannot remove them.
                with suppress(PermissionRefused):
                    abandoned, left = reap(path, dry_run=True)
            owner = os.stat(path).st_uid  # fails for a temporary ring whose last user has just left
            return RingLook(name, seen, owner=owner, abandoned=abandoned, left=left)
        except (RingNotFound, FileNotFoundError):
            return None  # the ring was removed meanwhile
        except (ShmringError, OSError, ValueError, MemoryError) as error:
            return RingLook(name, None, error, target)

    def _attach(self, name: str, path: str) -> _Attached:
        file = os.lstat(path)
        others_may_write = file.st_uid != os.geteuid() or bool(file.st_mode & 0o022)
        known = self._attached.get(path)
        same = known is not None and known.inode == file.st_ino
        if known is not None and same and not others_may_write:
            return known
        # look_on() copies a ring that other users may write to. The copy does not follow the ring's
        # changes, so make a new copy for each look.
        ring = look_on(path=path) if "/" in name else look_on(name)
        if known is not None:
            known.ring.close()
        if known is None or not same:
            known = self._attached[path] = _Attached(file.st_ino, ring)
        known.ring = ring
        return known


def _is_there(path: str) -> bool:
    try:
        return os.path.lexists(path_of(path))
    except ValueError:  # the path names no file: it ends with a slash or with "..", for example
        return False


def _is_own(path: str) -> bool:
    try:
        return os.lstat(path).st_uid == os.geteuid()
    except FileNotFoundError:
        return False


@dataclass
class _Attached:
    """A ring that stays attached between looks, and the messages held at the last look."""

    inode: int  # inode of the ring's file
    ring: Ring
    looked: float = -math.inf  # time of the last look, by the monotonic clock
    # Oldest sequence that a consumer has not released, and the earliest time at which the consumer
    # can have taken it, by the consumer's seat and time of joining.
    holds: dict[tuple[int, int], tuple[int, float]] = field(
        default_factory=dict[tuple[int, int], tuple[int, float]]
    )

    def held(self, stats: RingStats) -> dict[int, float]:
        """Return the value of Seen.held for these statistics, and remember the messages held."""
        now, wall, before, found = time.monotonic(), time.time(), self.holds, dict[int, float]()
        self.holds = {}
        for participant in stats["participants"]:
            hold, seat, joined = participant["hold"], participant["seat"], participant["joined_ns"]
            if hold is None:
                continue
            was, since = before.get((seat, joined), (None, 0.0))
            since = since if was == hold else self.looked
            self.holds[seat, joined] = hold, since
            age = _age(self.ring, stats, hold)
            if age is not None:
                found[seat] = min(age, max(0.0, wall - joined / 1e9), now - since)
        self.looked = now
        return found


# CHANGE: edit this for a new metric
def _see(attached: _Attached) -> Seen:
    ring = attached.ring
    stats = ring.stats()
    ages = {
        branch["name"]: age
        for branch in stats["branches"]
        if branch["released"] < stats["claimed"]
        and (age := _age(ring, stats, branch["released"])) is not None
    }
    requests = {
        participant["seat"]: request_at(ring, participant["hold"])[0]
        for participant in stats["participants"]
        if participant["hold"] is not None and str(ring.name).startswith(REQUESTS)
    }
    return Seen(ring.info, stats, ages, attached.held(stats), requests)


def _age(ring: Ring, stats: RingStats, sequence: int) -> float | None:
    holder = stats["holder"]
    if holder is not None and holder["sequence"] == sequence:
        return holder["age_s"]
    slot = sequence % ring.slots
    for row in ring.rows(slot, slot + 1, 0):
        if row[1] == sequence and 0 < row[2] < 2**63:
            return max(0.0, time.time() - row[2] / 1e9)
    return None
