"""How a sidecar is, for probes and people: looked at from outside, without joining it."""

from __future__ import annotations

from typing import Literal, NamedTuple

import shmring
from shmring.errors import RingNotFound, ShmringError
from shmring.records import ParticipantRecord
from shmring.sidecars.participants import LOADING, SUPERVISOR, age_of, others
from shmring.sidecars.wire import request_ring_name

__all__ = ["Health", "check"]

Status = Literal[0, 1, 2]


class Health(NamedTuple):
    """What is to be said of a sidecar.

    Attributes
    ----------
    status : as monitoring plugins have it: 0 it serves; 1 it serves no request yet, or with fewer
        workers than it has; 2 it serves none, and nothing shows that it will
    words : one statement each
    """

    status: Status
    words: list[str]


def check(sidecar: str) -> Health:
    """Look at a sidecar of this host.

    Parameters
    ----------
    sidecar : name of it
    """
    try:
        with shmring.attach(request_ring_name(sidecar), read_only=True) as ring:
            participants = [
                participant for participant in ring.participants() if participant["alive"]
            ]
    except RingNotFound:
        return Health(2, [f"no sidecar of this name is on this host; {others()}"])
    except ShmringError as error:
        return Health(2, [str(error)])
    workers = [participant for participant in participants if participant["role"] == "consumer"]
    loading = [
        participant for participant in participants if participant["name"].startswith(LOADING)
    ]
    words = [_of_worker(participant) for participant in workers] + [
        _of_loading(participant) for participant in loading
    ]
    if any(not participant["stopped"] for participant in workers):
        return Health(1 if loading or any(s["stopped"] for s in workers) else 0, words)
    if any(not participant["stopped"] for participant in loading):
        return Health(1, words)
    supervisors = [participant for participant in participants if participant["name"] == SUPERVISOR]
    words += [_of_supervisor(participant) for participant in supervisors if not words]
    return Health(2, words or ["its processes have ended; only its ring is there"])


def _state(participant: ParticipantRecord) -> str:
    return (
        f"{participant['pid']}, stopped (`kill -CONT {participant['pid']}`),"
        if participant["stopped"]
        else ""
    )


def _of_worker(participant: ParticipantRecord) -> str:
    if participant["stopped"]:
        return f"worker {_state(participant)} serves nothing ({participant['name']})"
    return f"worker {participant['pid']} serves {participant['name']}"


def _of_loading(participant: ParticipantRecord) -> str:
    function = participant["name"].removeprefix(LOADING)
    who = _state(participant) or participant["pid"]
    return f"worker {who} has been loading {function} for {age_of(participant)}"


def _of_supervisor(participant: ParticipantRecord) -> str:
    if participant["stopped"]:
        return f"supervisor {_state(participant)} starts no worker"
    return (
        f"supervisor {participant['pid']}, there for {age_of(participant)}, has no worker just "
        f"now; what its workers ended with stands in its log"
    )
