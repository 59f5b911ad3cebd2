"""Event loops: tasks are cancelled, other processes die, loops close, processes fork."""

from __future__ import annotations

import asyncio
import os
import random

import event_loops
import pytest
from event_loops import LOOPS, threads, waits

import shmring

run = event_loops.run


# --- cancelling -----------------------------------------------------------------------------------


async def test_a_consumer_that_is_closed_has_left_although_a_task_was_cancelled(ring, run):
    for _ in range(100):
        with ring.consumer("a", exclusive=True) as inp:
            task = asyncio.create_task(inp.get())
            await waits(task)
            task.cancel()
            await asyncio.wait([task])
        with ring.consumer("a", exclusive=True) as inp, pytest.raises(shmring.Empty):
            await inp.get(timeout=0.001)


PUSHES = """
import random, sys, time
import shmring

ring = shmring.attach(sys.argv[1])
with ring.producer() as out:
    for i in range(int(sys.argv[2])):
        out.push(b"%d" % i)
        if i % 7 == 0:
            time.sleep(random.random() * 5e-4)
    out.push_end()
"""


@pytest.mark.parametrize("consumers", [pytest.param(1, marks=pytest.mark.long), 3])
async def test_ten_thousand_cancelled_waits_lose_nothing_and_double_nothing(
    ring, run, child, consumers
):
    """Each message is counted by exactly one task; a cancelled task has got none."""
    count = 3000 if consumers == 1 else 1500
    found = []
    cancelled = 0

    async def consume(inp):
        nonlocal cancelled
        numbers = random.Random(7)
        loop = asyncio.get_running_loop()
        while True:
            task = asyncio.create_task(inp.get())
            how = numbers.randrange(4)
            if how == 0:
                loop.call_soon(task.cancel)
            elif how == 1:
                loop.call_later(numbers.random() * 1e-3, task.cancel)
            elif how == 2:
                for _ in range(numbers.randrange(12)):
                    await asyncio.sleep(0)
                task.cancel()
            else:
                task.cancel()
            await asyncio.wait([task])
            if task.cancelled():
                cancelled += 1
            elif isinstance(task.exception(), shmring.EndOfStream):
                return
            else:
                found.append(task.result())

    inputs = [ring.consumer("a") for _ in range(consumers)]
    process = child(PUSHES, ring.name, count)
    await asyncio.gather(*(consume(inp) for inp in inputs))
    while cancelled < 10_000:  # the rest of them where nothing comes
        task = asyncio.create_task(inputs[0].get())
        await asyncio.sleep(random.random() * 1e-4)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        cancelled += 1
    process.end()
    for inp in inputs:
        inp.close()
    assert cancelled >= 10_000
    assert sorted(map(int, found)) == list(range(count))


async def test_a_cancelled_put_has_published_nothing(ring, out, inp, run):
    for _ in range(ring.slots):
        await out.put(b"old")
    for how in range(200):
        task = asyncio.create_task(out.put(b"new"))
        for _ in range(how % 10):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
    assert ring.claimed == ring.slots
    inp.lease_many(ring.slots).release()
    await out.put(b"new")
    assert await inp.get() == b"new"


TAKES = """
import sys
import shmring

inp = shmring.attach(sys.argv[1]).consumer("a", name="other")
print("ready", flush=True)
for data in inp:
    print(data.decode(), flush=True)
"""


async def test_what_a_cancelled_task_was_woken_for_goes_to_another_process(
    ring, out, inp, run, child, until, participant
):
    reader = asyncio.create_task(inp.get())
    await waits(reader)
    other = child(TAKES, ring.name)
    assert other.line() == "ready"
    until(lambda: participant(ring, "other")["empty_waits"] > 0)
    for i in range(50):
        out.push(b"%d" % i)
        reader.cancel()
        await asyncio.wait([reader])
        if reader.cancelled():
            assert other.line() == str(i)
        else:
            assert reader.result() == b"%d" % i
        reader = asyncio.create_task(inp.get())
        await waits(reader)
    reader.cancel()
    await out.put_end()
    other.end()


# --- loops that close, processes that fork --------------------------------------------------------


def test_a_loop_may_close_while_tasks_wait(ring, until):
    for factory in LOOPS.values():
        loop = factory()
        inp = ring.consumer("a")
        tasks = [loop.create_task(inp.get()) for _ in range(3)]
        loop.run_until_complete(waits(tasks[0]))
        assert threads()
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        left = loop.create_task(inp.get())
        loop.run_until_complete(waits(left))
        left._log_destroy_pending = False
        loop.close()
        until(lambda: not threads())
        with ring.producer() as out:
            out.push(b"x")
        assert inp.pop(timeout=0) == b"x"
        inp.close()
        del left


async def test_a_child_has_loops_of_its_own(ring, inp, run):
    reader = asyncio.create_task(inp.get())
    await waits(reader)
    child = os.fork()
    if child == 0:
        os._exit(_in_child(ring, inp))
    assert await reader == b"from the child"
    assert os.waitpid(child, 0)[1] == 0


def _in_child(ring, inp):
    async def main():
        try:
            await inp.get()
        except shmring.ForkedHandle:
            pass
        else:
            return 1
        with ring.consumer("b", start="latest") as own, ring.producer() as out:
            reader = asyncio.create_task(own.get())
            await waits(reader)
            out.push(b"from the child")
            return 0 if await reader == b"from the child" else 1

    asyncio._set_running_loop(None)
    try:
        return asyncio.run(main())
    except BaseException:
        import traceback

        traceback.print_exc()
        return 2


LEFT_OPEN = """
import asyncio, sys
import shmring

async def main():
    inp = shmring.attach(sys.argv[1]).consumer("a")
    task = asyncio.create_task(inp.get())
    await asyncio.sleep(0.01)
    print("done", flush=True)

asyncio.run(main())
"""


def test_a_program_may_end_while_tasks_wait(ring, child):
    process = child(LEFT_OPEN, ring.name)
    assert process.line() == "done"
    process.end()
