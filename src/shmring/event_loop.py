"""Waiting for several consumers and producers, and for each in an event loop.

The loop is asyncio's, or another one with its interface.

A task takes, or pushes, by a call that does not wait, on the loop's own thread. There is no
``await`` between this call and the ``return`` that hands the result to the task: a task that is
cancelled is cancelled at an ``await``, so it has taken nothing then, and has lost nothing.

What cannot be done at once is waited for by one thread for each loop, which sleeps on all of the
loop's rings; beyond 127 waits there is a second one. It never takes: it tells the loop who may try
again (docs/protocol.md, P9). If the task was cancelled meanwhile, the wake-up is passed on to the
branch's other consumers.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from time import monotonic
from types import FunctionType
from typing import TYPE_CHECKING, TypeVar, cast

from shmring._shmring import (
    KIND_END,
    WAIT_FUTEX,
    Bell,
    Consumer,
    Producer,
    check_ends,
    decline,
    ends_of,
    give_up,
    has_tried,
    push_now,
    should_try,
    slots_for,
    take_now,
    wait_any,
)
from shmring.arguments import WAITS, Wait, choose, seconds_of
from shmring.errors import Closed, EndOfStream
from shmring.forks import lineage

if TYPE_CHECKING:
    import asyncio
    from types import EllipsisType

    from typing_extensions import Buffer

Handle = Consumer | Producer
_H = TypeVar("_H", bound=Handle)
_T = TypeVar("_T", bytes, int)

# Consumers and producers that one sleep is for: what the kernel takes, but for the bell.
_AT_ONCE = 127
# Seconds after which a thread without work ends, and one with work sees that its loop was closed by
# a program that has not ended the loop's generators before.
_IDLE = 1.0
# Seconds for which a task asks again and again, in turn with the loop's other tasks, where that
# went well before: about what it costs to wake the thread, and the loop by the thread.
_TRIAL = 100e-6


def wait(
    handles: Iterable[_H], timeout: float | None = None, *, wait: Wait = "default"
) -> list[_H]:
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
    given = cast("Iterable[_H] | _H", handles)
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


# --- event loops ----------------------------------------------------------------------------------


class _Sleeper:
    """A thread that waits for rings of a loop while there are any to wait for.

    All but its own _run() is called on the loop's thread.
    """

    def __init__(self, watch: _Watch) -> None:
        self._watch = watch
        self._changed = threading.Condition()  # guards what follows
        self._waits: dict[Handle, int] = {}  # as wait_any() wants it
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._bell = Bell()

    def add(self, handle: Handle, least: int) -> bool:
        """Wait for this one too; whether there is room for it."""
        with self._changed:
            if self._waits.get(handle, least + 1) <= least:
                return True
            if handle not in self._waits and len(self._waits) >= _AT_ONCE:
                return False
            self._waits[handle] = least
            if self._thread is None:
                name = f"shmring waits for {type(self._watch.loop).__name__}"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()
            self._changed.notify()
        self._bell.ring()
        return True

    def remove(self, handle: Handle) -> None:
        with self._changed:
            left = self._waits.pop(handle, None)
        if left is not None:
            self._bell.ring()

    def stop(self) -> None:
        """End the thread; nothing is waited for any more."""
        with self._changed:
            self._waits.clear()
            self._stopped = True
            thread = self._thread
            self._changed.notify()
        self._bell.ring()
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        loop = self._watch.loop
        while (waits := self._work()) is not None:
            rung, handles = waits
            try:
                ready = wait_any(handles, _IDLE, WAIT_FUTEX, self._bell, rung)
            except Exception:  # whatever it is, the tasks meet it in their own calls
                ready = [handle for handle, _ in handles]
            if loop.is_closed():
                return
            if not ready:
                continue
            with self._changed:
                for handle in ready:
                    self._waits.pop(handle, None)
            try:
                loop.call_soon_threadsafe(self._watch.tell, ready)
            except RuntimeError:  # it was closed since
                return

    def _work(self) -> tuple[int, list[tuple[Handle, int]]] | None:
        """What to wait for, and how often the bell was rung before that was looked at."""
        with self._changed:
            if not self._waits:
                self._changed.wait_for(lambda: self._waits or self._stopped, _IDLE)
            if not self._waits:
                self._thread = None
                return None
            return self._bell.rung, list(self._waits.items())


class _Watch:
    """The tasks of one loop that wait."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.forks = lineage.forks
        # Those that wait for each, in turn: with how many slots, or ends, they wait.
        self._tasks: dict[Handle, dict[asyncio.Future[bool], int]] = {}
        self._sleepers = [_Sleeper(self)]
        self._end: AsyncIterator[None] | None = None

    async def ready(self, handle: Handle, wanted: int, deadline: float | None) -> bool:
        """Wait until it is worth trying; whether it is, or time is up.

        For so many slots; a consumer, for what ends_of() it was when the task began to wait.
        """
        if self._end is None:
            self._end = self._stop_at_the_end()
            await anext(self._end)
        future: asyncio.Future[bool] = self.loop.create_future()
        self._tasks.setdefault(handle, {})[future] = wanted
        timer = None if deadline is None else self.loop.call_at(deadline, _set, future, False)
        try:
            self._arm(handle)
            return await future
        except BaseException:
            if future.done() and not future.cancelled():
                decline(handle)
            raise
        finally:
            if timer is not None:
                timer.cancel()
            self._leave(handle, future)

    async def _stop_at_the_end(self) -> AsyncGenerator[None]:
        """End the threads when the loop ends its generators: just before it is closed."""
        try:
            yield
        finally:
            if self.forks == lineage.forks:
                for sleeper in self._sleepers:
                    sleeper.stop()

    def tell(self, handles: list[Handle]) -> None:
        """Let those try that wait for these."""
        for handle in handles:
            tasks = self._tasks.get(handle, {})
            waiting = [future for future in tasks if not future.done()]
            if not waiting:
                decline(handle)
            if isinstance(handle, Consumer):  # a message is for one, an end for each
                ends = ends_of(handle)
                waiting = [f for f in waiting if tasks[f] != ends] or waiting[:1]
            for future in waiting:  # there may be room for several, of different sizes
                future.set_result(True)

    def _arm(self, handle: Handle) -> None:
        least = min(self._tasks[handle].values())
        if not any(sleeper.add(handle, least) for sleeper in self._sleepers):
            self._sleepers.append(_Sleeper(self))
            self._sleepers[-1].add(handle, least)

    def _leave(self, handle: Handle, future: asyncio.Future[bool]) -> None:
        if self.forks != lineage.forks:  # the threads, which may have the locks, are the parent's
            return
        tasks = self._tasks[handle]
        del tasks[future]
        if tasks:
            self._arm(handle)
            return
        del self._tasks[handle]
        for sleeper in self._sleepers:
            sleeper.remove(handle)


