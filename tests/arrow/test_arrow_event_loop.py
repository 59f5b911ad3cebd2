"""Record batches in an event loop."""

from __future__ import annotations

import asyncio

import event_loops
import pyarrow as pa
import pytest

import shmring

run = event_loops.run
SCHEMA = pa.schema({"n": pa.int64()})


def batch(number):
    return pa.record_batch({"n": pa.array([number] * 100)})


async def test_aiter_gives_the_batches_up_to_the_end(ring, run):
    with ring.arrow_writer(SCHEMA) as out, ring.arrow_reader("a") as reader:

        async def read():
            return [batch["n"][0].as_py() async for batch in reader.aiter()]

        task = asyncio.create_task(read())
        await asyncio.sleep(0.01)
        for i in range(50):
            out.write(batch(i))
        out.end()
        others = event_loops.Others()
        assert await task == list(range(50))
        assert others.turns > 1
        others.task.cancel()


async def test_aiter_ends_and_fails_as_iteration_does(ring, run):
    with ring.arrow_writer(SCHEMA) as out:
        out.write(batch(1))
        with ring.arrow_reader("a", until="empty") as reader:
            assert len([b async for b in reader.aiter()]) == 1
            assert [b async for b in reader.aiter()] == []
        for timeout in (0, 0.02):
            with (
                ring.arrow_reader("b", timeout=timeout) as reader,
                pytest.raises(shmring.Empty),
            ):
                _ = [b async for b in reader.aiter()]


async def test_an_end_ends_every_task_that_reads(ring, run):
    """Also one that is busy with a batch when another one is told of the end."""
    with ring.arrow_writer(SCHEMA) as out, ring.arrow_reader("a") as reader:
        over = asyncio.Event()

        async def busy():
            async for _ in reader.aiter():
                await over.wait()

        async def quick():
            async for _ in reader.aiter():
                pass
            over.set()

        out.write(batch(1))
        first = asyncio.create_task(busy())
        await asyncio.sleep(0)
        others = [asyncio.create_task(quick()), asyncio.create_task(quick())]
        await asyncio.sleep(0)
        out.end()
        await asyncio.gather(first, *others)


async def test_a_cancelled_task_has_taken_no_batch(ring, run):
    with ring.arrow_writer(SCHEMA) as out, ring.arrow_reader("a") as reader:
        for i in range(100):
            task = asyncio.create_task(anext(reader.aiter()))
            for _ in range(i % 5):
                await asyncio.sleep(0)
            out.write(batch(i))
            task.cancel()
            await asyncio.wait([task])
            if task.cancelled():
                assert reader.read(timeout=0)["n"][0].as_py() == i
            else:
                assert task.result()["n"][0].as_py() == i


async def test_a_reader_that_keeps_what_fills_the_ring_is_told(ring, run, thread, until):
    ring.subscribe("a")
    with ring.arrow_writer(SCHEMA) as out:

        def fill():
            while True:
                out.write(batch(0))

        kept = []

        async def keep():
            with ring.arrow_reader("a") as reader:
                async for found in reader.aiter():
                    kept.append(found)

        writer = thread(fill)
        with pytest.raises(shmring.TooManyLeases, match="copy=True"):
            await keep()
        kept.clear()
        ring.drop_branch("a")
        out.close()
        with pytest.raises(shmring.ShmringError):
            writer.outcome()
