"""Consumers and producers in an event loop: what the calls do."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time

import event_loops
import pytest
from event_loops import threads, waiting, waits

import shmring

run = event_loops.run


async def test_messages_go_from_task_to_task(ring, run):
    found = []

    async def consume():
        async for data in inp:
            found.append(data)

    with ring.producer() as out, ring.consumer("a") as inp:
        reader = asyncio.create_task(consume())
        for i in range(3000):
            await out.put(b"%d" % i)
        await out.put_end()
        await reader
    assert found == [b"%d" % i for i in range(3000)]


async def test_get_waits_for_a_message(out, inp, run):
    for i in range(20):
        reader = asyncio.create_task(inp.get())
        await waits(reader)
        out.push(b"%d" % i)
        assert await reader == b"%d" % i


async def test_put_waits_for_room(ring, run):
    with ring.producer(when_full="drop") as out, ring.consumer("a") as inp:
        for _ in range(ring.slots):
            await out.put(b"x")
        small = asyncio.create_task(out.put(b"small", kind=20))
        large = asyncio.create_task(out.put(b"x" * 3000, align=0))
        await waits(small)
        inp.lease_many(ring.slots).release()
        assert sorted([await small, await large])[0] == ring.slots
        found = {len(await inp.get()) for _ in range(2)}
        assert found == {5, 3000}


async def test_timeouts(ring, out, inp, run):
    for timeout in (0, 0.03):
        start = time.monotonic()
        with pytest.raises(shmring.Empty):
            await inp.get(timeout=timeout)
        assert not await inp.ready(timeout=timeout)
        assert time.monotonic() - start >= timeout  # twice; a loop counts milliseconds
    for _ in range(ring.slots):
        await out.put(b"x")
    for timeout in (0, 0.03):
        with pytest.raises(shmring.Full, match="was full for"):
            await out.put(b"x", timeout=timeout)
    assert await inp.ready(timeout=0)
    assert await inp.get(timeout=0) == b"x"
    for timeout in (-1, float("nan")):
        for call in (inp.get, inp.ready, lambda **t: out.put(b"x", **t)):
            with pytest.raises(ValueError, match="timeout"):
                await call(timeout=timeout)
    assert ring.claimed == ring.slots


async def test_ready_is_for_every_call_that_does_not_wait(out, inp, run):
    reader = asyncio.create_task(inp.ready())
    await waits(reader)
    out.push_many([b"x"] * 5)
    assert await reader
    with inp.lease_many(256, timeout=0) as batch:
        assert len(batch) == 5


async def test_errors_are_those_of_the_calls_that_wait(ring, run):
    with ring.producer() as out, ring.consumer("a") as inp, ring.consumer("b") as dropped:
        with pytest.raises(TypeError):
            await out.put("text")
        with pytest.raises(shmring.MessageTooLarge):
            await out.put(bytes(300 * (ring.slots + 1)))
        await out.put_end()
        with pytest.raises(shmring.EndOfStream):
            await inp.get()
        with pytest.raises(shmring.EndOfStream):
            await dropped.get()
        reader = asyncio.create_task(dropped.get())
        await waits(reader)
        ring.drop_branch("b")
        with pytest.raises(shmring.BranchDropped):
            await reader
        reader = asyncio.create_task(inp.get())
        await waits(reader)
        inp.close()
        with pytest.raises(shmring.Closed):
            await reader
        with pytest.raises(shmring.Closed):
            await inp.get()
    with pytest.raises(shmring.Closed):
        await out.put(b"x")


async def by_get(inp):
    with contextlib.suppress(shmring.EndOfStream):
        while True:
            await inp.get()


async def by_iteration(inp):
    async for _ in inp:
        pass


def by_call(take):
    """The loop of docs/guides/asyncio.md, with one of the calls that do not wait."""

    async def consume(inp):
        with contextlib.suppress(shmring.EndOfStream):
            while await inp.ready():
                with contextlib.suppress(shmring.Empty):
                    take(inp)

    return consume


def lease_many(inp):
    with inp.lease_many(256, timeout=0):
        pass


def lease(inp):
    with inp.lease(timeout=0):
        pass


TAKING = {
    "get": by_get,
    "async for": by_iteration,
    "pop": by_call(lambda inp: inp.pop(timeout=0)),
    "lease": by_call(lease),
    "lease_many": by_call(lease_many),
    "next": by_call(lambda inp: inp.done(number) if (number := inp.next()) >= 0 else None),
}


@pytest.mark.parametrize("first", TAKING)
@pytest.mark.parametrize("second", ["get", "lease_many"])
@pytest.mark.parametrize("messages", [0, 3])
async def test_an_end_ends_two_tasks_by_whichever_call(out, inp, run, first, second, messages):
    tasks = [asyncio.create_task(TAKING[call](inp)) for call in (first, second)]
    await waits(tasks[1])
    for _ in range(messages):
        await out.put(b"x")
    await out.put_end()
    await asyncio.gather(*tasks)


@pytest.mark.parametrize("call", TAKING)
@pytest.mark.parametrize("others", ["for", "pop", "lease_many"])
async def test_an_end_ends_a_thread_and_a_task(ring, run, thread, until, participant, call, others):
    def in_a_thread(inp):
        if others == "for":
            return list(inp)
        with pytest.raises(shmring.EndOfStream):
            inp.pop() if others == "pop" else inp.lease_many(9)
        return []

    for _ in range(20):  # now the one is told of it, and now the other
        with ring.producer() as out, ring.consumer("a", name="c") as inp:
            other = thread(in_a_thread, inp)
            until(lambda: participant(ring, "c")["empty_waits"])  # a later task is not told
            task = asyncio.create_task(TAKING[call](inp))
            await waits(task)
            await out.put_end()
            await task
            assert await asyncio.to_thread(other.outcome) == []


def test_an_end_that_a_thread_was_told_of_ends_tasks_of_two_loops(out, inp, thread, until):
    """The loops' threads are asleep when another thread takes the end, and are called."""
    begun = [threading.Event(), threading.Event()]

    async def iterate(event):
        task = asyncio.create_task(by_iteration(inp))
        await waits(task)
        event.set()
        await task

    loops = [thread(asyncio.run, iterate(event)) for event in begun]
    until(lambda: all(event.is_set() for event in begun), "both loops' tasks")
    out.push_end()
    with pytest.raises((shmring.EndOfStream, shmring.Empty)):
        inp.pop(timeout=0)
    for loop in loops:
        loop.outcome()


