"""How large a sidecar's rings are, and what to set where that is not enough."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from shmring._shmring import SLOT_FILE_BYTES
from shmring.errors import NoSpace
from shmring.names import REPLIES, SHM_FOLDER, is_own_limit, memory, path_of, rings
from shmring.ring import Ring

LEAST = 1024  # slots
_PAUSE = 0.05  # seconds between two looks for memory


@dataclass(frozen=True, slots=True)
class Size:
    """Of one kind of ring.

    Parameters
    ----------
    usual : slots, where nobody says how many and there is room
    part : a ring whose size nobody says takes at most one such part of the free memory; the others
        are for rings to come
    knob : what the user sets; {slots} stands for the number
    """

    usual: int
    part: int
    knob: str

    @property
    def remedy(self) -> str:
        """What to do where a message is too large."""
        return f"make it larger with {self.knob}"

    def make(
        self,
        slots: int | None,
        make: Callable[[int], Ring],
        *,
        connect_timeout: float = 0.0,
    ) -> Ring:
        """Make a ring with so many slots, or if that is None with as many as leave room.

        Parameters
        ----------
        connect_timeout : seconds to wait for memory

        Raises
        ------
        NoSpace : /dev/shm cannot hold it
        """
        begun = time.monotonic()
        lowest = LEAST if slots is None else slots
        while True:
            wanted = self._fitting() if slots is None else slots
            while wanted > lowest:
                with suppress(NoSpace):  # others were faster
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
        slots = LEAST
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
            f"{smaller if slots > LEAST else ''}, or let fewer tasks run at a time"
        )


def _all_replies() -> str:
    """What the reply rings of this host take."""
    count = nbytes = 0
    for name in rings():
        if name.startswith(REPLIES):
            with suppress(FileNotFoundError):
                nbytes += os.stat(path_of(name)).st_size
                count += 1
    return f"all reply rings ({count}) take {nbytes / 2**20:.1f} MB"


REQUEST = Size(131_072, 4, "`shmring sidecar --slots {slots}` (Sidecar(slots={slots}))")
REPLY = Size(4_096, 32, "reply_slots={slots} of through(), the UDF or SidecarClient")
