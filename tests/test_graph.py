"""The low level: sequences, and who follows whom."""

from __future__ import annotations

import threading

import pytest

import shmring
from shmring import UNAVAILABLE, FanOut


@pytest.fixture
def single(name):
    """A ring with one producer."""
    with shmring.create(name, slots=1024, single_producer=True, temporary=True) as ring:
        yield ring


def publish(out, *messages):
    for message in messages:
        sequence = out.next()
        assert sequence >= 0
        out.slot(sequence)[: len(message)] = message
        out.done(sequence, len(message))


def take(sequence, length=1):
    """Take one message and release it; None if there is none."""
    at = sequence.next()
    if at == UNAVAILABLE:
        return None
    data = bytes(sequence.slot(at)[:length])
    sequence.done(at)
    return data


# --- next, done, available --------------------------------------------------------------------


def test_messages_of_sequences_and_of_pushes_are_the_same(ring):
    with (
        ring.sequence() as out,
        ring.consumer("high") as high,
        ring.producer() as pusher,
        ring.sequence("low") as low,
    ):
        publish(out, b"x")
        pusher.push(b"y")
        assert [high.pop(timeout=0), high.pop(timeout=0)] == [b"x", b"y"]
        assert [take(low), take(low)] == [b"x", b"y"]


def test_producer_goes_up_to_available_and_publishes_the_batch_at_once(single):
    with single.sequence() as out, single.consumer("a") as inp:
        total = 0
        while total < 5 * single.slots:
            first = out.next()
            assert first == total
            end = out.available()
            assert end > first
            for sequence in range(first, end):
                out.slot(sequence)[:8] = sequence.to_bytes(8, "little")
            out.done(end - 1, 8)
            with inp.lease_many(2 * single.slots, timeout=0) as batch:
                assert len(batch) == end - first
                assert [int.from_bytes(m, "little") for m in batch] == list(range(first, end))
            total = end


def test_reader_goes_up_to_available_and_releases_the_batch_at_once(ring):
    with ring.producer() as out, ring.sequence("a") as inp:
        for lap in range(10):
            out.push_many([b"%d" % i for i in range(500)])
            first = inp.next()
            end = inp.available()
            assert (first, end) == (lap * 500, lap * 500 + 500)
            assert [bytes(inp.slot(s)[:1]) for s in range(first, end)][:3] == [b"0", b"1", b"2"]
            inp.done(end - 1)
            assert inp.next() == UNAVAILABLE
            assert ring.branches()[0]["released"] == end


def test_available_is_for_those_whom_nobody_races(ring):
    with ring.sequence() as out, ring.sequence("shared", exclusive=False) as inp:
        with pytest.raises(ValueError, match="single-producer"):
            out.available()
        with pytest.raises(ValueError, match="exclusive"):
            inp.available()


def test_done_of_what_was_not_taken_is_refused(ring):
    with (
        ring.producer() as out,
        ring.sequence("a") as one,
        ring.sequence("b", exclusive=False) as b,
    ):
        for inp in (one, b):
            with pytest.raises(ValueError, match="not taken"):
                inp.done(0)
        out.push(b"x")
        b.done(b.next())
        with pytest.raises(ValueError, match="not taken"):
            b.done(0)


def test_done_twice_on_an_exclusive_branch_is_refused_and_takes_nothing(ring):
    with ring.producer() as out, ring.sequence("a") as inp:
        out.push_many([b"0", b"1", b"2"])
        inp.done(inp.next())
        with pytest.raises(ValueError, match="not taken"):
            inp.done(0)
        assert inp.next() == 1
        with pytest.raises(ValueError, match="not taken"):
            inp.done(0)
        assert inp.next() == 2


def test_producer_has_one_claim_at_a_time(ring):
    with ring.sequence() as out:
        sequence = out.next()
        with pytest.raises(shmring.ClaimOpen):
            out.next()
        with pytest.raises(ValueError, match="outside the claim"):
            out.done(sequence + 1)
        out.done(sequence)
        with pytest.raises(ValueError, match="no open claim"):
            out.done(sequence)