class _Local(threading.local):
    """A loop runs in one thread. Its watch lives as long as somebody waits, or its thread."""

    watch: Callable[[], _Watch | None] = staticmethod(lambda: None)


_local = _Local()


def _watch(loop: asyncio.AbstractEventLoop) -> _Watch:
    watch = _local.watch()
    if watch is None or watch.loop is not loop or watch.forks != lineage.forks:
        watch = _Watch(loop)
        _local.watch = weakref.ref(watch)
    return watch


def _set(future: asyncio.Future[bool], value: bool) -> None:
    if not future.done():
        future.set_result(value)


def _deadline(loop: asyncio.AbstractEventLoop, timeout: float | None) -> float | None:
    return None if timeout is None else loop.time() + timeout


async def _try_for_a_while(
    handle: Handle, attempt: Callable[[], _T | EllipsisType | None], seconds: float
) -> _T | None:
    """Try in turn with the loop's other tasks, without the thread."""
    from asyncio import sleep

    until = monotonic() + seconds  # the time of a loop may be one of milliseconds
    while monotonic() < until:
        await sleep(0)
        found = attempt()
        if found is not None and found is not ...:
            has_tried(handle, True)
            return found
    has_tried(handle, False)
    return None


async def _later(
    handle: Handle,
    attempt: Callable[[], _T | EllipsisType | None],
    found: EllipsisType | None,
    wanted: int,
    timeout: float | None,
) -> _T:
    """Go on after a first attempt. No ``await`` comes between the last one and its ``return``."""
    import asyncio

    loop = asyncio.get_running_loop()
    deadline = _deadline(loop, timeout)
    while True:
        in_time = True
        if found is ...:
            await asyncio.sleep(0)
        elif timeout == 0:
            in_time = False
        else:
            if should_try(handle):
                seconds = _TRIAL if timeout is None else min(timeout, _TRIAL)
                tried = await _try_for_a_while(handle, attempt, seconds)
                if tried is not None:
                    return tried
            in_time = await _watch(loop).ready(handle, wanted, deadline)
        last = attempt()
        if last is not None and last is not ...:
            return last
        if last is None and not in_time:
            give_up(handle, timeout)
        found = last


