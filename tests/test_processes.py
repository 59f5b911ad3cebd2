"""Rings between real processes: traffic, order, deaths, ends."""

from __future__ import annotations

import os
import signal

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


@pytest.mark.parametrize("read", ["pop", "lease", "batch"])
@pytest.mark.parametrize("write", ["push", "many", "claim"])
def test_one_writer_and_one_reader(name, child, write, read):
    count = 5000
    with shmring.create(name, slots=1024, temporary=True) as ring:
        ring.subscribe("a")
        reader = child(READER, name, "a", read)
        writer = child(WRITER, name, 0, count, write)
        assert (reader.line(), writer.line()) == ("ready", "ready")
        writer.say()
        writer.end()
        with ring.producer() as out:
            out.push_end()
        check([reader.end()], 1, count)


def test_several_writers_readers_and_branches(name, child):
    count = 2000
    with shmring.create(name, slots=1024, temporary=True) as ring:
        branches = {"a": 2, "b": 1}
        for branch in branches:
            ring.subscribe(branch)
        readers = {
            branch: [child(READER, name, branch, how) for how in ("pop", "batch")[:consumers]]
            for branch, consumers in branches.items()
        }
        writers = [child(WRITER, name, n, count, how) for n, how in enumerate(["push", "many"])]
        for process in (*writers, *(r for rs in readers.values() for r in rs)):
            assert process.line() == "ready"
        for writer in writers:
            writer.say()
        for writer in writers:
            writer.end()
        with ring.producer() as out:
            out.push_end()
        for group in readers.values():
            check([reader.end() for reader in group], 2, count)


def test_every_message_of_killed_consumers_comes_again_exactly_once(name, child):
    code = """
        import sys, shmring
        with shmring.attach(sys.argv[1]) as ring, ring.consumer("work") as inp:
            done = inp.pop(timeout=120)
            held = [inp.lease(timeout=120) for _ in range(3)]
            held[1].release()
            print(done.decode(), held[1].message_id)
            sys.stdin.readline()
    """
    with shmring.create(name, slots=1024, temporary=True) as ring:
        ring.subscribe("work")
        with ring.producer() as out:
            out.push_many([b"%d" % i for i in range(20)])
        finished = set()
        for _ in range(3):
            victim = child(code, name)
            finished |= {int(text) for text in victim.line().split()}
            victim.kill()
        rest = {}
        with ring.consumer("work") as inp:
            while len(finished) + len(rest) < 20:
                with inp.lease(timeout=120) as m:
                    assert m.message_id not in rest
                    rest[m.message_id] = m.redelivered
            with pytest.raises(shmring.Empty):
                inp.pop(timeout=0)
        assert finished.isdisjoint(rest)
        assert any(rest.values())
        assert not all(rest.values())


def test_killed_writer_leaves_a_hole_that_readers_step_over(name, child):
    code = """
        import sys, shmring
        with shmring.attach(sys.argv[1]) as ring, ring.producer() as out:
            out.push(b"committed")
            slot = out.claim(5000)
            slot.buffer[:100] = b"x" * 100
            print("claimed")
            sys.stdin.readline()
    """
    with shmring.create(name, slots=1024, temporary=True) as ring, ring.consumer("a") as inp:
        victim = child(code, name)
        assert victim.line() == "claimed"
        with ring.producer() as out:
            out.push(b"behind the hole")
            assert inp.pop(timeout=120) == b"committed"
            with pytest.raises(shmring.Empty):
                inp.pop(timeout=0.15)
            victim.kill()
            assert inp.pop(timeout=120) == b"behind the hole"


def test_killed_reader_of_an_ephemeral_branch_frees_the_writer(name, child):
    code = """
        import sys, shmring
        with shmring.attach(sys.argv[1]) as ring, ring.consumer("tool", ephemeral=True) as inp:
            print("ready")
            sys.stdin.readline()
    """
    with shmring.create(name, slots=1024, temporary=True) as ring, ring.producer() as out:
        victim = child(code, name)
        victim.line()
        out.push_many([b"x"] * ring.slots)
        with pytest.raises(shmring.Full):
            out.push(b"x", timeout=0)
        victim.kill()
        assert out.push(b"x", timeout=120) == ring.slots


def test_stopped_process_is_slow_and_not_dead(name, child):
    code = """
        import sys, shmring
        with shmring.attach(sys.argv[1]) as ring, ring.consumer("a") as inp:
            with inp.lease(timeout=120) as m:
                print("holds")
                sys.stdin.readline()
                print(bytes(m.data).decode())
    """
    with shmring.create(name, slots=1024, temporary=True) as ring:
        ring.subscribe("a")
        with ring.producer() as out:
            out.push(b"mine")
        slow = child(code, name)
        slow.line()
        os.kill(slow.pid, signal.SIGSTOP)
        assert ring.recover() == 0
        with ring.consumer("a") as inp, pytest.raises(shmring.Empty):
            inp.pop(timeout=0.25)
        os.kill(slow.pid, signal.SIGCONT)
        slow.say()
        assert slow.end() == "mine\n"


def test_wait_for_what_the_dead_held_ends_in_time_where_a_recoverer_is_stopped(name, child):
    reader = """
        import sys, time, shmring
        ring = shmring.attach(sys.argv[1])
        lease = ring.consumer("a").lease(timeout=120)
        print("holds")
        time.sleep(60)
    """
    recoverer = """
        import fcntl, os, struct, sys
        file = os.open(sys.argv[1], os.O_RDWR)
        admin = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 8, 1, 0)
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, admin)
        print("stopped")
        sys.stdin.readline()
    """
    with shmring.create(name, slots=1024, temporary=True) as ring, ring.producer() as out:
        ring.subscribe("a", exclusive=True)
        out.push(b"held by the dead")
        dead = child(reader, name)
        dead.line()
        dead.kill()
        assert ring.recover() > 0
        with ring.consumer("a") as inp:
            stopped = child(recoverer, ring.path)
            stopped.line()
            with pytest.raises(shmring.Empty):
                inp.pop(timeout=0.1)
            out.push_end()  # which waits for what the dead held
            assert inp.next() == shmring.UNAVAILABLE  # an exclusive consumer races nobody
            stopped.say()
            stopped.end()
            with inp.lease(timeout=120) as m:
                assert m.redelivered
                assert bytes(m.data) == b"held by the dead"


def test_second_single_producer_of_another_process_is_refused_until_the_first_dies(name, child):
    code = """
        import sys, shmring
        ring = shmring.attach(sys.argv[1])
        out = ring.producer()
        print("ready")
        sys.stdin.readline()
    """
    with shmring.create(name, slots=1024, single_producer=True, temporary=True) as ring:
        first = child(code, name)
        first.line()
        with pytest.raises(shmring.SecondProducer, match=str(first.pid)):
            ring.producer()
        first.kill()
        with ring.producer() as out:
            out.push(b"x")


def test_exclusive_branch_is_free_again_when_its_consumer_dies(name, child):
    code = """
        import sys, shmring
        ring = shmring.attach(sys.argv[1])
        inp = ring.consumer("a", exclusive=True)
        print("ready")
        sys.stdin.readline()
    """
    with shmring.create(name, slots=1024, temporary=True) as ring:
        first = child(code, name)
        first.line()
        with pytest.raises(shmring.SecondConsumer):
            ring.consumer("a")
        first.kill()
        ring.consumer("a").close()


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
