"""Consumers and producers in an event loop: asyncio's own, and uvloop's."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import threading
import time

import pytest
import uvloop

import shmring
from shmring import event_loop

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


def threads():
    return [t for t in threading.enumerate() if t.name.startswith("shmring waits for")]


async def waits(task):
    """Let a task go on until it waits for the thread."""
    while not (tasks := _waiting()):
        assert not task.done()
        await asyncio.sleep(0)
    return tasks


def _waiting():
    watch = event_loop._local.watch()
    if watch is None or watch.loop is not asyncio.get_running_loop():
        return 0
    return sum(len(tasks) for tasks in watch._tasks.values())


# --- what the calls do ----------------------------------------------------------------------------


def test_messages_go_from_task_to_task(ring, run):
    async def main():
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

    run(main())


def test_get_waits_for_a_message(ring, run):
    async def main():
        with ring.producer() as out, ring.consumer("a") as inp:
            for i in range(20):
                reader = asyncio.create_task(inp.get())
                await waits(reader)
                out.push(b"%d" % i)
                assert await reader == b"%d" % i

    run(main())


def test_put_waits_for_room(ring, run):
    async def main():
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

    run(main())


def test_timeouts(ring, run):
    async def main():
        with ring.producer() as out, ring.consumer("a") as inp:
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

    run(main())


def test_ready_is_for_every_call_that_does_not_wait(ring, run):
    async def main():
        with ring.producer() as out, ring.consumer("a") as inp:
            reader = asyncio.create_task(inp.ready())
            await waits(reader)
            out.push_many([b"x"] * 5)
            assert await reader
            with inp.lease_many(256, timeout=0) as batch:
                assert len(batch) == 5

    run(main())


def test_errors_are_those_of_the_calls_that_wait(ring, run):
    async def main():
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

    run(main())


def test_a_file_that_was_removed_is_told(ring, run):
    async def main():
        with ring.consumer("a") as inp:
            os.unlink(ring.path)
            with pytest.raises(shmring.RingNotFound, match="no producer is attached"):
                await inp.get()

    run(main())


def test_an_overrun_is_told(ring, run):
    async def main():
        with ring.producer() as out, ring.consumer("a", drop_oldest=True) as inp:
            for _ in range(ring.slots * 2):
                await out.put(b"x")
            with pytest.raises(shmring.Overrun):
                await inp.get()
            assert await inp.get() == b"x"

    run(main())


def test_an_end_ends_every_task_that_shares_the_consumer(ring, run):
    async def main():
        with ring.producer() as out, ring.consumer("a") as inp:

            async def count():
                return [data async for data in inp]

            readers = [asyncio.create_task(count()) for _ in range(5)]
            late = asyncio.create_task(inp.get())
            await asyncio.sleep(0)
            for i in range(100):
                await out.put(b"%d" % i)
            await out.put_end()
            found = [data for part in await asyncio.gather(*readers) for data in part]
            [last] = await asyncio.gather(late, return_exceptions=True)
            if isinstance(last, bytes):
                found.append(last)
            else:
                assert isinstance(last, shmring.EndOfStream)
            assert sorted(found) == sorted(b"%d" % i for i in range(100))

    run(main())


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
@pytest.mark.parametrize("second", TAKING)
@pytest.mark.parametrize("messages", [0, 3])
def test_an_end_ends_two_tasks_by_whichever_call(ring, run, first, second, messages):
    async def main():
        with ring.producer() as out, ring.consumer("a") as inp:
            tasks = [asyncio.create_task(TAKING[call](inp)) for call in (first, second)]
            await waits(tasks[1])
            for _ in range(messages):
                await out.put(b"x")
            await out.put_end()
            await asyncio.gather(*tasks)

    run(main())


@pytest.mark.parametrize("call", TAKING)
@pytest.mark.parametrize("others", ["for", "pop", "lease_many"])
def test_an_end_ends_a_thread_and_a_task(ring, run, thread, call, others):
    def in_a_thread(inp):
        if others == "for":
            return list(inp)
        with pytest.raises(shmring.EndOfStream):
            inp.pop() if others == "pop" else inp.lease_many(9)
        return []

    async def main():
        for _ in range(20):  # now the one is told of it, and now the other
            with ring.producer() as out, ring.consumer("a") as inp:
                other = thread(in_a_thread, inp)
                task = asyncio.create_task(TAKING[call](inp))
                await waits(task)
                await out.put_end()
                await task
                assert await asyncio.to_thread(other.outcome) == []

    run(main())


def test_an_end_that_a_thread_was_told_of_ends_tasks_of_two_loops(ring, thread, until):
    """The loops' threads are asleep when another thread takes the end, and are called."""
    begun = [threading.Event(), threading.Event()]

    async def iterate(event):
        task = asyncio.create_task(by_iteration(inp))
        await waits(task)
        event.set()
        await task

    with ring.producer() as out, ring.consumer("a") as inp:
        loops = [thread(asyncio.run, iterate(event)) for event in begun]
        until(lambda: all(event.is_set() for event in begun), "both loops' tasks")
        out.push_end()
        with pytest.raises((shmring.EndOfStream, shmring.Empty)):
            inp.pop(timeout=0)
        for loop in loops:
            loop.outcome()


