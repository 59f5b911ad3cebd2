"""The exceptions of shmring: one small family, all below :class:`ShmringError`.

Each message says what happened, to which ring or file, and what to do next.
Every class also derives from the built-in a caller would already catch.
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
    "SidecarUnavailable",
    "TooManyLeases",
    "VersionMismatch",
]


class ShmringError(Exception):
    """Base of every error that shmring raises on its own account."""


class Full(ShmringError, queue.Full):
    """Not enough slots became free in time; nothing was published."""


class Empty(ShmringError, queue.Empty):
    """No message arrived in time; nothing was taken."""


class EndOfStream(ShmringError):
    """A producer has marked the end of its stream; the next call goes on behind the end.

    An end is no emptiness that passes: what tries again on `Empty` is not to try on. Each consumer
    that had joined the branch by then is told once, after what it took before.
    """


class Overrun(ShmringError):
    """A branch with drop_oldest fell too far behind and lost messages.

    The branch has already moved on: the next call returns the oldest message still held.

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
    """Another process is in the way for a moment; the same call may be tried again."""


class RingNotFound(ShmringError, FileNotFoundError):
    """No ring, queue or journal of this name or path on this host."""


class RingExists(ShmringError, FileExistsError):
    """A ring of this name or path is there already."""


class NotARing(ShmringError, ValueError):
    """What lies there is not a ring, queue or journal, or was never finished."""


class VersionMismatch(NotARing):
    """The ring was made by a version with another layout."""


class Damaged(ShmringError, ValueError):
    """The file's contents contradict themselves."""


class PermissionRefused(ShmringError, PermissionError):
    """The ring belongs to somebody else, or its mode forbids this."""


class NoSpace(ShmringError, OSError):
    """The file system cannot hold the ring or file."""


class MessageTooLarge(ShmringError, ValueError):
    """The message can never fit this ring."""

    slots = 0  # that a ring would need for it, where that is known


class SchemaMismatch(ShmringError, TypeError):
    """The batch's schema is not the ring's, or not what Spark was told to expect."""


class SecondProducer(ShmringError):
    """A single-producer ring has a living producer already."""


class SecondConsumer(ShmringError):
    """An exclusive branch has a living consumer already."""


class LimitReached(ShmringError):
    """There is no room for another branch, or for another participant."""


class TooManyLeases(ShmringError):
    """This consumer holds as many separate leases as its entry can record."""


class ClaimOpen(ShmringError):
    """This producer has a claim that is neither committed nor aborted."""


class BranchNotFound(ShmringError, LookupError):
    """The ring has no branch of this name."""


class BranchDropped(ShmringError):
    """The branch was dropped while this consumer was attached to it."""


class NotDurable(ShmringError, TimeoutError):
    """No journal has said in time that the message is on disk.

    Attributes
    ----------
    message_id : int
        of the message, which is published and may yet become durable; -1: none was published
    """

    def __init__(self, message: str, message_id: int = -1) -> None:
        super().__init__(message)
        self.message_id = message_id


class JournalGap(ShmringError, LookupError):
    """The ring and the journal have no common sequence: messages between them are lost."""


class PositionNotFound(ShmringError, LookupError):
    """The queue keeps no state at this position."""


class Closed(ShmringError, ValueError):
    """The handle was closed, or what it held was reset."""


class MissingExtra(ShmringError, ImportError):
    """A package that this part of shmring needs is not installed."""


class ForkedHandle(ShmringError):
    """The handle belongs to the parent process; attach again in the child."""


class Locked(ShmringError):
    """Another process owns the queue.

    Attributes
    ----------
    pid : int or None
        the owner, where it could be read
    """

    def __init__(self, message: str, pid: int | None = None) -> None:
        super().__init__(message)
        self.pid = pid


class SidecarError(ShmringError):
    """The sidecar's function raised; the message carries its traceback."""


class SidecarUnavailable(ShmringError):
    """No sidecar of this name answered in time."""
