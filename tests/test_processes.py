"""Rings between Python processes; their deaths are in native/core/tests."""

from __future__ import annotations

import pytest

import shmring


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
