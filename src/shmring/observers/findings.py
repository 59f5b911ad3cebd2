"""Findings: everything wrong on this host, judged only from one or two looks at its rings.

`shmring check` and the exporter share this module.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from shmring._shmring import SLOT_FILE_BYTES
from shmring.common.words import counted
from shmring.errors import Damaged, NotARing, VersionMismatch
from shmring.observers.host import HostLook, RingLook, Seen
from shmring.ring import DEFAULT_SLOTS
from shmring.ring.names import SHM_FOLDER, command_line, path_of
from shmring.ring.records import (
    BranchLag,
    Finding,
    ParticipantRecord,
    is_journal,
    most_waiting,
)
from shmring.sidecars.rings import MOVED, Staff
from shmring.sidecars.rings import findings as findings_of_sidecar

AGE = 60.0  # seconds: default of the `age` of findings()
# CHANGE: edit this for a new finding of check
# Kinds of findings that need two looks: the finding, or its command, depends on whether a
# participant or a branch has moved between them.
MOVING = frozenset({"lease", "claim", "behind", "journal", "sidecar-hangs", "sidecar-floor"})

_SMALL = 64 << 20  # bytes: the default size of /dev/shm in a container
_DEFAULT_RING = DEFAULT_SLOTS * SLOT_FILE_BYTES
# A message that was delivered this number of times, or more often, is a finding. The number is the
# same as _DEATHS in client.py and DEATHS in SidecarClient.java: a sidecar's client gives up a batch
# after this number of workers have died over it.
_DELIVERIES = 3
_JOURNAL_BEHIND = 5.0  # seconds that a message may wait for the journal; a sync takes milliseconds

Status = Literal[1, 2]


# CHANGE: edit this for a new finding of check
def findings(now: HostLook, before: HostLook | None = None, *, age: float = AGE) -> list[Finding]:
    """Return all findings, the worst first.

    A message may be held, or wait, for `age` seconds without a finding. A participant or a branch
    that has moved since the earlier look, `before`, is not reported as hanging. Without an earlier
    look, each participant or branch that may hang is reported.
    """
    found = [*_of_host(now)] if now.whole else []
    found += map(_missing, now.missing)
    for ring in now.rings:
        of_ring = _of_ring(ring, before.ring(ring.name) if before else None, age)
        found += (_by_its_owner(each, ring.owner) for each in of_ring)
    return sorted(found, key=lambda each: -each.status)


def _by_its_owner(finding: Finding, owner: int | None) -> Finding:
    """Make the finding's command run as the ring's owner, if another user owns the ring."""
    if owner in (None, os.geteuid()) or not finding.command.startswith("shmring "):
        return finding
    return finding._replace(command=f"sudo -u '#{owner}' {finding.command}")


def _missing(name: str) -> Finding:
    words = f'neither a ring nor a sidecar is called "{name}" on this host'
    command = command_line("create", name)
    try:
        path = path_of(name)
    except ValueError as error:
        words, command = str(error), ""
    else:
        folder = os.path.dirname(path)
        if "/" in name and os.path.isdir(folder):
            words, command = "no file is at this path", command_line("create", path)
        elif "/" in name:
            words, command = f"no file is at this path: there is no folder {folder}", ""
    return Finding(2, "missing", name, None, words, command)


def _of_host(now: HostLook) -> Iterator[Finding]:
    rings = [ring for ring in now.rings if not (ring.is_reply or ring.is_parked)]
    used = 1 - now.free / now.memory if now.memory else 0.0
    size = f"{SHM_FOLDER} has {now.memory >> 20:,} MiB, of which {now.free >> 20:,} MiB are free"
    remount = f"mount -o remount,size={max(1 << 30, 2 * now.memory) >> 20}m {SHM_FOLDER}"
    command = "shmring gc" if any(ring.abandoned for ring in now.rings) else remount
    if used >= 0.9:
        yield Finding(2 if used >= 0.98 else 1, "memory", None, None, size, command)
    elif now.memory <= _SMALL and rings and now.free < _DEFAULT_RING:
        words = f"{size}: no further ring of the usual size fits"
        yield Finding(1, "memory", None, None, words, command)
    if now.left:
        yield Finding(1, "left-behind", None, None, _left(now.left), "shmring gc")


def _left(paths: list[str]) -> str:
    return f"the dead have left {counted(len(paths), 'path')}: {', '.join(paths[:3])}"


# CHANGE: edit this for a new finding of check
def _of_ring(ring: RingLook, before: Seen | None, age: float) -> Iterator[Finding]:
    name, sidecar = ring.name, ring.sidecar
    if ring.seen is None:
        yield _unseen(ring)
        return
    gc = command_line("gc", name)
    if ring.left:
        yield Finding(1, "left-behind", name, None, _left(ring.left), gc)
    # Report nothing about a ring with one request that was moved out of a sidecar's ring: the
    # sidecar's workers remove such a ring.
    if ring.is_parked:
        return
    if ring.is_of_spark and not ring.abandoned:  # a worker starts
        return
    participants = ring.seen.processes()
    if sidecar is not None:
        yield from findings_of_sidecar(sidecar, participants)
        yield from _hanging_workers(sidecar, ring.seen, before, age)
        yield from _held_floor(sidecar, ring.seen, before)
    elif ring.abandoned and participants:
        several = len(participants) > 1
        who = f"all {len(participants)} participants have" if several else "its participant has"
        yield Finding(1, "abandoned", name, None, f"{who} died{_would_go(ring.seen)}", gc)
        return
    if sidecar is None and not ring.is_reply:
        yield from _stopped(name, ring.seen)
        yield from _held(name, ring.seen, before, age)
        yield from _redelivered(name, ring.seen)
        for branch in ring.seen.stats["branches"]:
            yield from _of_branch(_Branch(name, branch, ring.seen, before, age))
    yield from _crowded(name, ring.seen)
    # Yield this finding last: its command removes the ring, which the commands above keep.
    if sidecar is None and not participants:
        words = f"nobody is attached to it{_would_go(ring.seen)}"
        yield Finding(1, "unused", name, None, words, command_line("unlink", name))


def _would_go(seen: Seen) -> str:
    waiting = most_waiting(seen.stats)
    if not waiting:
        return ""
    return (
        ". Start the program that reads it, or let the command remove it: the "
        f"{counted(waiting, 'message')} waiting in it would go with it"
    )


def _unseen(ring: RingLook) -> Finding:
    words, error, path = str(ring.error), ring.error, path_of(ring.name)
    # Suggest removing only a file with a ring's name in /dev/shm: after a misspelled path, the
    # command would remove a file of the user.
    is_ours = path.startswith(f"{SHM_FOLDER}/shmring.")
    remove = f"{'rmdir' if os.path.isdir(path) else 'rm'} {shlex.quote(path)}" if is_ours else ""
    if ring.target is not None:
        there = os.path.exists(ring.target)
        words += f"; it leads to {ring.target}" + ("" if there else ", where nothing is")
        command = command_line("check", ring.target) if there else remove
        return Finding(2, "link", ring.name, None, words, command)
    # CHANGE: edit this for a new error
    if isinstance(error, VersionMismatch):
        # Suggest no command that removes the ring: programs of the other version may use it.
        return Finding(2, "version", ring.name, None, words)
    if isinstance(error, (NotARing, Damaged)):
        command = remove if isinstance(error, NotARing) else command_line("unlink", ring.name)
        return Finding(2, "damaged", ring.name, None, words, command)
    if isinstance(error, PermissionError):
        command = f"sudo {command_line('check', ring.name)}" if os.geteuid() else ""
        return Finding(1, "permission", ring.name, None, words, command)
    return Finding(2, "unreadable", ring.name, None, words or "out of memory")


def _who(participant: ParticipantRecord) -> str:
    name = f' "{participant["name"]}"' if participant["name"] else ""
    return f"{participant['role']}{name} (pid {participant['pid']})"


def _kill(participants: Iterable[ParticipantRecord], seen: Seen) -> str:
    """Return the command that kills the participants' processes.

    The command leaves out each process id that names an unrelated process here: the participant may
    be in another PID namespace. If no id is left, the command is empty.
    """
    pids = dict.fromkeys(participant["pid"] for participant in participants)  # removes duplicates
    reached = [str(pid) for pid in pids if seen.reaches(pid)]
    return f"kill -9 {' '.join(reached)}" if reached else ""


def _stopped(ring: str, seen: Seen) -> Iterator[Finding]:
    for participant in seen.stats["participants"]:
        if not participant["alive"] or not participant["stopped"]:
            continue
        claim, hold = participant["claim"], participant["hold"]
        if claim is not None:
            words = f"is stopped and has an open claim at sequence {claim:,}: what is behind waits"
        elif hold is not None:
            words = f"is stopped and holds messages from sequence {hold:,} on"
        elif participant["role"] == "consumer":
            words = f'is stopped; it takes nothing of branch "{participant["branch"]}"'
        else:
            continue
        status: Status = 2 if claim is not None or seen.is_full else 1
        command = f"kill -CONT {participant['pid']}" if seen.reaches(participant["pid"]) else ""
        yield Finding(status, "stopped", ring, None, f"{_who(participant)} {words}", command)


def _held(ring: str, seen: Seen, before: Seen | None, age: float) -> Iterator[Finding]:
    for participant in seen.stats["participants"]:
        held = seen.held.get(participant["seat"], -1.0)
        alive = participant["alive"] and not participant["stopped"]
        if alive and held >= age and _unmoved(participant, before, "hold"):
            words = (
                f'{_who(participant)} of branch "{participant["branch"]}" has held a message for '
                f"up to {held:,.0f} s, and does not go on. Look at what it does. If it hangs, "
                f"kill it: another consumer then gets its messages"
            )
            status: Status = 2 if seen.is_full else 1
            yield Finding(status, "lease", ring, None, words, _kill([participant], seen))
    holder = seen.stats["holder"]
    if holder is None or holder["kind"] != "claim" or not holder["alive"] or holder["stopped"]:
        return
    for participant in seen.stats["participants"]:
        claim = participant["claim"] == holder["sequence"]
        if claim and _unmoved(participant, before, "claim"):
            words = f"{_who(participant)} keeps a claim open, for which all that is behind waits"
            yield Finding(2 if seen.is_full else 1, "claim", ring, None, words)


def _redelivered(ring: str, seen: Seen) -> Iterator[Finding]:
    for each in seen.stats["participants"]:
        if each["deliveries"] >= _DELIVERIES:
            where = f"{_who(each)} has it" if each["alive"] else "it waits for the next consumer"
            words = (
                f'branch "{each["branch"]}": message {each["most_delivered"]:,} was delivered '
                f"{each['deliveries']} times, to consumers that died or handed it back, and "
                f"{where}. With max_deliveries= and dead_letter= consumers set such messages aside"
            )
            yield Finding(1, "redelivered", ring, None, words)


def _unmoved(
    participant: ParticipantRecord, before: Seen | None, what: Literal["hold", "claim"]
) -> bool:
    if before is None:
        return True
    return any(
        was["seat"] == participant["seat"]
        and was["joined_ns"] == participant["joined_ns"]
        and was[what] == participant[what]
        for was in before.stats["participants"]
    )


@dataclass(frozen=True)
class _Branch:
    """A branch in one look at its ring, with the words and commands of the branch's findings."""

    ring: str
    record: BranchLag
    seen: Seen
    before: Seen | None
    age: float

    @property
    def name(self) -> str:
        return self.record["name"]

    @property
    def lag(self) -> int:
        """Number of slots that the branch could take now, and has not taken."""
        return max(0, self.seen.due(self.record) - self.record["position"])

    @property
    def waited(self) -> float:
        """Seconds that the branch's oldest message has waited."""
        return self.seen.ages.get(self.name, 0.0)

    @property
    def consumers(self) -> list[ParticipantRecord]:
        return self.seen.consumers(self.name)

    @property
    def has_moved(self) -> bool:
        branches = self.before.stats["branches"] if self.before else [self.record]
        was = [branch["position"] for branch in branches if branch["name"] == self.name]
        return was[:1] != [self.record["position"]]

    @property
    def behind(self) -> str:
        return f"{self.lag:,} of {self.seen.stats['slots']:,} slots wait for it"

    def finding(self, kind: str, words: str, command: str) -> Finding:
        status: Status = 2 if self.seen.is_full else 1
        return Finding(status, kind, self.ring, None, words, command)

    def command(self, verb: str, *arguments: str, **options: str) -> str:
        return command_line(verb, self.ring, *arguments, **options)


