"""Which ring a task is to attach to: other hosts may have another one of the same name."""

from __future__ import annotations

import os
import socket
import time
from typing import TYPE_CHECKING, NamedTuple

from shmring.errors import RingNotFound, ShmringError
from shmring.names import path_of
from shmring.spark.source.options import attach_ring

if TYPE_CHECKING:
    from shmring.ring import Ring

__all__ = ["RingPlace"]

_ATTEMPTS = 4  # of a task, as Spark's spark.task.maxFailures has it


class RingPlace(NamedTuple):
    """A ring of the driver's host.

    Parameters
    ----------
    ring : its name or path
    uuid : of this very ring
    host : the driver's, for the text of errors
    folder : tells the folder that it is in from those of other hosts
    """

    ring: str
    uuid: str
    host: str
    folder: str

    @classmethod
    def of(cls, name: str, ring: Ring) -> RingPlace:
        """The place of a ring that the driver has attached to."""
        return cls(name, ring.info.uuid, socket.gethostname(), _identity(ring.path))

    def attach(self, wait: float, *, read_only: bool = False) -> Ring:
        """Attach in a task.

        Spark does not ask a Python data source where its partitions lie, and gives a task that has
        failed to any executor. So a task on another host waits its share of `wait` before it fails:
        otherwise all attempts would be over before the driver's host has an executor again.

        Raises
        ------
        RingNotFound : the ring is on another host, or is gone
        """
        at_home = _identity(path_of(self.ring)) == self.folder
        try:
            ring = attach_ring(self.ring, read_only=read_only)
        except ShmringError:
            if at_home:
                raise
        else:
            if ring.info.uuid == self.uuid:
                return ring
            ring.close()
            if at_home:
                raise RingNotFound(
                    f'ring "{self.ring}" is not the one that was planned with: it was replaced by '
                    f"another one of the same name; load it anew"
                )
        time.sleep(wait / _ATTEMPTS)
        raise RingNotFound(
            f'ring "{self.ring}" is on the driver\'s host {self.host}, and this task runs on '
            f"another, {socket.gethostname()}, to which Spark may give any task of a Python data "
            f"source: use the jar's format(\"shmring\"), whose tasks prefer the ring's host, or "
            f"let the job have executors on the driver's host only. The driver's log has the "
            f"errors of all attempts"
        )


def _identity(path: str) -> str:
    """Of the file system below a path, on this machine."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    try:
        return f"{boot} {os.stat(os.path.dirname(path)).st_dev}"
    except FileNotFoundError:
        return boot