# --- methods of consumers -------------------------------------------------------------------------


async def _take_later(
    consumer: Consumer, found: EllipsisType | None, ends: int, timeout: float | None
) -> bytes:
    return await _later(consumer, lambda: take_now(consumer, ends), found, ends, timeout)


async def _get(self: Consumer, *, timeout: float | None = None) -> bytes:
    """Take one message as bytes, in an event loop; it is released at once.

    A call that is cancelled has taken nothing.

    Parameters
    ----------
    timeout : seconds to wait for a message; None waits for ever, 0 does not wait

    Raises
    ------
    as pop()
    """
    if timeout is not None:
        seconds_of("timeout", timeout)
    found = take_now(self, None)
    if found is None or found is ...:
        return await _take_later(self, found, ends_of(self), timeout)
    return found


async def _ready(self: Consumer, *, timeout: float | None = None) -> bool:
    """Wait, in an event loop, until a call with ``timeout=0`` is worth it.

        while await inp.ready():
            with inp.lease_many(256, timeout=0) as batch:
                ...

    Another consumer of the branch may be faster: then this call raises Empty.

    Parameters
    ----------
    timeout : seconds to wait; None waits for ever, 0 does not wait

    Returns
    -------
    False if nothing came in time

    Raises
    ------
    EndOfStream : another call with this consumer, in any task or thread, was told of an end
        meanwhile
    """
    import asyncio

    if timeout is not None:
        seconds_of("timeout", timeout)
    ends = ends_of(self)
    if wait_any([(self, ends)], 0, WAIT_FUTEX, None, 0):
        return True
    loop = asyncio.get_running_loop()
    found = await _watch(loop).ready(self, ends, _deadline(loop, timeout))
    check_ends(self, ends)
    return found


class Messages(AsyncIterator[bytes]):
    """The messages of a consumer, up to the end of the stream."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._ends = ends_of(consumer)

    def __aiter__(self) -> Messages:
        return self

    async def __anext__(self) -> bytes:
        try:
            found = take_now(self._consumer, self._ends)
            if found is None or found is ...:
                return await _take_later(self._consumer, found, self._ends, None)
        except EndOfStream:
            raise StopAsyncIteration from None
        return found


def _aiter(self: Consumer) -> Messages:
    """Iterate, in an event loop, up to the end of the stream."""
    return Messages(self)


# --- methods of producers -------------------------------------------------------------------------


async def _put(
    self: Producer,
    data: Buffer,
    /,
    *,
    timeout: float | None = None,
    kind: int = 0,
    align: int | None = None,
) -> int:
    """Publish one message, in an event loop. A call that is cancelled has published nothing.

    It waits for free slots whatever the producer's `when_full` says.

    Parameters
    ----------
    data, kind, align : as of push()
    timeout : seconds to wait for free slots; None waits for ever, 0 does not wait

    Returns
    -------
    message_id

    Raises
    ------
    as push()
    """
    if timeout is not None:
        seconds_of("timeout", timeout)
    found = push_now(self, data, kind, align)
    if found is None or found is ...:
        slots = slots_for(memoryview(data).nbytes, align is not None)
        return await _later(self, lambda: push_now(self, data, kind, align), found, slots, timeout)
    return found


async def _put_end(self: Producer, *, timeout: float | None = None) -> int:
    """Publish an end marker, in an event loop: as push_end()."""
    return await _put(self, b"", timeout=timeout, kind=KIND_END)


_METHODS: dict[type[Handle], dict[str, FunctionType]] = {
    Consumer: {"get": _get, "ready": _ready, "__aiter__": _aiter},
    Producer: {"put": _put, "put_end": _put_end},
}


def equip() -> None:
    """Give the extension's types their methods for event loops: a coroutine in C is none."""
    for kind, functions in _METHODS.items():
        for name, function in functions.items():
            function.__name__ = name
            function.__qualname__ = f"{kind.__name__}.{name}"
            setattr(kind, name, function)