# CHANGE: edit this for a new option of a journal
def _journal_ended(branch: _Branch) -> Finding | None:
    if not is_journal(branch.record):
        return None
    words = f"its journal does not run; {branch.behind}"
    return branch.finding("journal", words, branch.command("journal run", "DIRECTORY"))


def _orphans(branch: _Branch) -> Finding | None:
    if not (branch.record["orphans"] or _dead_holders(branch.name, branch.seen)):
        return None
    words = (
        f'branch "{branch.name}" has {counted(branch.record["waiting"], "message")} waiting, and '
        f"no consumer: some were handed back, or on lease to consumers that died; "
        f"{branch.behind}. Start its reader, or let the command print and release all of them"
    )
    command = branch.command("consume", branch=branch.name, until="empty")
    return branch.finding("orphans", words, command)


def _no_consumer(branch: _Branch) -> Finding | None:
    is_old = 2 * branch.lag >= branch.seen.stats["slots"] or branch.waited > branch.age
    if branch.record["drop_oldest"] or not branch.lag or not is_old:
        return None
    holds = "holds" if branch.seen.is_full else "will hold"
    words = (
        f'branch "{branch.name}" has no consumer, and {holds} the producers; {branch.behind}. '
        f"Start its reader, or let the command drop the branch: the "
        f"{counted(branch.record['waiting'], 'message')} waiting for it would go with it"
    )
    command = branch.command("drop-branch", branch.name)
    return branch.finding("no-consumer", words, command)


