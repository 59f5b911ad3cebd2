"""What is there on this host: all rings, and the sidecars among them, looked at from outside."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from shmring.closing import Closing
from shmring.errors import PermissionRefused, RingNotFound, ShmringError
from shmring.names import (
    PARKED,
    REPLIES,
    REQUESTS,
    SHM_FOLDER,
    memory,
    path_of,
    reap,
    rings,
    sweep_folder,
)
from shmring.records import BranchLag, ParticipantRecord, RingInfo, RingStats
from shmring.ring import Ring, look_on
from shmring.sidecars.rings import request_at


# CHANGE: a new finding of check
@dataclass(frozen=True)
class Seen:
    """What could be seen of a ring."""

    info: RingInfo
    stats: RingStats
    # Seconds since the oldest message was published that a branch has not released, if it is known.
    ages: dict[str, float]
    # Seconds for which a participant has held its oldest message, at most, by its seat. The ring
    # has no time of a take: it came after the message, after its consumer, and after the last look
    # that did not see it.
    held: dict[int, float]
    requests: dict[int, str]  # of a sidecar, what each worker is at, in words, by its seat

    @property
    def is_full(self) -> bool:
        """Whether producers wait, or soon will."""
        return self.stats["used"] >= 0.9 * self.stats["slots"]

    def due(self, branch: BranchLag) -> int:
        """The sequence up to which a branch may take, as the branches before it have released."""
        upstream = [b["released"] for b in self.stats["branches"] if b["name"] in branch["after"]]
        return min(upstream, default=self.stats["claimed"])

    def processes(self) -> list[ParticipantRecord]:
        """The participants, without those that stand for messages which were handed back."""
        return [p for p in self.stats["participants"] if p["pid"]]

    def consumers(self, branch: str) -> list[ParticipantRecord]:
        """The living consumers of a branch."""
        those = self.stats["participants"]
        return [p for p in those if p["alive"] and p["branch"] == branch]

    def reaches(self, pid: int) -> bool:
        """Whether the process of this id has the ring, and is of the user who owns it.

        The ring's word for the id is anybody's who may write to it, or of another PID namespace.
        """
        try:
            file = os.stat(self.stats["path"])
            dev, ino = file.st_dev, file.st_ino
            mapped = [f"{os.major(dev):02x}:{os.minor(dev):02x}", str(ino)]
            with open(f"/proc/{pid}/maps") as maps:  # range, rights, offset, device, inode, path
                if os.fstat(maps.fileno()).st_uid != file.st_uid:
                    return False
                return any(line.split(maxsplit=5)[3:5] == mapped for line in maps)
        except OSError:
            return False


@dataclass(frozen=True)
class RingLook:
    """A ring as it was seen, or why it was not."""

    name: str  # the path of its file if it has none
    seen: Seen | None
    error: Exception | None = None
    target: str | None = None  # where its file, a symbolic link, leads
    owner: int | None = None  # user id of its file
    abandoned: bool = False  # so that `shmring gc` removes it
    left: list[str] = field(default_factory=list[str])  # what the dead have left beside it

    @property
    def sidecar(self) -> str | None:
        """The sidecar whose requests it takes."""
        return self.name.removeprefix(REQUESTS) if self.name.startswith(REQUESTS) else None

    @property
    def is_reply(self) -> bool:
        """Whether it is for one client's answers."""
        return self.name.startswith(REPLIES)

    @property
    def is_parked(self) -> bool:
        """Whether it has one request that has left its sidecar's ring."""
        return self.name.startswith(PARKED)


@dataclass(frozen=True)
class HostLook:
    """The rings, and the memory, that one look has seen."""

    rings: list[RingLook]
    left: list[str]  # paths of what rings that are gone, or were never finished, have left
    memory: int  # bytes of shared memory
    free: int
    missing: list[str]  # names that were asked for, and are neither a ring's nor a sidecar's
    foreign: int  # rings of other users that were left out
    whole: bool  # everything was looked at, not only what was named

    def ring(self, name: str) -> Seen | None:
        """What was seen of a ring."""
        return next((each.seen for each in self.rings if each.name == name), None)


