"""Fork: the parent's handles are the parent's, the ring attaches again in the child."""

from __future__ import annotations

import os
import threading

import pytest

import shmring


def test_every_call_on_the_parents_handles_says_so(ring, in_child):
    out, inp = ring.producer(), ring.consumer("a")
    out.push_many([b"1", b"2", b"3"])
    lease = inp.lease()
    shared, alone = ring.sequence(), ring.sequence("s")

    def child():
        for call in (
            lambda: out.push(b"x"),
            lambda: out.push(b"x" * 100_000),
            lambda: out.push_many([b"x"]),
            lambda: out.claim(10),
            out.push_end,
            inp.pop,
            inp.lease,
            lambda: inp.lease_many(2),
            lambda: next(inp),
            lambda: inp.pop(timeout=1),
            lease.release,
            shared.next,
            alone.next,
        ):
            with pytest.raises(shmring.ForkedHandle, match="parent process; attach again"):
                call()
        out.close()
        inp.close()

    in_child(child)
    assert inp.hold == 0
    lease.release()
    out.push(b"4")
    assert [inp.pop(timeout=0) for _ in range(3)] == [b"2", b"3", b"4"]


def test_claim_is_the_parents(out, inp, in_child):
    slot = out.claim(3)

    def child():
        with pytest.raises(shmring.ForkedHandle):
            slot.commit()
        with pytest.raises(shmring.ForkedHandle), slot:
            pass
        slot.__exit__(ValueError, None, None)

    in_child(child)
    slot.buffer[:] = b"abc"
    slot.commit()
    assert inp.pop(timeout=0) == b"abc"


def test_ring_attaches_again_in_the_child(ring, in_child):
    inp = ring.consumer("a")

    def child():
        participants = len(ring.participants())
        with ring.producer("child") as out:
            out.push(b"from the child")
            assert {participant["pid"] for participant in ring.participants()} == {
                os.getpid(),
                os.getppid(),
            }
        assert len(ring.participants()) == participants
        with ring.consumer("b", start="earliest") as mine:
            assert mine.pop(timeout=120) == b"from the child"
        ring.close()
        with pytest.raises(shmring.Closed):
            ring.producer()

    in_child(child)
    assert inp.pop(timeout=0) == b"from the child"
    assert ring.recover() == 0
    assert ring.name in shmring.rings(), "a child does not unlink its parent's temporary ring"


def test_ring_at_a_path_attaches_again_too(tmp_path, in_child):
    with shmring.create(path=tmp_path / "r", slots=1024) as ring, ring.consumer("a") as inp:
        in_child(lambda: ring.producer().push(b"x"))
        assert inp.pop(timeout=0) == b"x"


def test_ring_that_was_replaced_meanwhile_is_not_taken_for_the_old_one(name, in_child):
    ring = shmring.create(name, slots=1024)
    shmring.unlink(name)
    with shmring.create(name, slots=1024, temporary=True):

        def child():
            with pytest.raises(shmring.RingNotFound, match="replaced"):
                ring.producer()

        in_child(child)
    ring.close()


def test_ring_that_was_unlinked_meanwhile_is_not_found_in_the_child(name, in_child):
    ring = shmring.create(name, slots=1024)
    shmring.unlink(name)

    def child():
        with pytest.raises(shmring.RingNotFound, match=name):
            ring.producer()

    in_child(child)
    with ring.producer() as out:
        out.push(b"the parent goes on")
    ring.close()


def test_views_of_the_parent_can_be_read_in_the_child(ring, in_child):
    out, inp = ring.producer(), ring.consumer("a")
    out.push(b"shared memory")
    lease = inp.lease()
    view = lease.data

    def child():
        assert bytes(view) == b"shared memory"
        out.close()
        inp.close()
        ring.close()
        assert bytes(view) == b"shared memory"

    in_child(child)
    assert inp.hold == 0
    lease.release()


def test_child_that_ends_normally_disturbs_nobody(name, child):
    """The child runs the interpreter's whole exit: atexit, destructors, finalizers."""
    code = """
        import os, sys, shmring
        ring = shmring.create(sys.argv[1], slots=1024, temporary=True)
        out, inp = ring.producer(), ring.consumer("a")
        out.push_many([b"1", b"2", b"3"])
        lease = inp.lease()
        view = lease.data
        slot = out.claim(5)
        if os.fork() == 0:
            sys.exit(0)
        _, status = os.wait()
        assert status == 0, status
        assert sys.argv[1] in shmring.rings()
        slot.buffer[:] = b"claim"
        slot.commit()
        assert bytes(view) == b"1"
        assert [inp.pop(timeout=0) for _ in range(3)] == [b"2", b"3", b"claim"]
        assert inp.hold == 0
    """
    child(code, name).end()
    assert name not in shmring.rings()


@pytest.mark.ring(slots=1 << 18)
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_thread_that_copied_when_its_process_forked_is_not_waited_for_in_the_child(out, in_child):
    message = bytes(64 << 20)
    copying = threading.Thread(target=out.push, args=(message,))
    copying.start()
    while copying.is_alive():
        try:
            out.available()
        except shmring.ClaimOpen:
            break
        except ValueError:  # the copy has not begun
            pass

    def child():
        for call in (
            lambda: out.push(b"x"),
            lambda: out.push_many([b"x"]),
            lambda: out.claim(10),
            out.next,
        ):
            with pytest.raises(shmring.ForkedHandle):
                call()
        out.close()

    in_child(child)
    copying.join()
    assert out.push(b"x") > 0