def test_sequence_sees_the_end_marker(ring):
    with ring.producer() as out, ring.sequence("a") as inp:
        out.push_end()
        with pytest.raises(shmring.EndOfStream):
            inp.next()
        assert inp.next() == UNAVAILABLE


def test_slot_views_stay_mapped_after_everything_was_closed(name):
    ring = shmring.create(name, slots=1024, temporary=True)
    out, inp = ring.sequence(), ring.sequence("a")
    sequence = out.next()
    out.slot(sequence)[:3] = b"abc"
    out.done(sequence, 3)
    view = inp.slot(inp.next())
    assert view.readonly
    ring.close()
    del ring, out, inp
    assert view[:3] == b"abc"


# --- the graph --------------------------------------------------------------------------------


def test_then_chains_and_closes_the_loop(ring):
    out, a, b = ring.sequence(), ring.sequence("a"), ring.sequence("b")
    assert out.then(a).then(b).then(out) is out
    publish(out, b"x")
    assert take(b) is None
    assert take(a) == b"x"
    assert take(b) == b"x"
    assert [branch["after"] for branch in ring.branches()] == [[], ["a"]]


def test_a_consumer_is_no_name_to_follow(ring, out, inp):
    out.push(b"stays")
    with pytest.raises(TypeError, match="give 'a'"):
        ring.consumer("b", after=inp)
    assert inp.pop(timeout=0) == b"stays"


def test_newcomer_joins_a_fan_out_while_traffic_flows(ring):
    out, a, c = ring.sequence(), ring.sequence("a"), ring.sequence("c")
    fan = FanOut.to(a)
    out.then(fan).then(c).then(out)
    publish(out, b"1")
    take(a)
    assert take(c) == b"1"
    b = ring.sequence("b", start="latest")
    assert fan.and_(b) is fan
    fan.and_(b)  # once more changes nothing
    publish(out, b"2")
    take(a)
    assert take(c) is None, "what follows the fan-out waits for the newcomer"
    assert take(b) == b"2", "a newcomer sees only what comes later"
    assert take(c) == b"2"


def test_newcomer_of_a_fan_out_behind_another_branch(ring):
    out, first, a, b = ring.sequence(), *(ring.sequence(n) for n in ("first", "a", "b"))
    fan = FanOut.to(a)
    out.then(first).then(fan).then(out)
    fan.and_(b)
    publish(out, b"x")
    assert take(b) is None
    take(first)
    assert take(b) == b"x"


def test_removed_branch_holds_nobody_and_its_next_raises(ring):
    out, a, b, c = ring.sequence(), *(ring.sequence(n) for n in "abc")
    fan = FanOut.to(a).and_(b)
    out.then(fan).then(c).then(out)
    publish(out, b"x")
    take(a)
    assert take(c) is None
    assert fan.remove(b) is fan
    assert take(c) == b"x"
    with pytest.raises(shmring.BranchDropped):
        b.next()
    with pytest.raises(ValueError, match="not in this fan-out"):
        fan.remove(b)


def test_fan_out_forgets_followers_that_others_have_dropped(ring):
    out, a, b, c, d, e = ring.sequence(), *(ring.sequence(n) for n in "abcde")
    fan, empty = FanOut.to(a), FanOut()
    out.then(fan).then(c)
    fan.then(d)
    empty.then(e)
    ring.drop_branch("c")
    ring.drop_branch("e")
    assert fan.and_(b) is fan
    assert out.then(empty) is empty
    publish(out, b"x")
    take(a)
    assert take(d) is None, "the other follower waits for the newcomer"
    take(b)
    assert take(d) == b"x"
    ring.drop_branch("b")
    with pytest.raises(shmring.errors.BranchNotFound):
        fan.and_(b)  # the member is missing, and not the follower


