"""Loops for tests: asyncio's own, and uvloop's."""

from __future__ import annotations

import asyncio
import threading

import pytest
import uvloop

from shmring.ring import event_loop

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(params=LOOPS)
def run(request, patience):
    """Runs a coroutine in a loop of each kind, for a time that is long enough."""

    def run(coroutine):
        async def in_time():
            async with asyncio.timeout(patience):
                return await coroutine

        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            return runner.run(in_time())

    return run


class Others:
    """A task that counts its turns while others have theirs."""

    def __init__(self):
        self.turns = 0
        self.task = asyncio.create_task(self.count())

    async def count(self):
        while True:
            self.turns += 1
            await asyncio.sleep(0)


def threads():
    return [t for t in threading.enumerate() if t.name.startswith("shmring waits for")]


async def waits(task):
    """Let a task go on until it waits for the thread."""
    while not (tasks := waiting()):
        assert not task.done()
        await asyncio.sleep(0)
    return tasks


def waiting():
    watch = event_loop._local.watch()
    if watch is None or watch.loop is not asyncio.get_running_loop():
        return 0
    return sum(len(tasks) for tasks in watch._tasks.values())
