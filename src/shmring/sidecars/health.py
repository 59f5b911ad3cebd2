"""How a sidecar is, for probes and people: looked at from outside, without joining it."""

from __future__ import annotations

from typing import Literal, NamedTuple

import shmring
from shmring.errors import RingNotFound, ShmringError
from shmring.records import SeatRecord
from shmring.sidecars.seats import LOADING, SUPERVISOR, age_of, others
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
            seats = [seat for seat in ring.seats() if seat["alive"]]
    except RingNotFound:
        return Health(2, [f"no sidecar of this name is on this host; {others()}"])
    except ShmringError as error:
        return Health(2, [str(error)])
    workers = [seat for seat in seats if seat["role"] == "consumer"]
    loading = [seat for seat in seats if seat["name"].startswith(LOADING)]
    words = [_of_worker(seat) for seat in workers] + [_of_loading(seat) for seat in loading]
    if any(not seat["stopped"] for seat in workers):
        return Health(1 if loading or any(s["stopped"] for s in workers) else 0, words)
    if any(not seat["stopped"] for seat in loading):
        return Health(1, words)
    supervisors = [seat for seat in seats if seat["name"] == SUPERVISOR]
    words += [_of_supervisor(seat) for seat in supervisors if not words]
    return Health(2, words or ["its processes have ended; only its ring is there"])


def _state(seat: SeatRecord) -> str:
    return f"{seat['pid']}, stopped (`kill -CONT {seat['pid']}`)," if seat["stopped"] else ""


def _of_worker(seat: SeatRecord) -> str:
    if seat["stopped"]:
        return f"worker {_state(seat)} serves nothing ({seat['name']})"
    return f"worker {seat['pid']} serves {seat['name']}"


def _of_loading(seat: SeatRecord) -> str:
    function = seat["name"].removeprefix(LOADING)
    return f"worker {_state(seat) or seat['pid']} has been loading {function} for {age_of(seat)}"


def _of_supervisor(seat: SeatRecord) -> str:
    if seat["stopped"]:
        return f"supervisor {_state(seat)} starts no worker"
    return (
        f"supervisor {seat['pid']}, there for {age_of(seat)}, has no worker just now; what its "
        f"workers ended with stands in its log"
    )
