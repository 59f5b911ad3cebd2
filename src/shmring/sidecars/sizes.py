"""How large a sidecar's rings are, and what to set where that is not enough."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from shmring.errors import NoSpace
from shmring.names import SHM_FOLDER, is_own_limit, memory
from shmring.ring import Ring

__all__ = ["REPLY", "REQUEST", "Size"]

_LEAST = 1024  # slots
_SLOT_COST = 332  # bytes


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

    def make(self, slots: int | None, make: Callable[[int], Ring]) -> Ring:
        """Make a ring with so many slots, or if that is None with as many as leave room.

        Raises
        ------
        NoSpace : /dev/shm cannot hold it
        """
        if slots is None:
            slots = self._fitting()
            while slots > _LEAST:
                with suppress(NoSpace):  # others were faster
                    return make(slots)
                slots //= 2
        try:
            return make(slots)
        except NoSpace as error:
            if is_own_limit(error):
                raise
            total, free = memory()
            raise NoSpace(
                f"{SHM_FOLDER} has {free >> 20} of {total >> 20} MB left, and a ring of {slots} "
                f"slots needs {slots * _SLOT_COST / 2**20:.1f} MB: give it more (docker run "
                f"--shm-size=1g; in Kubernetes an emptyDir of medium Memory), or make the ring "
                f"smaller with {self.knob.format(slots='...')}"
            ) from error

    def _fitting(self) -> int:
        _, free = memory()
        slots = self.usual
        while slots > _LEAST and slots * _SLOT_COST > free // self.part:
            slots //= 2
        return slots


REQUEST = Size(131_072, 4, "`shmring sidecar --slots {slots}` (Sidecar(slots={slots}))")
REPLY = Size(65_536, 8, "reply_slots={slots} of through(), the UDF or SidecarClient")
