"""Group commit: threads that commit at the same time share one write and one sync.

One of the waiting threads leads: it commits for all of them, then wakes them and the next leader.
So the threads that arrive during a sync share the next one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T", bound="Waiting")


class Waiting:
    """The changes that one thread wants committed; `error` is None if they were."""

    def __init__(self) -> None:
        self.done = False
        self.error: BaseException | None = None
        self._turn = threading.Lock()
        self._turn.acquire()

    def finish(self, error: BaseException | None) -> None:
        self.error = error
        self.done = True
        self.wake()

    def wait(self) -> None:
        """Return when it is committed, or when its thread is to lead the others."""
        if not self.done:
            self._turn.acquire()

    def wake(self) -> None:
        """Let wait() return."""
        try:  # noqa: SIM105  suppress() takes three calls, in each flush
            self._turn.release()
        except RuntimeError:  # it is awake already
            pass


class GroupCommit(Generic[T]):
    """Lets one thread commit for all that wait.

    Parameters
    ----------
    commit : commits a group, and finishes each of its members unless it is interrupted
    """

    def __init__(self, commit: Callable[[list[T]], None]) -> None:
        self._commit = commit
        self._lock = threading.Lock()
        self._waiting: list[T] = []
        self._leader: T | None = None

    def commit(self, wanted: T) -> None:
        """Return when these changes are committed, or raise their error."""
        try:
            with self._lock:
                self._waiting.append(wanted)
                if self._leader is None:
                    self._leader = wanted
            if self._leader is not wanted:
                wanted.wait()
            if not wanted.done:
                self._lead()
                self._hand_on()
        except BaseException:
            self._withdraw(wanted)
            raise
        if wanted.error is not None:
            raise wanted.error

    def _lead(self) -> None:
        group: list[T] = []
        try:
            with self._lock:
                group = self._waiting
                self._waiting = []
            if group:
                self._commit(group)
        finally:
            # Interrupted between taking the group and writing it: the next leader commits it.
            left = [each for each in group if not each.done]
            if left:
                with self._lock:
                    self._waiting = left + [each for each in self._waiting if each not in left]

    def _hand_on(self) -> None:
        with self._lock:
            following = self._waiting[0] if self._waiting else None
            if following is not None:
                # This comes first: an interrupt may then leave two leaders, but never none.
                following.wake()
            self._leader = following

    def _withdraw(self, wanted: T) -> None:
        """Take it back after an interrupt, unless another thread commits it already."""
        while True:
            with self._lock:
                waiting = wanted in self._waiting
                if waiting:
                    self._waiting.remove(wanted)
            if waiting or wanted.done:
                break
            wanted.wait()
        if self._leader is wanted:
            self._hand_on()
