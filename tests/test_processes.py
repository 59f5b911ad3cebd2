"""Rings between Python processes; their deaths are in native/core/tests."""

from __future__ import annotations

import pytest

import shmring

WRITER = """
    import sys, shmring
    name, number, count, how = sys.argv[1], *map(int, sys.argv[2:4]), sys.argv[4]
    with shmring.attach(name) as ring, ring.producer(f"writer {number}") as out:
        print("ready")
        sys.stdin.readline()
        rows = [b"%d %d" % (number, i) for i in range(count)]
        if how == "push":
            for row in rows:
                out.push(row)
        elif how == "many":
            for i in range(0, count, 100):
                out.push_many(rows[i:i + 100])
        else:
            for row in rows:
                with out.claim(len(row)) as slot:
                    slot.buffer[:] = row
"""

READER = """
    import sys, shmring
    name, branch, how = sys.argv[1:]
    got = []
    with shmring.attach(name) as ring, ring.consumer(branch) as inp:
        print("ready")
        try:
            while True:
                if how == "pop":
                    got.append(inp.pop())
                elif how == "lease":
                    with inp.lease() as m:
                        got.append(bytes(m.data))
                else:
                    with inp.lease_many(64) as b:
                        got += [bytes(m) for m in b]
        except shmring.EndOfStream:
            pass
    for message in got:
        print(message.decode())
"""


def check(outputs, writers, count):
    """Every message once; those of a writer in order within a reader."""
    got = [line for output in outputs for line in output.split("\n") if line]
    assert sorted(got) == sorted(f"{n} {i}" for n in range(writers) for i in range(count))
    for output in outputs:
        last = [-1] * writers
        for line in filter(None, output.split("\n")):
            number, i = map(int, line.split())
            assert i > last[number]
            last[number] = i


def test_several_writers_readers_and_branches(name, child):
    count = 2000
    with shmring.create(name, slots=1024, temporary=True) as ring:
        branches = {"a": 3, "b": 1}
        for branch in branches:
            ring.subscribe(branch)
        readers = {
            branch: [
                child(READER, name, branch, how) for how in ("pop", "lease", "batch")[:consumers]
            ]
            for branch, consumers in branches.items()
        }
        writers = [
            child(WRITER, name, n, count, how) for n, how in enumerate(["push", "many", "claim"])
        ]
        for process in (*writers, *(r for rs in readers.values() for r in rs)):
            assert process.line() == "ready"
        for writer in writers:
            writer.say()
        for writer in writers:
            writer.end()
        with ring.producer() as out:
            out.push_end()
        for group in readers.values():
            check([reader.end() for reader in group], 3, count)


@pytest.mark.parametrize("how", ["exit", "os._exit", "daemon thread", "views", "cycle"])
def test_process_that_ends_in_the_middle_of_things_crashes_not(name, child, how):
    code = """
        import os, sys, threading
        import numpy as np
        import shmring
        name, how = sys.argv[1:]
        ring = shmring.attach(name)
        out, inp = ring.producer(), ring.consumer("a")
        leases = [inp.lease(timeout=120) for _ in range(3)]
        batch = inp.lease_many(10)
        slot = out.claim(100)
        view = slot.buffer
        arrays = [np.frombuffer(leases[0], np.uint8), batch.array, np.frombuffer(view, np.uint8)]
        if how == "daemon thread":
            idle = ring.consumer("idle")
            started = threading.Event()
            def wait():
                started.set()
                idle.pop()
            threading.Thread(target=wait, daemon=True).start()
            started.wait()
        elif how == "views":
            sys.keep = arrays, leases, slot
        elif how == "cycle":
            cycle = [leases, batch, slot, view, arrays, ring, out, inp]
            cycle.append(cycle)
            del leases, batch, slot, view, arrays, ring, out, inp
        print("done", flush=True)
        if how == "os._exit":
            os._exit(0)
    """
    with shmring.create(name, slots=1024, temporary=True) as ring:
        ring.subscribe("a")
        with ring.producer() as out, ring.consumer("b") as other:
            out.push_many([b"%d" % i for i in range(10)])
            assert child(code, name, how).end() == "done\n"
            out.push(b"last")
            got = [other.pop(timeout=120) for _ in range(11)]
            assert got == [*(b"%d" % i for i in range(10)), b"last"]
