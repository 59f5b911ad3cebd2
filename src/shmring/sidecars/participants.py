"""Participants of a sidecar's request ring: becoming a client, and what they tell about it.

Their names are what its processes know of each other: a supervisor says that it wants the ring (it
may have no worker just now), a worker which function it loads or serves.
"""

from __future__ import annotations

import random
import time
from contextlib import suppress

import shmring
from shmring.errors import (
    Damaged,
    LimitReached,
    RingNotFound,
    ShmringError,
    SidecarUnavailable,
)
from shmring.names import REQUESTS
from shmring.records import ParticipantRecord
from shmring.sidecars.wire import HEAD_BYTES, Head, request_ring_name

# A client is a participant of the request ring, a worker too. Clients leave so many free, or an
# eighth: a worker that is replaced must find its own, however many clients wait for some.
_FOR_WORKERS = 16

SUPERVISOR = "supervisor"
LOADING = "loading "  # then the function's name
CLIENT = "client"
# Then how many workers were replaced, and how many of them within RESTART_SECONDS; there since the
# last of them.
RESTARTED = "restarted "
RESTART_SECONDS = 300

_SLICE = 0.05  # seconds between two looks for the sidecar, and the first two for room
_PAUSE = 1.0  # the longest between two of these


def enter(sidecar: str) -> tuple[shmring.Ring, shmring.Producer]:
    """Attach to a sidecar's request ring as a client, now.

    Raises
    ------
    RingNotFound : there is none
    LimitReached : it has no room left for clients
    """
    ring = shmring.attach(request_ring_name(sidecar))
    try:
        producer = ring.producer(CLIENT)
        most = ring.info.participants
        if len(ring.participants()) > most - min(_FOR_WORKERS, most // 8):
            raise LimitReached(f'sidecar "{sidecar}": the room that is left is for workers')
    except BaseException:
        ring.close()
        raise
    return ring, producer


def await_entry(
    sidecar: str, timeout: float, connect_timeout: float
) -> tuple[shmring.Ring, shmring.Producer]:
    """Attach as a client when there is a sidecar, and room for one.

    Parameters
    ----------
    timeout : seconds to wait for room
    connect_timeout : seconds to wait for the sidecar

    Raises
    ------
    SidecarUnavailable : there was none in time
    """
    begun = time.monotonic()
    pause = _SLICE
    while True:
        try:
            return enter(sidecar)
        except RingNotFound as error:
            if time.monotonic() - begun >= connect_timeout:
                raise SidecarUnavailable(
                    f'no sidecar "{sidecar}" on this host (waited {connect_timeout:g} s, '
                    f"connect_timeout=..., and it did not start); {others()}; start it with "
                    f"`shmring sidecar module:function --name {sidecar}`, or see in the log "
                    f"of what should have started it why it is not there"
                ) from error
            time.sleep(_SLICE)
        except LimitReached as error:
            left = timeout - (time.monotonic() - begun)
            if left <= 0:
                raise SidecarUnavailable(
                    f'sidecar "{sidecar}" has had no room for another client for '
                    f"{timeout:g} s: `shmring stat {request_ring_name(sidecar)}` shows who takes "
                    f"part; let fewer tasks run at a time on a host, share their work between "
                    f"sidecars of several names, or wait longer (timeout=...)"
                ) from error
            time.sleep(min(left, random.uniform(pause / 2, pause)))
            pause = min(2 * pause, _PAUSE)


def serving(sidecar: str) -> list[ParticipantRecord]:
    """A sidecar's workers that serve."""
    with suppress(ShmringError), shmring.attach(request_ring_name(sidecar), read_only=True) as ring:
        return [
            participant
            for participant in ring.participants()
            if participant["alive"] and participant["role"] == "consumer"
        ]
    return []


def others() -> str:
    """Which sidecars are there."""
    names = [name.removeprefix(REQUESTS) for name in shmring.rings() if name.startswith(REQUESTS)]
    served = ", ".join(f'"{name}"' for name in sorted(names) if _is_served(name))
    return f"there are {served}" if served else "there is none at all"


def _is_served(sidecar: str) -> bool:
    with suppress(ShmringError), shmring.attach(request_ring_name(sidecar), read_only=True) as ring:
        return lives(ring)
    return False


def lives(ring: shmring.Ring) -> bool:
    """Whether a worker or a supervisor of a sidecar lives, by its request ring."""
    return any(
        each["alive"] and (each["role"] == "consumer" or each["name"] == SUPERVISOR)
        for each in ring.participants()
    )


def request_at(ring: shmring.Ring, sequence: int) -> tuple[str, int]:
    """A request, in words, and when it was published, in nanoseconds; 0 if nobody knows."""
    slot = sequence % ring.slots
    for found in ring.rows(slot, slot + 1, HEAD_BYTES):
        if found[1] == sequence:
            with suppress(Damaged):
                return Head.unpack(found[6], ring=ring.path).describe(), found[2]
    return f"message {sequence}", 0


def age_of(participant: ParticipantRecord) -> str:
    """For how long a participant has been there, in words."""
    return in_words(max(0.0, time.time() - participant["joined_ns"] / 1e9))


def in_words(seconds: float) -> str:
    """A time, for people."""
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