# CHANGE: edit this for a new option of a journal
def _journal_behind(branch: _Branch) -> Finding | None:
    is_late = branch.waited > min(branch.age, _JOURNAL_BEHIND)
    if not is_journal(branch.record) or not is_late or any(c["stopped"] for c in branch.consumers):
        return None
    words = f"its journal is {branch.waited:,.0f} s behind; {branch.behind}"
    # Suggest no kill if the journal has taken messages between the two looks: such a journal works,
    # and to start it again would only cost time.
    command = "" if branch.has_moved else _kill(branch.consumers, branch.seen)
    return branch.finding("journal", words, command)


def _behind(branch: _Branch) -> Finding | None:
    first, *others = branch.consumers
    # Report only idle consumers here: another finding reports a consumer that is stopped, or has
    # taken a message and not released it.
    idle = all(not c["stopped"] and c["hold"] is None for c in (first, *others))
    if not branch.lag or branch.waited < branch.age or not idle or branch.has_moved:
        return None
    take = f" and {len(others)} more take" if others else " takes"
    words = (
        f'branch "{branch.name}": {_who(first)}{take} nothing, and {branch.behind}, '
        f"the oldest {branch.waited:,.0f} s. Look at what the consumers do. If they hang, "
        f"kill them and start them again"
    )
    return branch.finding("behind", words, _kill((first, *others), branch.seen))