async def test_an_end_is_not_told_again_to_who_comes_later(out, inp, run):
    task = asyncio.create_task(inp.ready())
    await waits(task)
    await out.put_end()
    with pytest.raises(shmring.EndOfStream):
        await inp.get()
    with pytest.raises(shmring.EndOfStream):
        await task
    assert not await inp.ready(timeout=0)
    await out.put(b"of the next run")
    assert await inp.ready()
    assert await inp.get() == b"of the next run"


async def test_a_busy_consumer_lets_other_tasks_run(out, inp, run):
    others = event_loops.Others()
    for _ in range(1000):
        await out.put(b"x")
    before = others.turns
    assert before >= 3
    for _ in range(1000):
        await inp.get()
    assert others.turns >= before + 3
    others.task.cancel()


def test_one_thread_waits_for_all_rings_and_ends(name, run, until):
    async def main():
        rings = [shmring.create(f"{name}-{i}", slots=1024, temporary=True) for i in range(5)]
        outputs = [ring.producer() for ring in rings]
        inputs = [ring.consumer("a") for ring in rings for _ in range(3)]
        before = threads()
        readers = [asyncio.create_task(inp.get()) for inp in inputs]
        while waiting() < len(readers):
            await asyncio.sleep(0)
        assert len(set(threads()) - set(before)) == 1
        for out in outputs:
            out.push_many([b"x"] * 3)
        assert await asyncio.gather(*readers) == [b"x"] * len(readers)
        for ring in rings:
            ring.close()

    run(main())
    until(lambda: not threads())


def test_a_thread_ends_with_its_loop(out, inp, run):
    async def main():
        task = asyncio.create_task(inp.get())
        await waits(task)
        out.push(b"x")
        assert await task == b"x"

    for _ in range(20):
        run(main())
        assert threads() == []


def test_a_loop_whose_generators_were_ended_may_still_wait(out, inp):
    async def main():
        task = asyncio.create_task(inp.get())
        await waits(task)
        out.push(b"x")
        return await task

    loop = asyncio.new_event_loop()
    for _ in range(3):
        assert loop.run_until_complete(main()) == b"x"
        loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
