"""The exceptions that only a table ring raises."""

from __future__ import annotations

from shmring.errors import ShmringError

__all__ = ["PooledSession", "SubscriberDropped", "SubscriberNotFound"]


class SubscriberNotFound(ShmringError, LookupError):
    """The ring has no subscriber of this name."""


class SubscriberDropped(ShmringError):
    """The subscriber was removed while this handle read for it."""


class PooledSession(ShmringError):
    """A pooler between a handle and its database gives each transaction another session."""