# CHANGE: edit this for a new finding of check
# Rules for branches without and with consumers; a branch gets the finding of the first rule that
# has one.
_WITHOUT_CONSUMERS = (_journal_ended, _orphans, _no_consumer)
_WITH_CONSUMERS = (_journal_behind, _behind)


def _of_branch(branch: _Branch) -> list[Finding]:
    table = _WITH_CONSUMERS if branch.consumers else _WITHOUT_CONSUMERS
    return [found for rule in table if (found := rule(branch))][:1]


def _dead_holders(branch: str, seen: Seen) -> int:
    """Return the number of dead consumers whose messages nobody has recovered yet."""
    return sum(
        not participant["alive"]
        and participant["branch"] == branch
        and participant["hold"] is not None
        for participant in seen.stats["participants"]
    )


def _crowded(ring: str, seen: Seen) -> Iterator[Finding]:
    there, most = seen.stats["participants"], seen.info.participants
    if len(there) >= 0.9 * most:
        dead = sum(not participant["alive"] for participant in seen.processes())
        words = f"{len(there)} of {most} participants are used, {dead} of them by the dead"
        command = command_line("recover", ring) if dead else ""
        yield Finding(2 if len(there) >= most else 1, "participants", ring, None, words, command)


def _hanging_workers(
    sidecar: str, seen: Seen, before: Seen | None, age: float
) -> Iterator[Finding]:
    staff = Staff.of(seen.stats["participants"])
    at: list[tuple[ParticipantRecord, str]] = []
    for worker in staff.workers:
        held, moved = seen.held.get(worker["seat"], -1.0), staff.moved_of(worker)
        if worker["stopped"]:
            continue
        if moved is not None and (seconds := time.time() - moved["joined_ns"] / 1e9) >= age:
            request = moved["name"].removeprefix(MOVED)
            at.append((worker, f"{request} for more than {seconds:,.0f} s"))
        elif held >= age and _unmoved(worker, before, "hold"):
            at.append((worker, f"{seen.requests[worker['seat']]} for up to {held:,.0f} s"))
    waits = any(branch["lag"] for branch in seen.stats["branches"])
    status: Status = 2 if waits and len(at) == len(staff.workers) else 1
    for worker, what in at:
        words = f"worker {worker['pid']} ({worker['name']}) has been at {what}"
        yield Finding(status, "sidecar-hangs", None, sidecar, words, _kill([worker], seen))


def _held_floor(sidecar: str, seen: Seen, before: Seen | None) -> Iterator[Finding]:
    worker = floor_holder(seen)
    if worker is not None and _unmoved(worker, before, "hold"):
        words = (
            f"worker {worker['pid']} ({worker['name']}) is at {seen.requests[worker['seat']]}, "
            f"which stays in the ring: clients wait for its slots, and other workers for requests"
        )
        command = f"kill -CONT {worker['pid']}" if worker["stopped"] else _kill([worker], seen)
        yield Finding(2, "sidecar-floor", None, sidecar, words, command)


def floor_holder(seen: Seen) -> ParticipantRecord | None:
    """Return the worker whose lease fills a sidecar's ring while other workers are idle.

    Return None if there is no such worker, or less than half of the ring is used. The lease is at
    the floor, the oldest sequence that is still in the ring, so no later slot can be freed.
    """
    stats = seen.stats
    holder, staff = stats["holder"], Staff.of(stats["participants"])
    idle = any(not worker["stopped"] and not staff.is_busy(worker) for worker in staff.workers)
    if not idle or 2 * stats["used"] < stats["slots"]:
        return None
    if holder is None or holder["kind"] != "lease":
        return None
    return next((w for w in staff.workers if w["hold"] == holder["sequence"]), None)
