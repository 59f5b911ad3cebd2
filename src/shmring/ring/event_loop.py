"""Waiting for several consumers and producers at once, and for one of them in an event loop.

The event loop is asyncio's, or another loop with the same interface.

A task takes or pushes a message by a call that does not wait, on the loop's own thread. There is no
``await`` between this call and the ``return`` that hands the result to the task. A task is only
cancelled at an ``await``, so a cancelled task has taken nothing and has lost nothing.

If the call cannot be done at once, a thread waits for the task. Each loop has one such thread,
which sleeps on all of the loop's rings; beyond 127 waits the loop has a second thread. The thread
never takes a message: it tells the loop which tasks may try again (docs/protocol.md, P9). If the
task was cancelled meanwhile, the wake-up is passed on to the branch's other consumers.
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
from shmring.common.arguments import WAITS, Wait, choose, seconds_of
from shmring.common.forks import lineage
from shmring.errors import Closed, EndOfStream

if TYPE_CHECKING:
    import asyncio
    from types import EllipsisType

    from typing_extensions import Buffer

Handle = Consumer | Producer
_H = TypeVar("_H", bound=Handle)
_T = TypeVar("_T", bytes, int)

# Maximum number of consumers and producers that one thread waits for in one sleep. The kernel lets
# a sleep wait for 128 words of memory, and one of these words is the bell, by which a task wakes
# the thread.
_AT_ONCE = 127
# Seconds after which a thread without work ends. A thread with work checks at this interval whether
# its loop was closed. The loop's shutdown_asyncgens() stops the thread, but a program may close the
# loop without calling it.
_IDLE = 1.0
# Seconds for which a task repeats its call before it lets the thread wait, if repeating has helped
# before. Waking the thread, and then the loop, takes about as long.
_TRIAL = 100e-6


def wait(
    handles: Iterable[_H], timeout: float | None = None, *, wait: Wait = "default"
) -> list[_H]:
    """Wait until one of several consumers has a message, or one of several producers has room.

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
    the consumers and producers that are ready, in the order given; empty if the time was up. A
    ready consumer has a message, or comes to an end of the stream, or its branch was dropped: its
    next call takes the message, or raises. A ready producer has room for a message of one slot.
    Several consumers of one branch may be ready for the same message, and one of them gets it: use
    ``timeout=0``, and expect Empty

    Raises
    ------
    Closed : one of the consumers or producers was closed
    TypeError : `handles` is no list of consumers and producers
    ValueError : `handles` is empty
    """
    given = cast("Iterable[_H] | _H", handles)
    if isinstance(given, Consumer | Producer):  # iterating over a consumer would take its messages
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
    """A thread that waits for messages or free slots in rings, on behalf of a loop's tasks.

    All methods except _run() and _work() are called on the loop's thread.
    """

    def __init__(self, watch: _Watch) -> None:
        self._watch = watch
        self._changed = threading.Condition()  # guards _waits, _thread and _stopped
        # Handles to wait for, each with a number. For a producer, the number is the fewest free
        # slots that a waiting task needs. For a consumer, it is the number of end markers that the
        # consumer has already reported: one more end marker ends the wait.
        self._waits: dict[Handle, int] = {}
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._bell = Bell()

    def add(self, handle: Handle, least: int) -> bool:
        """Wait for this handle too; return False if the thread has no room for another wait."""
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
        """End the thread and all of its waits."""
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
            # CHANGE: edit this for a new option of a ring
            try:
                ready = wait_any(handles, _IDLE, WAIT_FUTEX, self._bell, rung)
            # Wake all tasks: each calls its handle again, and gets the error there.
            except Exception:
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
            except RuntimeError:  # the loop was closed after the check above
                return

    def _work(self) -> tuple[int, list[tuple[Handle, int]]] | None:
        """Return how often the bell has rung, and the waits; None if the thread is to end.

        The number is read with the waits under one lock: a later change of the waits rings the
        bell, and wait_any() returns at once if the number has grown.
        """
        with self._changed:
            if not self._waits:
                self._changed.wait_for(lambda: self._waits or self._stopped, _IDLE)
            if not self._waits:
                self._thread = None
                return None
            return self._bell.rung, list(self._waits.items())


class _Watch:
    """The waiting tasks of one event loop, and the threads that wait for them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.forks = lineage.forks
        # Futures of the tasks that wait for a handle, in order, each with a number. For a producer,
        # the number is the slots that the task needs. For a consumer, it is the number of end
        # markers that had been reported when the task began to wait.
        self._tasks: dict[Handle, dict[asyncio.Future[bool], int]] = {}
        self._sleepers = [_Sleeper(self)]
        self._end: AsyncIterator[None] | None = None

    # CHANGE: edit this for a new counter that each participant has
    async def ready(self, handle: Handle, wanted: int, deadline: float | None) -> bool:
        """Wait until the handle may be tried again; return False if the time was up first.

        A producer's `wanted` is the slots that it needs; a consumer's, the number of end markers
        that it had reported when the task's call began. The deadline is a time of the loop.
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
        """Stop the threads when the loop's shutdown_asyncgens() ends this generator."""
        try:
            yield
        finally:
            if self.forks == lineage.forks:
                for sleeper in self._sleepers:
                    sleeper.stop()

    def tell(self, handles: list[Handle]) -> None:
        """Wake the tasks that wait for these handles; a message wakes one task only."""
        for handle in handles:
            tasks = self._tasks.get(handle, {})
            waiting = [future for future in tasks if not future.done()]
            if not waiting:
                decline(handle)
            if isinstance(handle, Consumer):  # a message wakes one task, an end wakes all
                ends = ends_of(handle)
                waiting = [f for f in waiting if tasks[f] != ends] or waiting[:1]
            for future in waiting:  # a producer's ring may have room for the messages of all tasks
                future.set_result(True)

    def _arm(self, handle: Handle) -> None:
        least = min(self._tasks[handle].values())
        if not any(sleeper.add(handle, least) for sleeper in self._sleepers):
            self._sleepers.append(_Sleeper(self))
            self._sleepers[-1].add(handle, least)

    def _leave(self, handle: Handle, future: asyncio.Future[bool]) -> None:
        # Do nothing in a forked child: the child has none of the threads, and one of them may have
        # held a lock at the fork, which then stays locked in the child.
        if self.forks != lineage.forks:
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
    """The watch of the loop that runs in this thread.

    The reference is weak: waiting tasks and the watch's own threads keep the watch alive.
    """

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
    """Repeat an attempt for some seconds, and let the loop's other tasks run in between.

    Return the result of the first attempt that succeeds; None if all fail.
    """
    from asyncio import sleep

    until = monotonic() + seconds  # not loop.time(), which may be as coarse as milliseconds
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
    """Complete a call whose first attempt did not succeed.

    No ``await`` comes between the last attempt and its ``return``: a cancelled task loses nothing.
    """
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
    """Take one message as bytes, in an event loop; the message is released at once.

    A call that is cancelled has taken nothing. The errors are those of pop().

    Parameters
    ----------
    timeout : seconds to wait for a message; None waits for ever, 0 does not wait
    """
    if timeout is not None:
        seconds_of("timeout", timeout)
    found = take_now(self, None)
    if found is None or found is ...:
        return await _take_later(self, found, ends_of(self), timeout)
    return found


