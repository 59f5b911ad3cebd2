"""How a sidecar is, for probes and people: looked at from outside, without joining it."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable
from typing import Literal, NamedTuple

import shmring
from shmring.errors import RingNotFound, ShmringError
from shmring.records import Finding, ParticipantRecord
from shmring.sidecars.participants import (
    CLIENT,
    LOADING,
    RESTART_SECONDS,
    RESTARTED,
    SUPERVISOR,
    age_of,
    in_words,
    others,
    request_at,
)
from shmring.sidecars.wire import request_ring_name

Status = Literal[0, 1, 2]

_AGAIN = 3  # deaths within RESTART_SECONDS that are no single accident
_MOMENT = 1.0  # seconds in which a worker that does not hang ends a request, or takes another
_CALM = 60.0  # seconds without a further one, after which that is over


class Health(NamedTuple):
    """What is to be said of a sidecar.

    Attributes
    ----------
    status : as monitoring plugins have it: 0 it serves; 1 it serves no request yet, or with fewer
        workers than it has, or a worker is at one request for too long; 2 it serves none, and
        nothing shows that it will
    words : one statement each
    """

    status: Status
    words: list[str]


class Staff(NamedTuple):
    """The living processes of a sidecar, by what they are for.

    Attributes
    ----------
    restarts, recent, last_ns : workers that were replaced, those of them that were so lately, and
        when the last one was
    """

    workers: list[ParticipantRecord]
    loading: list[ParticipantRecord]
    supervisors: list[ParticipantRecord]
    clients: list[ParticipantRecord]
    restarts: int
    recent: int
    last_ns: int

    @classmethod
    def of(cls, participants: Iterable[ParticipantRecord]) -> Staff:
        """Find them among the participants of the request ring."""
        alive = [participant for participant in participants if participant["alive"]]
        named = {
            name: [participant for participant in alive if participant["name"].startswith(name)]
            for name in (LOADING, SUPERVISOR, CLIENT, RESTARTED)
        }
        lately = time.time_ns() - RESTART_SECONDS * 10**9
        total = recent = last = 0
        for participant in named[RESTARTED]:
            counts = re.findall(r"\d+", participant["name"])
            if len(counts) == 2:
                total += int(counts[0])
                recent += int(counts[1]) if participant["joined_ns"] > lately else 0
                last = max(last, participant["joined_ns"])
        workers = [participant for participant in alive if participant["role"] == "consumer"]
        of = (named[LOADING], named[SUPERVISOR], named[CLIENT])
        return cls(workers, *of, restarts=total, recent=recent, last_ns=last)


def check(sidecar: str, *, busy: float = math.inf) -> Health:
    """Look at a sidecar of this host.

    Parameters
    ----------
    sidecar : name of it
    busy : seconds for which a worker may be at one request. The ring has no time of a take: what
        waited for so long before it was taken counts only if it is still there after a second
    """
    try:
        with shmring.attach(request_ring_name(sidecar), read_only=True) as ring:
            participants = ring.participants()
            long = _at_work(ring, participants, busy)
            if long:
                time.sleep(_MOMENT)
                participants = ring.participants()
                long &= _at_work(ring, participants, busy)
            serves = {
                worker["seat"]: _serves(ring, worker)
                for worker in Staff.of(participants).workers
                if not worker["stopped"]
            }
    except RingNotFound:
        return Health(2, [f"no sidecar of this name is on this host; {others()}"])
    except ShmringError as error:
        return Health(2, [str(error)])
    found = findings(sidecar, participants)
    words = list(serves.values()) + [each.words for each in found]
    statuses: list[Status] = [1 if long else 0, *(each.status for each in found)]
    return Health(max(statuses), words)


def _at_work(
    ring: shmring.Ring, participants: list[ParticipantRecord], least: float
) -> set[tuple[int, int]]:
    """Workers that may be at one request for so many seconds: their seats, and the requests."""
    return {
        (worker["seat"], hold)
        for worker in Staff.of(participants).workers
        if (hold := worker["hold"]) is not None
        and not worker["stopped"]
        and _at_it(ring, worker, hold)[1] >= least
    }


def _at_it(ring: shmring.Ring, worker: ParticipantRecord, hold: int) -> tuple[str, float]:
    request, published = request_at(ring, hold)
    return request, max(0.0, time.time() - max(published, worker["joined_ns"]) / 1e9)


def _serves(ring: shmring.Ring, worker: ParticipantRecord) -> str:
    words = f"worker {worker['pid']} serves {worker['name']}"
    if worker["hold"] is None:
        return f"{words}, and waits for requests"
    request, seconds = _at_it(ring, worker, worker["hold"])
    return f"{words}, and has been at {request} for up to {in_words(seconds)}"


# CHANGE: a new finding of check
def findings(sidecar: str, participants: list[ParticipantRecord]) -> list[Finding]:
    """What is wrong with a sidecar, by the participants of its request ring.

    Parameters
    ----------
    sidecar : name of it
    participants : the dead ones too
    """
    staff = Staff.of(participants)
    serves = any(not worker["stopped"] for worker in staff.workers)
    loads = any(not worker["stopped"] for worker in staff.loading)
    status: Literal[1, 2] = 1 if serves or loads else 2
    found: list[Finding] = []

    def find(kind: str, words: str, command: str = "") -> None:
        found.append(Finding(status, f"sidecar-{kind}", None, sidecar, words, command))

    for worker in staff.workers:
        if worker["stopped"]:
            find(
                "stopped",
                f"worker {_stopped(worker)} serves nothing ({worker['name']})",
                _go(worker),
            )
    for worker in staff.loading:
        function = worker["name"].removeprefix(LOADING)
        who = _stopped(worker) if worker["stopped"] else worker["pid"]
        find(
            "stopped" if worker["stopped"] else "loading",
            f"worker {who} has been loading {function} for {age_of(worker)}",
            _go(worker) if worker["stopped"] else "",
        )
    for supervisor in staff.supervisors:
        if supervisor["stopped"]:
            words = f"supervisor {_stopped(supervisor)} starts no worker"
            find("stopped", words, _go(supervisor))
        elif not staff.workers and not staff.loading:
            find(
                "no-worker",
                f"supervisor {supervisor['pid']}, there for {age_of(supervisor)}, has no worker "
                f"just now; what its workers ended with stands in its log",
            )
    last = time.time() - staff.last_ns / 1e9
    if staff.recent >= _AGAIN and last < _CALM:
        find(
            "dying",
            f"its workers die again and again: {staff.recent} were replaced lately, the last "
            f"{last:.0f} s ago; what they ended with stands in the "
            f"supervisor's log",
        )
    if not staff.workers and not staff.loading and not staff.supervisors:
        words = (
            f"its processes have ended; only its ring is there, which `shmring gc "
            f"{request_ring_name(sidecar)}` removes if no client waits"
        )
        find("ended", words, f"shmring sidecar MODULE:FUNCTION --name {sidecar}")
    return found


def _stopped(participant: ParticipantRecord) -> str:
    return f"{participant['pid']}, stopped (`{_go(participant)}`),"


def _go(participant: ParticipantRecord) -> str:
    return f"kill -CONT {participant['pid']}"
