"""Messages that a consumer hands back are delivered again."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import textwrap
import threading
import uuid
import warnings

import pytest

import shmring


class Boom(BaseException):
    pass


def pop_all(consumer):
    found = []
    while True:
        try:
            with consumer.lease(timeout=0) as m:
                found.append((bytes(m.data), m.redelivered))
        except shmring.Empty:
            return found


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit, Boom])
@pytest.mark.parametrize("look", [False, True], ids=["unread", "read"])
def test_leaving_a_lease_with_an_exception_hands_the_message_back(ring, out, error, look):
    with ring.consumer("a") as inp, ring.consumer("a") as other:
        out.push(b"one")
        out.push(b"two")

        def fail():
            with inp.lease() as m:
                assert not look or m.data == b"one"
                raise error

        with pytest.raises(error) as caught:
            fail()
        del caught
        assert pop_all(other) == [(b"one", True), (b"two", False)]
        assert pop_all(inp) == []


def test_leaving_a_lease_by_return_or_break_releases_the_message(inp, out):
    for message in (b"one", b"two"):
        out.push(message)

    def first():
        with inp.lease() as m:
            return bytes(m.data)

    assert first() == b"one"
    for _ in range(1):
        with inp.lease():
            break
    assert pop_all(inp) == []


def test_nack_in_words(inp, out):
    out.push(b"one")
    with inp.lease() as m:
        m.nack()
        with pytest.raises(shmring.Closed):
            m.nack()
        with pytest.raises(shmring.Closed):
            _ = m.data
    with inp.lease() as m:
        assert m.redelivered
        view = m.data
        m.nack()
        with pytest.raises(shmring.Empty):
            inp.pop(timeout=0)  # a view keeps it
        assert view == b"one"
        del view
    assert pop_all(inp) == [(b"one", True)]


def test_a_batch_left_with_an_exception_goes_back_as_a_whole(ring, out):
    with ring.consumer("a", exclusive=True) as inp:
        out.push_many([b"1", b"2", b"3"])

        def fail():
            with inp.lease_many(10):
                raise Boom

        with pytest.raises(Boom):
            fail()
        with inp.lease_many(10) as batch:
            assert (len(batch), batch.redelivered) == (3, True)
            batch.nack()
        with inp.lease_many(10) as batch:
            assert len(batch) == 3


def test_a_lease_that_is_collected_or_left_open_goes_back(ring, out):
    with ring.consumer("a") as other:
        for i in range(4):
            out.push(b"%d" % i)
        with ring.consumer("a") as inp:
            lease = inp.lease()
            with pytest.warns(ResourceWarning, match="message 0 was dropped"):
                del lease
            assert pop_all(other)[0] == (b"0", True)
            out.push(b"4")
            kept = inp.lease()
        with pytest.warns(ResourceWarning, match="message 4 was dropped"):
            del kept, inp
        assert pop_all(other) == [(b"4", True)]


DROPS = {
    "lease": (lambda inp: inp.lease(), 'of message 0 was .* branch "a" delivers it again'),
    "batch": (lambda inp: inp.lease_many(3), "3 messages from 0 on was .* delivers it again"),
    "view": (lambda inp: inp.lease().data, "message 0 was dropped"),
    "array": (lambda inp: inp.lease_many(3).array, "3 messages from 0 on was dropped"),
}


@pytest.mark.parametrize(("take", "words"), DROPS.values(), ids=DROPS)
def test_a_lease_that_is_dropped_says_which_messages_come_again(ring, inp, out, take, words):
    out.push_many([b"0", b"1", b"2"])
    with pytest.warns(ResourceWarning, match=f'^ring "{ring.name}": .*{words}') as caught:
        take(inp)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert pop_all(inp)[0] == (b"0", True)


def test_leases_that_were_released_handed_back_or_abandoned_are_dropped_without_a_word(ring, out):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out.push_many([b"%d" % i for i in range(6)])
        inp = ring.consumer("a")
        inp.lease().release()
        inp.lease().nack()
        with inp.lease() as one, inp.lease_many(2) as batch:
            views = [one.data, batch[0], batch.array]
        del one, batch, views
        left = [inp.lease(), inp.lease_many(9)]
        inp.abandon()
        left.clear()


def test_a_warning_that_is_an_error_neither_loses_the_message_nor_replaces_an_exception(
    inp, out, monkeypatch
):
    ignored = []
    monkeypatch.setattr(sys, "unraisablehook", lambda hook: ignored.append(hook.exc_value))

    def fail():
        lease = inp.lease()
        raise Boom(lease.message_id)

    out.push(b"0")
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        with pytest.raises(Boom):
            fail()
        gc.collect()
    assert [type(error) for error in ignored] == [ResourceWarning]
    assert pop_all(inp) == [(b"0", True)]


LEFT_AT_THE_END = """
    import os, sys
    import shmring

    ring = shmring.attach(sys.argv[1])
    inp = ring.consumer("a")
    left = inp.lease()
    if sys.argv[2] == "fork":
        if os.fork() == 0:
            del left
            sys.exit()
        os.wait()
        left.release()