def test_an_end_is_not_told_again_to_who_comes_later(ring, run):
    async def main():
        with ring.producer() as out, ring.consumer("a") as inp:
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

    run(main())


def test_a_busy_consumer_lets_other_tasks_run(ring, run):
    async def main():
        turns = 0

        async def others():
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        with ring.producer() as out, ring.consumer("a") as inp:
            other = asyncio.create_task(others())
            for _ in range(1000):
                await out.put(b"x")
            before = turns
            assert before >= 3
            for _ in range(1000):
                await inp.get()
            assert turns >= before + 3
            other.cancel()

    run(main())


def test_one_thread_waits_for_all_rings_and_ends(name, run, until):
    async def main():
        rings = [shmring.create(f"{name}-{i}", slots=1024, temporary=True) for i in range(5)]
        outputs = [ring.producer() for ring in rings]
        inputs = [ring.consumer("a") for ring in rings for _ in range(3)]
        before = threads()
        readers = [asyncio.create_task(inp.get()) for inp in inputs]
        while _waiting() < len(readers):
            await asyncio.sleep(0)
        assert len(set(threads()) - set(before)) == 1
        for out in outputs:
            out.push_many([b"x"] * 3)
        assert await asyncio.gather(*readers) == [b"x"] * len(readers)
        for ring in rings:
            ring.close()

    run(main())
    until(lambda: not threads())


def test_loops_in_several_threads_share_a_ring(ring, thread):
    joined = threading.Barrier(4)

    async def consume():
        with ring.consumer("a") as inp:
            joined.wait()  # who joins behind the end is not told of it
            return [data async for data in inp]

    readers = [thread(lambda: asyncio.run(consume())) for _ in range(3)]
    joined.wait()
    with ring.producer() as out:
        for i in range(3000):
            out.push(b"%d" % i)
        out.push_end()
    found = [data for reader in readers for data in reader.outcome()]
    assert sorted(found) == sorted(b"%d" % i for i in range(3000))


# --- cancelling -----------------------------------------------------------------------------------


def test_a_consumer_that_is_closed_has_left_although_a_task_was_cancelled(ring, run):
    async def main():
        for _ in range(100):
            with ring.consumer("a", exclusive=True) as inp:
                task = asyncio.create_task(inp.get())
                await waits(task)
                task.cancel()
                await asyncio.wait([task])
            with ring.consumer("a", exclusive=True) as inp, pytest.raises(shmring.Empty):
                await inp.get(timeout=0.001)

    run(main())


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


@pytest.mark.parametrize("consumers", [1, 3])
def test_ten_thousand_cancelled_waits_lose_nothing_and_double_nothing(ring, run, child, consumers):
    """Of each task it is known whether it got a message: what it got counts, and nothing else."""
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

    async def main():
        inputs = [ring.consumer("a") for _ in range(consumers)]
        process = child(PUSHES, ring.name, count)
        await asyncio.gather(*(consume(inp) for inp in inputs))
        while cancelled < 10_000:  # the rest of them where nothing comes
            task = asyncio.create_task(inputs[0].get())
            await asyncio.sleep(random.random() * 1e-4)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
            await _count()
        process.end()
        for inp in inputs:
            inp.close()

    async def _count():
        nonlocal cancelled
        cancelled += 1

    run(main())
    assert cancelled >= 10_000
    assert sorted(map(int, found)) == list(range(count))


def test_a_cancelled_put_has_published_nothing(ring, run):
    async def main():
        with ring.producer() as out, ring.consumer("a") as inp:
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

    run(main())


TAKES = """
import sys
import shmring

inp = shmring.attach(sys.argv[1]).consumer("a", name="other")
print("ready", flush=True)
for data in inp:
    print(data.decode(), flush=True)
"""


def test_what_a_cancelled_task_was_woken_for_goes_to_another_process(
    ring, run, child, until, participant
):
    async def main():
        with ring.producer() as out, ring.consumer("a") as inp:
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

    run(main())


def test_wait_for_of_asyncio_loses_nothing(ring, run, child):
    async def main():
        found = []
        with ring.consumer("a") as inp:
            process = child(PUSHES, ring.name, 1000)
            while True:
                try:
                    found.append(await asyncio.wait_for(inp.get(), random.random() * 1e-3))
                except TimeoutError:
                    continue
                except shmring.EndOfStream:
                    break
            process.end()
        assert [int(data) for data in found] == list(range(1000))

    run(main())


# --- many, and other processes --------------------------------------------------------------------


