"""Detects that this process was forked from the process that opened a handle."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class _Lineage:
    """The number of forks between the program's first process and this one.

    Comparing this number takes a tenth of the time that getpid() takes.
    """

    forks = 0

    def fork(self) -> None:
        self.forks += 1


lineage = _Lineage()
os.register_at_fork(after_in_child=lineage.fork)


class HasLocks(Protocol):
    """An object with locks that another thread may hold when the process forks."""

    def renew_locks(self) -> None:
        """Replace the locks: the child lacks the threads that would release them."""


_holders: weakref.WeakSet[HasLocks] = weakref.WeakSet()


def renew_locks_in_child(holder: HasLocks) -> None:
    """Let a forked child call :meth:`HasLocks.renew_locks`, before it can wait for a lock."""
    _holders.add(holder)


def _renew() -> None:
    for holder in list(_holders):
        holder.renew_locks()


os.register_at_fork(after_in_child=_renew)