async def _ready(self: Consumer, *, timeout: float | None = None) -> bool:
    """Wait, in an event loop, until a call with ``timeout=0`` is likely to take a message.

        while await inp.ready():
            with inp.lease_many(256, timeout=0) as batch:
                ...

    Another consumer of the branch may be faster: then the call with ``timeout=0`` raises Empty.

    Parameters
    ----------
    timeout : seconds to wait; None waits for ever, 0 does not wait

    Returns
    -------
    True if a message or an end of the stream came in time, else False

    Raises
    ------
    EndOfStream : another call of this consumer, in any task or thread, reached an end of the
        stream meanwhile
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
    """Publish one message, in an event loop, and return its message_id.

    The call waits for free slots, also if the producer's `when_full` says otherwise. A call that is
    cancelled has published nothing. The errors are those of push().

    Parameters
    ----------
    data, kind, align : the parameters of push()
    timeout : seconds to wait for free slots; None waits for ever, 0 does not wait
    """
    if timeout is not None:
        seconds_of("timeout", timeout)
    found = push_now(self, data, kind, align)
    if found is None or found is ...:
        slots = slots_for(memoryview(data).nbytes, align is not None)
        return await _later(self, lambda: push_now(self, data, kind, align), found, slots, timeout)
    return found


async def _put_end(self: Producer, *, timeout: float | None = None) -> int:
    """Publish an end marker, as push_end() does; other tasks of the loop run while it waits."""
    return await _put(self, b"", timeout=timeout, kind=KIND_END)


_METHODS: dict[type[Handle], dict[str, FunctionType]] = {
    Consumer: {"get": _get, "ready": _ready, "__aiter__": _aiter},
    Producer: {"put": _put, "put_end": _put_end},
}


def equip() -> None:
    """Add the methods for event loops to the extension's types.

    The methods are Python functions because only a Python function can be a coroutine function.
    """
    for kind, functions in _METHODS.items():
        for name, function in functions.items():
            function.__name__ = name
            function.__qualname__ = f"{kind.__name__}.{name}"
            setattr(kind, name, function)
