"""The rings of a sidecar, as who serves it sees them: made, left to others, or swept."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import shmring
from shmring._shmring import MAX_PARTICIPANTS
from shmring.errors import RingNotFound, ShmringError
from shmring.names import remove
from shmring.records import ParticipantRecord
from shmring.sidecars.participants import SUPERVISOR
from shmring.sidecars.sizes import REQUEST
from shmring.sidecars.wire import WORKERS_BRANCH, reply_ring_name, request_ring_name

_LAST_WAIT = 5.0  # seconds in which other workers of a dead supervisor end, too


def open_ring(sidecar: str, slots: int | None) -> shmring.Ring:
    """A sidecar's request ring, made unless it is there.

    Parameters
    ----------
    sidecar : name of it
    slots : of a ring that is made; None leaves the clients room

    Raises
    ------
    NoSpace : /dev/shm cannot hold it
    """
    ring = REQUEST.make(
        slots,
        lambda slots: shmring.open_or_create(
            request_ring_name(sidecar), slots=slots, participants=MAX_PARTICIPANTS, temporary=True
        ),
    )
    ring.keep()  # another sidecar may serve it still when this one stops
    return ring


def leave_ring(sidecar: str, ring: shmring.Ring) -> None:
    """Close a sidecar's request ring, and remove it unless another supervisor is there.

    The clients' rings go with it: who is left asks the next sidecar of the name for answers to a
    new one, and a client that waits for a task may be killed before it sees that nobody is here.
    """
    ring.close()
    with contextlib.suppress(RingNotFound):  # another one has its name by now, or none
        _remove(sidecar, ring, lambda living: any(one["name"] == SUPERVISOR for one in living))


def remove_own(sidecar: str) -> None:
    """Remove the rings of a sidecar in which only its workers are left, of whom this one ends.

    Of several that end at once the one with the least number waits for the others.
    """
    deadline = time.monotonic() + _LAST_WAIT
    with (
        contextlib.suppress(ShmringError),
        shmring.attach(request_ring_name(sidecar), read_only=True) as ring,
    ):
        while (others := _others(ring)) or not _remove(sidecar, ring, _is_others):
            if time.monotonic() > deadline or not all(
                each["branch"] == WORKERS_BRANCH and each["pid"] > os.getpid() for each in others
            ):
                return
            time.sleep(0.01)


def _others(ring: shmring.Ring) -> list[ParticipantRecord]:
    own = os.getpid()
    return [each for each in ring.participants() if each["alive"] and each["pid"] != own]


def _is_others(living: list[dict[str, Any]]) -> bool:
    return any(one["pid"] != os.getpid() for one in living)


def _remove(
    sidecar: str, ring: shmring.Ring, is_used: Callable[[list[dict[str, Any]]], bool]
) -> bool:
    """Remove a sidecar's request ring, and its clients' rings, if it is not used."""
    replies = list(reply_rings(sidecar))  # before there can be a next sidecar
    if not remove(ring.path, bytes.fromhex(ring.info.uuid), is_used=is_used):
        return False
    for name in replies:
        with contextlib.suppress(ShmringError):  # its client was faster
            shmring.unlink(name)
    return True


def reply_rings(sidecar: str) -> Iterator[str]:
    """The names of the rings of a sidecar's clients."""
    prefix = reply_ring_name(sidecar, "")
    for name in shmring.rings():
        if name.startswith(prefix) and "." not in name.removeprefix(prefix):
            yield name


def sweep(sidecar: str) -> None:
    """Remove the rings of a sidecar, and of its clients, that were killed."""
    for name in (request_ring_name(sidecar), *reply_rings(sidecar)):
        with contextlib.suppress(ShmringError):
            shmring.gc(name)
