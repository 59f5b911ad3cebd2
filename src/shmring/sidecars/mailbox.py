"""The ring for a client's answers."""

from __future__ import annotations

import os
import uuid
from contextlib import suppress

import shmring
from shmring.errors import ShmringError
from shmring.sidecars.sizes import REPLY
from shmring.sidecars.wire import reply_ring_name

__all__ = ["Mailbox"]


class Mailbox:
    """A reply ring, of which the client is the only reader.

    Parameters
    ----------
    slots : that the user has named; None: as many as are needed, and leave others room
    least, wish : how many these are
    connect_timeout : seconds to wait for memory
    """

    def __init__(
        self, sidecar: str, slots: int | None, *, least: int, wish: int, connect_timeout: float
    ) -> None:
        self.name = reply_ring_name(sidecar, f"{os.getpid()}-{uuid.uuid4().hex[:12]}")
        self.ring = REPLY.make(
            slots,
            lambda slots: shmring.create(self.name, slots=slots, temporary=True),
            least=least,
            wish=wish,
            connect_timeout=connect_timeout,
        )
        self.inbox = self.ring.consumer("client", start="earliest", exclusive=True)

    def room(self) -> int:
        """Slots that workers may fill before what is held has to go."""
        hold = self.inbox.hold
        return self.ring.slots - (0 if hold is None else self.inbox.position - hold)

    def is_half_full(self) -> bool:
        """Whether there may be answers that find no room: half of it has room for any."""
        return self.room() <= self.ring.slots // 2

    def refusals(self) -> int:
        """How often workers have found it full."""
        return sum(s["full_waits"] for s in self.ring.participants() if s["role"] == "producer")

    def hide(self) -> None:
        """Remove the ring's file: the sidecar has ended, and removes none that was made since.

        A client that is killed while it waits for another sidecar would leave the file. That is
        all: where the file cannot be removed, the client waits on, and its next look tries again.
        """
        with suppress(OSError, ShmringError):
            self.ring.unlink()

    def close(self) -> None:
        """Remove the ring: answers that are still to come find none."""
        self.inbox.close()
        self.ring.close()
