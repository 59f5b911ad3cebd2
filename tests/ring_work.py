"""Functions that other processes run with a ring sent to them; see test_ring_sent.py."""

from __future__ import annotations

import os

import shmring


def push_own_pid(ring: shmring.Ring, count: int) -> int:
    with ring.producer() as out:
        for _ in range(count):
            out.push(b"%d" % os.getpid())
    return os.getpid()


def read_one(ring: shmring.Ring, branch: str) -> bytes:
    with ring.consumer(branch) as inp:
        return inp.pop(timeout=60)


def describe(ring: shmring.Ring) -> tuple[str | None, str, bool, str]:
    return ring.name, ring.path, ring.read_only, ring.info.uuid
