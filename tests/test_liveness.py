"""Who is taken for dead: nobody who lives, whatever becomes of its descriptors."""

from __future__ import annotations

import contextlib
import os

import pytest
from closed_streams import LOG

import shmring


def push_until_full(out: shmring.Producer, message: bytes) -> int:
    pushed = 0
    with contextlib.suppress(shmring.Full):
        while True:
            out.push(message, timeout=0)
            pushed += 1
    return pushed


HOLDER = """
    import os, sys, shmring
    with shmring.attach(sys.argv[1]) as ring, ring.consumer("a") as inp, ring.producer() as out:
        with inp.lease() as message, out.claim(9) as slot:
            os.closerange(3, 256)
            others = [open("/proc/self/exe", "rb") for _ in range(int(sys.argv[2]))]
            print("closed")
            sys.stdin.readline()
            slot.buffer[:] = bytes(message.data)
    for other in others:
        assert other.read(4) == b"\\x7fELF", other
    print("left")
"""


@pytest.mark.parametrize("numbers_used_again", [0, 16])
def test_process_that_closes_all_descriptors_keeps_its_lease_and_its_claim(
    ring, child, numbers_used_again
):
    with ring.producer() as out, ring.consumer("a") as inp:
        out.push(b"its lease")
        holder = child(HOLDER, ring.name, numbers_used_again)
        assert holder.line() == "closed"
        # As far as the ring goes round: who waits looks for the dead on the way.
        pushed = push_until_full(out, b"after it")
        with pytest.raises(shmring.Full):
            out.push(b"too many", timeout=0.2)
        with pytest.raises(shmring.Empty):
            inp.pop(timeout=0.2)
        assert ring.recover() == 0
        holder.say()
        assert holder.line() == "left"
        assert inp.pop(timeout=120) == b"its lease"
        assert [inp.pop(timeout=120) for _ in range(pushed)] == [b"after it"] * pushed
        assert {participant["pid"] for participant in ring.participants()} == {os.getpid()}


def test_process_that_closes_all_descriptors_and_dies_is_found_dead(ring, child, until):
    with ring.producer() as out, ring.consumer("a") as inp:
        out.push(b"its lease")
        holder = child(HOLDER, ring.name, 16)
        assert holder.line() == "closed"
        out.push(b"after it")
        holder.kill()
        assert [inp.pop(timeout=120), inp.pop(timeout=120)] == [b"its lease", b"after it"]
        until(lambda: {participant["pid"] for participant in ring.participants()} == {os.getpid()})


def test_process_that_closes_all_descriptors_evicts_nobody(ring, child):
    code = """
        import os, sys, shmring
        with shmring.attach(sys.argv[1]) as ring:
            os.closerange(3, 256)
            others = [open("/proc/self/exe", "rb") for _ in range(16)]
            print(ring.recover(), sum(participant["alive"] for participant in ring.participants()))
            with ring.producer() as out:
                out.push(b"joined since")
        print(sum(not other.closed and len(other.read(4)) == 4 for other in others))
    """
    with ring.producer(), ring.consumer("a") as inp:
        other = child(code, ring.name)
        assert other.line() == "0 3"
        assert other.line() == "16"
        assert inp.pop(timeout=120) == b"joined since"


def test_participant_that_leaves_is_never_seen_dead(ring, child):
    """Its seat's byte is unlocked while others read the seat."""
    code = """
        import sys, shmring
        with shmring.attach(sys.argv[1]) as ring:
            print("attached", flush=True)
            for _ in range(10_000):
                with ring.producer("a"), ring.producer("b"):
                    pass
    """
    leaving = [child(code, ring.name) for _ in range(2)]
    for each in leaving:
        assert each.line() == "attached"
    while any(each.process.poll() is None for each in leaving):
        assert all(participant["alive"] for participant in ring.participants())
    for each in leaving:
        each.end()


LOGGING = f"""{LOG}
    import shmring
    os.closerange(0, 3)
    with shmring.attach(sys.argv[1]) as ring, ring.producer() as out, ring.consumer("a") as inp:
        out.push(b"hello")
        inp.pop()
        with shmring.create(sys.argv[1] + ".made", slots=1024, temporary=True):
            log()
    os._exit(0)
"""


def test_what_is_written_to_closed_standard_streams_is_not_written_into_a_ring(ring, child):
    child(LOGGING, ring.name).end()
    shmring.attach(ring.name).close()
