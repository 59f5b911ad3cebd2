"""Waiting for several consumers and producers, of one ring or of many."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar, cast

from shmring._shmring import Consumer, Producer, ends_of, wait_any
from shmring.choices import WAITS, Wait, choose
from shmring.errors import Closed

_Handle = TypeVar("_Handle", bound=Consumer | Producer)


def wait(
    handles: Iterable[_Handle], timeout: float | None = None, *, wait: Wait = "default"
) -> list[_Handle]:
    """Wait until one of several consumers has something, or one of several producers has room.

        for inp in shmring.wait([orders, payments], timeout=1.0):
            data = inp.pop(timeout=0)

    Parameters
    ----------
    handles : consumers and producers, of one ring or of many; up to 127 at a time cost one sleep
        (on Linux 5.16 or later)
    timeout : seconds; None waits for ever, 0 does not wait
    wait : how to wait, as for :meth:`Ring.producer`

    Returns
    -------
    those with which a call is worth it, in the order given; empty if time was up. A consumer has a
    message, or comes to an end of the stream, or its branch was dropped: its next call takes or
    says so. A producer has room for a message of one slot. Consumers of one branch may all be
    told of a message, and one of them gets it: use ``timeout=0``, and expect Empty

    Raises
    ------
    Closed : one of them was closed
    TypeError : this is no list of consumers and producers
    ValueError : there is nothing to wait for
    """
    given = cast("Iterable[_Handle] | _Handle", handles)
    if isinstance(given, Consumer | Producer):  # to iterate a consumer takes its messages
        raise TypeError(f"a wait is for a list of consumers or producers: give it as [{given!r}]")
    waits = [(handle, ends_of(handle) if isinstance(handle, Consumer) else 1) for handle in handles]
    if not waits:
        raise ValueError("there is nothing to wait for: give at least one consumer or producer")
    found = set(wait_any(waits, timeout, choose(WAITS, "wait", wait), None, 0))
    for handle in found:
        if handle.closed:
            raise Closed(f"{handle!r} was closed, and has been waited for")
    return [handle for handle, _ in waits if handle in found]
