"""The ring from Python between several processes: single messages or batches of them."""

from __future__ import annotations

import time
from itertools import repeat
from typing import Any

from benchmarks.oneway import peer
from benchmarks.payload import BATCH, MESSAGE, read_every_byte, rows
from benchmarks.processes import SPAWN, Gate, Role, run_together


def _send(gate: Gate, name: str, batched: bool, seconds: float, working: Any) -> tuple[float, int]:
    """Push for some seconds; the last to stop pushes the end marker."""
    import shmring

    array = rows()
    sent = 0
    with shmring.attach(name) as ring, ring.producer() as out:
        gate.wait()
        started = time.monotonic()
        while time.monotonic() - started < seconds:
            if batched:
                out.push_many(array)
            else:
                for _ in repeat(None, BATCH):
                    out.push(MESSAGE)
            sent += BATCH
        with working.get_lock():
            working.value -= 1
            last = working.value == 0
        if last:
            out.push_end()
    return started, sent


def _receive(
    gate: Gate, name: str, branch: str, batched: bool, exclusive: bool
) -> tuple[float, int]:
    """Take a branch's messages until an end marker."""
    import shmring

    got = 0
    data = MESSAGE
    with (
        shmring.attach(name) as ring,
        ring.consumer(branch, start="earliest", exclusive=exclusive) as inp,
    ):
        gate.wait()
        try:
            while batched:
                with inp.lease_many(BATCH) as batch:
                    array = batch.array
                    read_every_byte(array)
                    got += len(array)
                    del array
        except shmring.EndOfStream:
            return time.monotonic(), got
        for got, data in enumerate(inp, 1):  # noqa: B007  # the last one is compared
            pass
        ended = time.monotonic()
    assert data == MESSAGE
    return ended, got


def several(
    producers: int, consumers: int, seconds: float, *, batched: bool = False, each: bool = False
) -> float:
    """Messages a second; two processes stay on two cores.

    Parameters
    ----------
    each : every consumer has a branch of its own and sees all; otherwise they share one
    """
    with peer("ring").link(single=each and producers == 1) as link:
        working = SPAWN.Value("i", producers)
        send = _send, (link.there, batched, seconds, working)
        receive = [
            (_receive, (link.there, f"bench {i if each else 0}", batched, each))
            for i in range(consumers)
        ]
        roles = [
            Role(target, args, core if producers + consumers == 2 else None)
            for core, (target, args) in enumerate([send] * producers + receive)
        ]
        results = run_together(roles)
    sent = sum(n for _, n in results[:producers])
    arrived = [n for _, n in results[producers:]]
    if (set(arrived) if each else {sum(arrived)}) != {sent}:
        raise RuntimeError(f"{sent} messages were sent and {arrived} received")
    took = max(end for end, _ in results[producers:]) - min(
        start for start, _ in results[:producers]
    )
    return sent / took
