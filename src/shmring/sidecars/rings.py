"""The rings of a sidecar: how large they are, made, left to others, or swept."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import shmring
from shmring._shmring import MAX_PARTICIPANTS, SLOT_FILE_BYTES
from shmring.errors import NoSpace, RingNotFound, ShmringError
from shmring.names import REPLIES, SHM_FOLDER, is_own_limit, memory, path_of, remove
from shmring.sidecars.participants import SUPERVISOR
from shmring.sidecars.wire import reply_ring_name, request_ring_name

_LEAST = 1024  # slots
_PAUSE = 0.05  # seconds between two looks for memory


@dataclass(frozen=True, slots=True)
class Size:
    """Of one kind of ring."""

    usual: int  # slots, where nobody says how many and there is room
    # A ring whose size nobody says takes at most one such part of the free memory; the others are
    # for rings to come.
    part: int
    knob: str  # what the user sets; {slots} stands for the number

    @property
    def remedy(self) -> str:
        """What to do where a message is too large."""
        return f"make it larger with {self.knob}"

    def make(
        self,
        slots: int | None,
        make: Callable[[int], shmring.Ring],
        *,
        connect_timeout: float = 0.0,
    ) -> shmring.Ring:
        """Make a ring with so many slots, or if that is None with as many as leave room.

        It waits `connect_timeout` seconds for memory; then NoSpace says what takes it.
        """
        begun = time.monotonic()
        lowest = _LEAST if slots is None else slots
        while True:
            wanted = self._fitting() if slots is None else slots
            while wanted > lowest:
                with contextlib.suppress(NoSpace):  # others were faster
                    return make(wanted)
                wanted = max(lowest, wanted // 2)
            try:
                return make(lowest)
            except NoSpace as error:
                if is_own_limit(lowest):
                    raise
                if time.monotonic() - begun >= connect_timeout:
                    raise NoSpace(self._no_memory(lowest, connect_timeout)) from error
            time.sleep(_PAUSE)

    def _fitting(self) -> int:
        """A power of two: the usual number, if there is room for that beside others."""
        _, free = memory()
        slots = _LEAST
        while slots < self.usual and 2 * slots * SLOT_FILE_BYTES <= free // self.part:
            slots *= 2
        return slots

    def _no_memory(self, slots: int, connect_timeout: float) -> str:
        total, free = memory()
        waited = f" (waited {connect_timeout:g} s, connect_timeout=...)" if connect_timeout else ""
        smaller = f", make the ring smaller with {self.knob.format(slots='...')}"
        return (
            f"{SHM_FOLDER} has {free >> 20} of {total >> 20} MB left, and a ring of {slots} "
            f"slots needs {slots * SLOT_FILE_BYTES / 2**20:.1f} MB{waited}: {_all_replies()}; give "
            f"it more (docker run --shm-size=1g; in Kubernetes an emptyDir of medium Memory)"
            f"{smaller if slots > _LEAST else ''}, or let fewer tasks run at a time"
        )


def _all_replies() -> str:
    """What the reply rings of this host take."""
    count = nbytes = 0
    for name in shmring.rings():
        if name.startswith(REPLIES):
            with contextlib.suppress(FileNotFoundError):
                nbytes += os.stat(path_of(name)).st_size
                count += 1
    return f"all reply rings ({count}) take {nbytes / 2**20:.1f} MB"


REQUEST = Size(131_072, 4, "`shmring sidecar --slots {slots}` (Sidecar(slots={slots}))")
REPLY = Size(4_096, 32, "reply_slots={slots} of through(), the UDF or SidecarClient")


def open_ring(sidecar: str, slots: int | None) -> shmring.Ring:
    """A sidecar's request ring, made unless it is there; without `slots` it leaves clients room."""
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
    replies = list(reply_rings(sidecar))  # before there can be a next sidecar
    uuid = bytes.fromhex(ring.info.uuid)
    with contextlib.suppress(RingNotFound):  # another one has its name by now, or none
        if remove(ring.path, uuid, is_used=_has_supervisor):
            for name in replies:
                with contextlib.suppress(ShmringError):  # its client was faster
                    shmring.unlink(name)


def _has_supervisor(living: list[dict[str, Any]]) -> bool:
    return any(one["name"] == SUPERVISOR for one in living)


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
