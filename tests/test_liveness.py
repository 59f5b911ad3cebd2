"""Who is taken for dead: nobody who lives, whatever becomes of its descriptors."""

from __future__ import annotations

import pytest
from closed_streams import LOG

import shmring


@pytest.mark.parametrize("times", [2000, pytest.param(20_000, marks=pytest.mark.long)])
def test_participant_that_leaves_is_never_seen_dead(ring, child, times):
    """Its seat's byte is unlocked while others read the seat."""
    code = """
        import sys, shmring
        with shmring.attach(sys.argv[1]) as ring:
            print("attached", flush=True)
            for _ in range(int(sys.argv[2])):
                with ring.producer("a"), ring.producer("b"):
                    pass
    """
    leaving = [child(code, ring.name, times) for _ in range(2)]
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