def test_empty_fan_out_does_not_hold_the_producer(ring):
    out, a, c = ring.sequence(), ring.sequence("a"), ring.sequence("c")
    fan = FanOut.to(a)
    out.then(fan).then(c).then(out)
    fan.remove(a)
    publish(out, b"x")
    assert take(c) == b"x"
    for _ in range(2 * ring.slots):
        publish(out, b"y")
        take(c)


def test_sequences_of_two_rings_cannot_follow_each_other(ring, name):
    with shmring.create(f"{name}-other", slots=1024, temporary=True) as other:
        a, b = ring.sequence("a"), other.sequence("b")
        with pytest.raises(ValueError, match="different rings"):
            a.then(b)
        with pytest.raises(ValueError, match="different rings"):
            a.then(other.sequence())


def test_producers_follow_branches_and_nothing_else(ring):
    out, other = ring.sequence(), ring.sequence()
    with pytest.raises(ValueError, match="producer"):
        out.then(other)
    with pytest.raises(ValueError, match="producer"):
        FanOut.to(out)
    with pytest.raises(ValueError, match="no branch to drop"):
        out.drop()


# --- many who build at once -------------------------------------------------------------------


def after(ring, branch):
    return next(set(b["after"]) for b in ring.branches() if b["name"] == branch)


def test_threads_that_join_a_fan_out_at_once_lose_nobody(ring, thread):
    last = ring.sequence("last")
    for turn in range(20):
        fan = FanOut()
        start = threading.Barrier(5)
        consumers = [ring.sequence(f"m{turn}.{i}") for i in range(5)]

        def join(consumer, fan=fan, start=start):
            start.wait()
            fan.and_(consumer)

        joining = [thread(join, consumer) for consumer in consumers[:4]]
        start.wait()
        fan.then(last)
        fan.and_(consumers[4])
        for one in joining:
            one.outcome()
        assert after(ring, "last") == {consumer.branch for consumer in consumers}
        leaving = [thread(fan.remove, consumer) for consumer in consumers]
        for one in leaving:
            one.outcome()
        assert after(ring, "last") == set()
        for consumer in consumers:
            consumer.close()


def test_second_builder_of_the_same_graph_changes_nothing(ring):
    out, first, a, b = ring.sequence(), *(ring.sequence(n) for n in ("first", "a", "b"))
    c, d, last = (ring.sequence(n) for n in ("c", "d", "last"))

    def build():
        fan = FanOut.to(a.then(b)).and_(c)
        out.then(first).then(fan).then(FanOut.to(d)).then(last).then(out)
        return fan

    build()
    before = {branch["name"]: branch["after"] for branch in ring.branches()}
    assert before == {
        "first": [],
        "a": ["first"],
        "b": ["a"],
        "c": ["first"],
        "d": ["b", "c"],
        "last": ["d"],
    }
    again = build()
    assert {branch["name"]: branch["after"] for branch in ring.branches()} == before
    again.remove(b)
    assert after(ring, "d") == {"c"}
    assert {branch["name"] for branch in ring.branches()} == {"first", "c", "d", "last"}
    again.remove(c)
    assert after(ring, "d") == {"first"}


def test_chain_is_dropped_as_far_as_nothing_else_follows_it(ring):
    out, root, a, b, c = ring.sequence(), *(ring.sequence(n) for n in ("root", "a", "b", "c"))
    out.then(root).then(a)
    root.then(b)
    fan = FanOut.to(a).and_(b)
    fan.then(c)
    fan.remove(a)
    assert after(ring, "b") == {"root"}
    fan.remove(b)
    assert {branch["name"] for branch in ring.branches()} == {"c"}


def test_fan_out_that_would_follow_itself_is_refused(ring):
    a, b, c = (ring.sequence(n) for n in "abc")
    fan = FanOut.to(a).and_(b)
    fan.then(c)
    with pytest.raises(ValueError, match="cannot follow itself"):
        c.then(fan)
    with pytest.raises(ValueError, match="cannot follow itself"):
        fan.then(a)
