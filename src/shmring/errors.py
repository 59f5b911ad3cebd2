"""The exceptions of shmring, all subclasses of :class:`ShmringError`.

Each exception's text says what happened, to which ring or file, and what to do next.
Many classes also derive from the matching built-in exception.
"""

from __future__ import annotations

import queue

__all__ = [
    "BranchDropped",
    "BranchNotFound",
    "ClaimOpen",
    "Closed",
    "Contended",
    "Damaged",
    "Empty",
    "EndOfStream",
    "ForkedHandle",
    "Full",
    "GpuError",
    "JournalGap",
    "LimitReached",
    "Locked",
    "MessageTooLarge",
    "MissingExtra",
    "NoSpace",
    "NotARing",
    "NotDurable",
    "Overrun",
    "PermissionRefused",
    "PositionNotFound",
    "RingExists",
    "RingNotFound",
    "SchemaMismatch",
    "SecondConsumer",
    "SecondProducer",
    "ShmringError",
    "SidecarError",
    "SidecarMismatch",
    "SidecarUnavailable",
    "TooManyLeases",
    "VersionMismatch",
]


class ShmringError(Exception):
    """Base class of every error that shmring defines."""


# CHANGE: edit this for a new error
class Full(ShmringError, queue.Full):
    """Not enough slots became free in time; nothing was published."""


class Empty(ShmringError, queue.Empty):
    """No message arrived in time; nothing was taken."""


class EndOfStream(ShmringError):
    """A producer has marked the end of its stream; the next call continues after the end marker.

    Code that tries again on `Empty` should stop on this error. Each consumer that joined before its
    branch reached the end marker raises this error once, after the messages that it took earlier.
    """


class Overrun(ShmringError):
    """A branch with drop_oldest fell too far behind and lost messages.

    The branch has already moved forward: the next call returns the oldest message still held.

    Attributes
    ----------
    first, last : int
        the lost sequences, both included
    """

    def __init__(self, message: str, first: int = 0, last: int = 0) -> None:
        super().__init__(message)
        self.first = first
        self.last = last


class Contended(ShmringError):
    """The ring, queue or session is busy at this moment; the same call may be tried again."""


class RingNotFound(ShmringError, FileNotFoundError):
    """This host has no ring, queue or journal of this name or path.

    A wait raises this error, too, if the ring's file was removed while the ring was in use, and
    either a new ring has been made in its place or no other process still uses the old one.
    """


class RingExists(ShmringError, FileExistsError):
    """A ring of this name or path exists already."""


class NotARing(ShmringError, ValueError):
    """The file is not a ring, queue or journal, or was never finished."""


class VersionMismatch(NotARing):
    """The ring was made by a version with another layout."""


class Damaged(ShmringError, ValueError):
    """The contents of the file are inconsistent."""


class PermissionRefused(ShmringError, PermissionError):
    """The ring or file belongs to another user, its mode forbids this, or its disk is read-only."""


class NoSpace(ShmringError, OSError):
    """There is too little space for the ring or file, or in the ring for dead letters."""


class MessageTooLarge(ShmringError, ValueError):
    """The message can never fit this ring."""

    slots = 0  # slots that a ring would need for the message; 0 if not known


class SchemaMismatch(ShmringError, TypeError):
    """The batch's schema is not the ring's, or not the schema declared to Spark."""


class SecondProducer(ShmringError):
    """A single-producer ring has a living producer already."""


class SecondConsumer(ShmringError):
    """An exclusive branch has a living consumer already."""


class LimitReached(ShmringError):
    """The ring has no room for another branch, or for another participant."""


class TooManyLeases(ShmringError):
    """This consumer holds as many separate leases as the ring can record for it."""


class ClaimOpen(ShmringError):
    """This producer has an open claim: commit the claim or abort it, and call again."""


class BranchNotFound(ShmringError, LookupError):
    """The ring has no branch of this name."""


class BranchDropped(ShmringError):
    """The branch was dropped while this consumer was attached to it."""


class NotDurable(ShmringError, TimeoutError):
    """No journal has confirmed in time that the message is on disk.

    Attributes
    ----------
    message_id : int
        number of the message, which is published and may still become durable; -1: no message was
        published
    """

    def __init__(self, message: str, message_id: int = -1) -> None:
        super().__init__(message)
        self.message_id = message_id


class JournalGap(ShmringError, LookupError):
    """Messages are missing within the journal, or between its end and the ring's oldest message."""


class PositionNotFound(ShmringError, LookupError):
    """The queue has no state at this position any more, or never had one."""


class Closed(ShmringError, ValueError):
    """The handle was closed, or the items that it held were deleted by a reset."""


class MissingExtra(ShmringError, ImportError):
    """A package that this part of shmring needs is not installed."""


class GpuError(ShmringError, RuntimeError):
    """No GPU runtime was found, or the runtime refuses a call."""


class ForkedHandle(ShmringError):
    """The handle belongs to the parent process; attach again in the child."""


class Locked(ShmringError):
    """Another process owns the queue.

    Attributes
    ----------
    pid : int or None
        the owner, if it could be read
    """

    def __init__(self, message: str, pid: int | None = None) -> None:
        super().__init__(message)
        self.pid = pid


class SidecarError(ShmringError):
    """The sidecar's function raised an error; the text has its traceback."""


class SidecarMismatch(ShmringError):
    """A running sidecar of this name has other code or other options than the one to start."""


class SidecarUnavailable(ShmringError):
    """No sidecar of this name answered in time."""