"""


@pytest.mark.parametrize("how", ["end", "fork"])
def test_a_lease_that_is_left_to_the_end_of_the_program_warns_its_owner_alone(ring, out, how):
    out.push(b"0")
    program = [sys.executable, "-W", "always", "-c", textwrap.dedent(LEFT_AT_THE_END)]
    ended = subprocess.run([*program, ring.name, how], capture_output=True, text=True, check=True)
    assert ended.stderr.count("ResourceWarning") == (how == "end"), ended.stderr
    with ring.consumer("a") as again:
        assert pop_all(again) == ([(b"0", True)] if how == "end" else [])


def test_what_next_took_and_was_not_done_goes_back(ring, out):
    for i in range(3):
        out.push(b"%d" % i)
    with ring.sequence("a", start="earliest") as inp:
        inp.done(inp.next())
        inp.next()
    with ring.consumer("a") as inp:
        assert pop_all(inp) == [(b"1", True), (b"2", False)]


ENDS = {
    "exit": "sys.exit()",
    "interrupt": "raise KeyboardInterrupt",
    "end": "pass",
    "kill": "os.kill(os.getpid(), signal.SIGKILL)",
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())
def test_an_interpreter_that_ends_with_a_lease_hands_it_back(ring, out, child, patience, end):
    with ring.consumer("a", start="earliest") as inp:
        out.push(b"one")
        out.push(b"two")
        process = child(
            f"""
            import os, signal, sys, shmring
            inp = shmring.attach({ring.name!r}).consumer("a")
            lease = inp.lease()
            {end}
            """
        )
        process.process.wait(patience)
        found = set()
        while len(found) < 2:
            with inp.lease(timeout=20) as m:
                found.add((bytes(m.data), m.redelivered))
        assert found == {(b"one", True), (b"two", False)}


def test_gc_leaves_a_ring_that_has_only_handed_back_messages(name):
    with (
        shmring.create(name, slots=1024) as ring,
        ring.producer() as out,
        ring.consumer("a") as inp,
    ):
        out.push(b"one")
        inp.lease().nack()
    try:
        assert shmring.gc(name) == []
        with shmring.attach(name) as ring, ring.consumer("a") as inp:
            assert pop_all(inp) == [(b"one", True)]
    finally:
        shmring.unlink(name)


@pytest.mark.parametrize("take", ["lease", "lease_many"])
def test_what_a_cancelled_task_of_asyncio_does_not_get_is_delivered_again(ring, take):
    taken = threading.Event()

    def wait_for_it(inp):
        lease = inp.lease(timeout=120) if take == "lease" else inp.lease_many(5, timeout=120)
        taken.set()
        return lease

    async def main():
        with ring.consumer("a") as inp, ring.producer() as out:
            task = asyncio.create_task(asyncio.to_thread(wait_for_it, inp))
            await asyncio.sleep(0)
            out.push(b"x")
            taken.wait()  # and so the loop has not seen the lease yet
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            del task
            with await asyncio.to_thread(inp.lease, timeout=120) as again:  # the loop lets it go
                assert bytes(again.data) == b"x"
                assert again.redelivered

    with pytest.warns(ResourceWarning, match="message 0 was dropped"):
        asyncio.run(main())


def test_deliveries_are_counted(ring, out):
    out.push_many([b"one", b"two"])
    with ring.consumer("b") as inp:
        for before in range(3):
            with inp.lease() as one, inp.lease_many(9) as rest:
                assert (one.data, one.deliveries, one.redelivered) == (
                    b"one",
                    before + 1,
                    before > 0,
                )
                assert (rest.array[0, :3].tobytes(), rest.deliveries) == (b"two", before + 1)
                one.nack()
                rest.nack()


@pytest.fixture
def dead():
    with shmring.create(f"dead-{uuid.uuid4().hex[:8]}", slots=1024, temporary=True) as ring:
        yield ring


def each_way(inp, dead):
    """The ways to take what comes, from a consumer whose next message has had its deliveries."""

    async def later():
        return await anext(aiter(inp))

    def lease():
        with inp.lease(timeout=0) as message:
            return bytes(message.data)

    def many():
        with inp.lease_many(9, timeout=0) as batch:
            return bytes(batch.array[0, :4])

    return {
        "pop": lambda: inp.pop(timeout=0),
        "lease": lease,
        "many": many,
        "next": lambda: bytes(inp.slot(inp.next())[:4]),
        "iterate": lambda: next(iter(inp)),
        "asyncio": lambda: asyncio.run(later()),
    }


@pytest.mark.parametrize("way", ["pop", "lease", "many", "next", "iterate", "asyncio"])
def test_every_way_to_take_sets_aside(ring, dead, out, way):
    with ring.consumer("b", max_deliveries=1, dead_letter=dead.path) as inp:
        out.push(b"bad!", kind=77)
        out.push(b"good")
        inp.lease().nack()
        assert each_way(inp, dead)[way]() == b"good"
    with dead.consumer("default") as letters, letters.lease(timeout=0) as letter:
        assert (letter.data, letter.kind) == (b"bad!", 77)


def test_a_dead_letter_that_has_no_room_stays_where_it_is(ring, dead, out):
    with ring.consumer("b", max_deliveries=1, dead_letter=dead.name) as inp:
        with dead.producer() as fill:
            fill.push_many([b"full"] * 1024)
        out.push_many([b"bad", b"good"])
        inp.lease().nack()
        for _ in range(2):
            full = f"message 0 was delivered 1 times.*{dead.name}.* is full"
            with pytest.raises(shmring.NoSpace, match=full):
                inp.pop(timeout=0)
        with dead.consumer("default") as letters:
            letters.lease_many(1024).release()
            assert inp.pop(timeout=0) == b"good"
            assert letters.pop(timeout=0) == b"bad"


def test_what_cannot_take_dead_letters_is_refused_and_nobody_has_joined(ring, dead):
    before = len(ring.participants()), len(dead.participants())
    refused = [
        ({"max_deliveries": 3}, ValueError, "go together"),
        ({"dead_letter": dead.name}, ValueError, "go together"),
        ({"max_deliveries": 0, "dead_letter": dead.name}, ValueError, "from 1 to 255"),
        ({"max_deliveries": 256, "dead_letter": dead.name}, ValueError, "from 1 to 255"),
        ({"max_deliveries": 3, "dead_letter": "no-such-ring"}, shmring.RingNotFound, "no-such"),
        ({"max_deliveries": 3, "dead_letter": ring.name}, ValueError, "its own dead letters"),
    ]
    for options, kind, words in refused:
        with pytest.raises(kind, match=words):
            ring.consumer("b", **options)
    gc.collect()
    assert (len(ring.participants()), len(dead.participants())) == before
    with ring.consumer("b", max_deliveries=3, dead_letter=dead.name):
        names = [p["name"] for p in dead.participants()]
        assert f"dead letters of {ring.name}"[:55] in names
    gc.collect()
    assert len(dead.participants()) == before[1]


def test_letters_are_kept_beside_a_viewer_and_after_their_branch_was_dropped(ring, dead, out):
    with (
        ring.consumer("b", max_deliveries=1, dead_letter=dead.name) as inp,
        dead.consumer("view", ephemeral=True, drop_oldest=True),
    ):
        dead.drop_branch("default")
        out.push_many([b"bad", b"good"])
        inp.lease().nack()
        assert inp.pop(timeout=0) == b"good"
    with dead.consumer("default") as letters:
        assert letters.pop(timeout=0) == b"bad"


@pytest.mark.parametrize("remade", [False, True], ids=["removed", "remade"])
def test_letters_for_a_ring_that_was_removed_stay(ring, out, remade):
    name = f"dead-{uuid.uuid4().hex[:8]}"
    with shmring.create(name, slots=1024, temporary=True) as dead:
        with ring.consumer("b", max_deliveries=1, dead_letter=name) as inp:
            out.push(b"bad")
            inp.lease().nack()
            dead.unlink()
            again = shmring.create(name, slots=1024, temporary=True) if remade else None
            words = f"message 0 .*{name}.*{'made anew' if remade else 'make the ring again'}"
            with pytest.raises(shmring.RingNotFound, match=words):
                inp.pop(timeout=0)
            assert ring.branches()[0]["released"] == 0
        if again is not None:
            with again, ring.consumer("b", max_deliveries=1, dead_letter=name) as inp:
                with pytest.raises(shmring.Empty):
                    inp.pop(timeout=0)
                with again.consumer("default") as letters:
                    assert letters.pop(timeout=0) == b"bad"


@pytest.mark.ring(slots=2048)
def test_a_ring_that_is_too_small_for_the_largest_letter_is_refused(ring, dead):
    with pytest.raises(ValueError, match=f"{dead.name}.* has 1024 slots.* may have 2048"):
        ring.consumer("b", max_deliveries=1, dead_letter=dead.name)
    assert ring.participants()[1:] == []


CRASHES = """
    import os, signal, shmring
    for crash in range(30):
        if os.fork() == 0:
            with shmring.attach({name!r}) as ring, ring.consumer("b") as inp:
                batch = inp.lease_many(4 if crash else 256)
                os.kill(os.getpid(), signal.SIGKILL)
        os.wait()
    """


@pytest.mark.ring(participants=8, branch="b")
def test_a_consumer_that_crashes_again_and_again_leaves_room_for_its_successor(
    ring, out, child, patience
):
    out.push_many([b"m"] * 300)
    crashes = child(CRASHES.format(name=ring.name))
    assert crashes.process.wait(patience) == 0
    ring.recover()
    assert len(ring.participants()) == 2  # the producer's, and what is to be delivered again
    with shmring.attach(ring.name) as again, again.consumer("b") as inp:
        found = [inp.lease_many(256, timeout=0) for _ in range(3)]
        assert [(len(batch), batch.redelivered) for batch in found] == [
            (4, True),
            (252, True),
            (44, False),
        ]
        assert max(p["deliveries"] for p in ring.participants()) == 31
        inp.abandon()


def test_nack_beside_a_stopped_lock_holder_says_who_stops_it_and_loses_nothing(ring, out, child):
    out.push(b"one")
    inp = ring.consumer("a", start="earliest")
    lease = inp.lease()
    holder = child(
        """
        import fcntl, os, sys
        file = os.open(sys.argv[1], os.O_RDWR)
        fcntl.lockf(file, fcntl.LOCK_EX, 1, 8)
        print(1)
        input()
        """,
        ring.path,
    )
    holder.line()
    with pytest.raises(shmring.Contended, match=r"another process has been .* kill it"):
        lease.nack()
    holder.kill()
    inp.close()
    with ring.consumer("a") as again:
        assert pop_all(again) == [(b"one", True)]