class Observer(Closing):
    """Looks at all rings of this host, or at those that are named, without joining any.

    Without names, `foreign` are those of other users too, who can make as many as they like.
    """

    def __init__(self, names: Sequence[str] = (), *, foreign: bool = False) -> None:
        self._names = list(dict.fromkeys(names))
        self._foreign = foreign
        self._attached: dict[str, _Attached] = {}  # by path

    def close(self) -> None:
        """Let go of all rings."""
        for attached in self._attached.values():
            attached.ring.close()
        self._attached.clear()

    def look(self) -> HostLook:
        """Look at the rings; return what is there now."""
        there = rings()
        missing: list[str] = []
        named: dict[str, str] = {}  # by path: one may have been named in two ways
        for name in self._names:
            found = [n for n in (name, f"{REQUESTS}{name}") if n in there]
            if not found and "/" in name and os.path.lexists(name):
                found = [name]
            for each in found:
                folder, file = os.path.split(path_of(each))
                named.setdefault(os.path.join(os.path.realpath(folder), file), each)
            missing += [] if found else [name]
        wanted = list(named.values()) if self._names else there
        if not self._names and not self._foreign:
            wanted = [name for name in there if _is_own(path_of(name))]
        foreign = 0 if self._names else len(there) - len(wanted)
        # Beside most rings there is nothing: a look at the folder tells.
        litter = any(file.startswith(".shmring-") for file in os.listdir(SHM_FOLDER))
        looks: list[RingLook] = []
        for name in wanted:
            if (look := self._look_at(name, litter)) is not None:
                looks.append(look)
            elif self._names:
                missing.append(name)
        for path in self._attached.keys() - {path_of(name) for name in wanted}:
            self._attached.pop(path).ring.close()
        whole = not self._names
        left = sweep_folder(SHM_FOLDER, dry_run=True) if whole and litter else []
        left = [file for file in left if self._foreign or _is_own(file)]
        return HostLook(looks, left, *memory(), missing, foreign, whole)

    def _look_at(self, name: str, litter: bool) -> RingLook | None:
        path = path_of(name)
        target = os.path.realpath(path) if os.path.islink(path) else None
        try:
            seen = _see(self._attach(name, path))
            there = seen.processes()
            dead = bool(there) and not any(participant["alive"] for participant in there)
            abandoned, left = dead, list[str]()
            if litter or dead:
                with suppress(PermissionRefused):  # another user's, who may remove it
                    abandoned, left = reap(path, dry_run=True)
            owner = os.stat(path).st_uid  # a temporary ring goes with its last user
            return RingLook(name, seen, owner=owner, abandoned=abandoned, left=left)
        except (RingNotFound, FileNotFoundError):
            return None  # it has gone meanwhile
        except (ShmringError, OSError, ValueError, MemoryError) as error:
            return RingLook(name, None, error, target)

    def _attach(self, name: str, path: str) -> _Attached:
        file = os.lstat(path)
        others_may_write = file.st_uid != os.geteuid() or bool(file.st_mode & 0o022)
        known = self._attached.get(path)
        same = known is not None and known.inode == file.st_ino
        if known is not None and same and not others_may_write:
            return known
        ring = look_on(path=path) if "/" in name else look_on(name)  # a copy ages: a new one
        if known is not None:
            known.ring.close()
        if known is None or not same:
            known = self._attached[path] = _Attached(file.st_ino, ring)
        known.ring = ring
        return known


def _is_own(path: str) -> bool:
    try:
        return os.lstat(path).st_uid == os.geteuid()
    except FileNotFoundError:
        return False


@dataclass
class _Attached:
    """A ring, and what its last look has seen to be held: by whom, what, and since when at most."""

    inode: int
    ring: Ring
    looked: float = -math.inf
    holds: dict[tuple[int, int], tuple[int, float]] = field(
        default_factory=dict[tuple[int, int], tuple[int, float]]
    )

    def held(self, stats: RingStats) -> dict[int, float]:
        """As in Seen."""
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