ECHO = """
import asyncio, sys
import shmring

async def main():
    inp = shmring.attach(sys.argv[1]).consumer("a")
    out = shmring.attach(sys.argv[2]).producer()
    async for data in inp:
        await out.put(data)
    await out.put_end()

if sys.argv[3] == "uvloop":
    import uvloop
    uvloop.run(main())
else:
    asyncio.run(main())
"""


@pytest.mark.parametrize("loop", LOOPS)
def test_echo_over_two_rings(name, run, child, loop):
    async def main():
        with (
            shmring.create(f"{name}-there", slots=1024, temporary=True) as there,
            shmring.create(f"{name}-back", slots=1024, temporary=True) as back,
            there.producer() as out,
            back.consumer("a") as inp,
        ):
            there.subscribe("a")
            process = child(ECHO, there.name, back.name, loop)
            for i in range(300):
                await out.put(b"%d" % i)
                assert await inp.get() == b"%d" % i
                if i % 10 == 0:
                    await asyncio.sleep(0.001)
            sender = asyncio.create_task(send(out))
            assert [data async for data in inp] == [b"%d" % i for i in range(5000)]
            await sender
            process.end()

    async def send(out):
        for i in range(5000):
            await out.put(b"%d" % i)
        await out.put_end()

    run(main())


def test_five_hundred_consumers_on_one_loop(name, run):
    async def main():
        rings = [shmring.create(f"{name}-{i}", slots=1024, temporary=True) for i in range(10)]
        inputs = [ring.consumer(f"b{i}") for ring in rings for i in range(50)]
        outputs = [ring.producer() for ring in rings]

        async def count(inp):
            return [data async for data in inp]

        readers = [asyncio.create_task(count(inp)) for inp in inputs]
        for i in range(20):
            for out in outputs:
                await out.put(b"%d" % i)
            while _waiting() < len(inputs):
                await asyncio.sleep(0.001)
        for out in outputs:
            await out.put_end()
        expected = [b"%d" % i for i in range(20)]
        assert all(found == expected for found in await asyncio.gather(*readers))
        for ring in rings:
            ring.close()

    run(main())


HOLDS = """
import sys
import shmring

inp = shmring.attach(sys.argv[1]).consumer("a")
lease = inp.lease()
print("holds", flush=True)
sys.stdin.read()
"""


def test_what_a_killed_peer_held_comes_to_the_task_that_waits(ring, run, child):
    async def main():
        with ring.producer() as out, ring.consumer("a") as inp:
            out.push(b"x")
            process = child(HOLDS, ring.name)
            process.line()
            reader = asyncio.create_task(inp.get())
            await waits(reader)
            process.kill()
            assert await reader == b"x"

    run(main())


WAITS = """
import asyncio, sys
import shmring

async def main():
    inp = shmring.attach(sys.argv[1]).consumer("a", name="waits")
    await inp.get()

asyncio.run(main())
"""


def test_what_a_killed_loop_was_woken_for_comes_to_another_one(ring, run, child, until):
    async def main():
        with ring.producer() as out, ring.consumer("a") as inp:
            for i in range(5):
                other = child(WAITS, ring.name)
                until(lambda: _sleeps(ring))
                reader = asyncio.create_task(inp.get())
                await waits(reader)
                other.process.send_signal(signal.SIGSTOP)
                out.push(b"%d" % i)
                other.kill()
                assert await reader == b"%d" % i

    run(main())


def _sleeps(ring):
    named = [who for who in ring.participants() if who["name"] == "waits" and who["alive"]]
    return bool(named) and named[0]["empty_waits"] > 2


def test_room_that_a_killed_peer_held_comes_to_the_task_that_waits(ring, run, child):
    async def main():
        with ring.producer() as out:
            ring.subscribe("a")
            out.push(b"x")
            process = child(HOLDS.replace('"a"', '"a", name="dies"'), ring.name)
            process.line()
            while True:
                try:
                    out.push(b"y", timeout=0)
                except shmring.Full:
                    break
            writer = asyncio.create_task(out.put(b"z"))
            await waits(writer)
            process.kill()
            with ring.consumer("a") as inp:
                assert await inp.get() == b"x"
                await writer

    run(main())


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


def test_one_loop_after_the_other(ring):
    inp = ring.consumer("a")

    async def take():
        reader = asyncio.create_task(inp.get())
        await waits(reader)
        with ring.producer() as out:
            out.push(b"x")
        return await reader

    for _ in range(5):
        for factory in LOOPS.values():
            with asyncio.Runner(loop_factory=factory) as runner:
                assert runner.run(take()) == b"x"


def test_a_child_has_loops_of_its_own(ring, run):
    async def main():
        with ring.consumer("a") as inp:
            reader = asyncio.create_task(inp.get())
            await waits(reader)
            child = os.fork()
            if child == 0:
                os._exit(_in_child(ring, inp))
            assert await reader == b"from the child"
            assert os.waitpid(child, 0)[1] == 0

    run(main())


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
