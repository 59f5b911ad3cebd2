"""A user's program with types; test_types.py lets checkers read it, and runs it."""

from __future__ import annotations

import asyncio
import os
from typing import assert_type

import pyarrow as pa

import shmring


@shmring.sidecar("doubler", workers=2)
def doubled(batch: pa.RecordBatch, times: int = 2) -> pa.RecordBatch:
    return batch if times else batch.slice(0, 0)


@shmring.sidecar()
class Scorer:
    def __init__(self) -> None:
        self.weight = 3

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch


def tell(stats: shmring.RingStats) -> str:
    (branch,) = stats["branches"]
    return f"branch {branch['name']}, {branch['lag']} slots behind"


def living(participants: list[shmring.ParticipantRecord]) -> list[int]:
    return [participant["pid"] for participant in participants if participant["alive"]]


def patient(ring: shmring.Ring, wait: shmring.Wait, start: shmring.Start) -> shmring.Consumer:
    return ring.consumer("patient", wait=wait, start=start, ephemeral=True)


async def await_some(name: str) -> None:
    ring = shmring.create(name, slots=1024, temporary=True)
    with ring, patient(ring, "default", "latest") as inp, ring.producer() as out:
        assert_type(await out.put(b"x"), int)
        assert_type(await inp.ready(timeout=0), bool)
        assert_type(await inp.get(timeout=1.0), bytes)
        await out.put_end()
        async for data in inp:
            assert_type(data, bytes)


def main() -> None:
    name = f"test-{os.getpid()}-typed"
    with shmring.open_or_create(name, slots=1024, temporary=True, clock="off") as ring:
        with patient(ring, "futex", "latest") as inp:
            assert_type(inp.closed, bool)
            assert_type(shmring.wait([inp], 0), list[shmring.Consumer])
        asyncio.run(await_some(f"{name}-loop"))
        batch = pa.RecordBatch.from_pydict({"value": [1, 2, 3]})
        reader = ring.arrow_reader("reader", until="end", copy=True, wait="futex", after=())
        with ring.arrow_writer(batch.schema, compression="lz4", wait="sleep") as out, reader:
            assert_type(out.write(batch), int)
            out.end()
            rows = sum(each.num_rows for each in reader)
        holder = ring.holder()
        if holder is not None:
            assert_type(holder["words"], str)
        assert living(ring.participants()) == [os.getpid()]
        print(f"{rows} rows, {tell(ring.stats())}")

    assert doubled(batch, times=1) is batch
    assert_type(doubled(batch), pa.RecordBatch)
    assert_type(Scorer().weight, int)


def serve() -> tuple[shmring.Sidecar, shmring.Sidecar]:
    """Start sidecars, as only the importing module may: a sidecar's workers import its module."""
    return shmring.Sidecar(doubled), shmring.Sidecar(Scorer)


if __name__ == "__main__":
    main()
