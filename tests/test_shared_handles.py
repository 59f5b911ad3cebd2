"""Threads that use the same handles at once, and close them: right results or an error."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import contextmanager, suppress
from functools import partial

import pytest

import shmring

THREADS = 4
ROUNDS = 60


def together(thread, functions):
    """Run the functions in a thread each, which begin at once; what they returned."""
    ready = threading.Barrier(len(functions))

    def begin(function):
        ready.wait()
        return function()

    return [t.outcome() for t in [thread(begin, function) for function in functions]]


# --- one handle, many threads -------------------------------------------------------------------


def push_in_each_way(out, number, each):
    """Publish (number, 0) to (number, each - 1); what came of it."""
    for i in range(0, each, 10):
        words = [b"%d %d" % (number, i + j) for j in range(10)]
        for word in words[:4]:
            out.push(word)
        out.push_many(words[4:8])
        for word in words[8:]:
            publish_by_claim(out, word)


def publish_by_claim(out, word):
    while True:
        with suppress(shmring.ClaimOpen), out.claim(len(word)) as claim:
            claim.buffer[:] = word
            return


def push_on(out, push):
    """Push although another thread may have a claim of this producer open just now."""
    while True:
        with suppress(shmring.ClaimOpen):
            return push(out)


class Patient:
    """A producer whose claims are waited for."""

    def __init__(self, out):
        self._out = out

    def push(self, word):
        return push_on(self._out, lambda out: out.push(word))

    def push_many(self, words):
        return push_on(self._out, lambda out: out.push_many(words))

    def claim(self, nbytes):
        return self._out.claim(nbytes)


def take_in_each_way(inp, wanted):
    """Take until an empty message comes; all of them, one that was handed back not."""
    taken = []
    while True:
        word = inp.pop()
        if not word:
            return taken
        taken.append(word)
        with inp.lease() as one:
            data = bytes(one.data)
            if not data:
                return taken
            taken.append(data)
        batch = inp.lease_many(3)
        words = [bytes(view) for view in batch]
        assert [len(w) for w in words] == batch.lengths.tolist()
        if b"" in words or len(taken) % 7 == wanted % 7:
            batch.nack()
        else:
            assert batch.array.shape == (len(words), 300)
            taken += words
        batch.release()


def test_one_producer_and_one_consumer_of_many_threads(ring, thread):
    each = 10_000
    out, inp = ring.producer(), ring.consumer("a")
    done = threading.Barrier(THREADS)

    def produce(number):
        push_in_each_way(Patient(out), number, each)
        if done.wait() == 0:
            for _ in range(THREADS):
                out.push(b"")

    writers = [partial(produce, n) for n in range(THREADS)]
    readers = [partial(take_in_each_way, inp, n) for n in range(THREADS)]
    taken = Counter(w for ws in together(thread, writers + readers) for w in ws or ())
    assert taken == Counter(b"%d %d" % (n, i) for n in range(THREADS) for i in range(each))


# --- closed in the middle of things ---------------------------------------------------------------


def use_until_closed(use):
    """Use something until it is closed."""
    with suppress(shmring.Closed):
        while True:
            with suppress(shmring.Empty, shmring.Full, shmring.ClaimOpen, shmring.Contended):
                use()


def taking_part(ring):
    """The roles of those whose participants are not just what somebody handed back."""
    return [
        participant["role"] for participant in ring.participants() if not participant["orphaned"]
    ]


def everything(ring, out, inp):
    """Uses of a ring, of a producer and of a consumer, which raise Closed in the end."""

    def fill():
        with out.claim(100, timeout=0) as claim:
            claim.buffer[:4] = b"abcd"

    def lease():
        with inp.lease(timeout=0) as one:
            bytes(one.data)

    def lease_many():
        with inp.lease_many(4, timeout=0) as batch:
            if batch.lengths.max() <= 300:
                batch.array.sum()

    return [
        lambda: out.push(b"x" * 1000, timeout=0),
        lambda: out.push(b"x", timeout=None),
        lambda: out.push_many([b"x"] * 5, timeout=0),
        fill,
        lambda: inp.pop(timeout=0),
        inp.pop,
        lease,
        lease_many,
        lambda: list(zip(inp, range(5), strict=False)) or inp.lag,
        lambda: (inp.hold, inp.position, repr(inp), repr(out)),
        lambda: (ring.branches(), ring.participants(), ring.holder(), ring.rows(0, 5)),
        lambda: (ring.claimed, ring.floor, ring.schema_bytes),
        lambda: (ring.producer(), ring.consumer("a")),
    ]


@contextmanager
def kept(name):
    """A ring, of which another handle alone is left."""
    with shmring.create(name, slots=1024, temporary=True) as ring, shmring.attach(name) as keeper:
        yield ring
        ring.close()
        assert taking_part(keeper) == ["attached"]


def close_soon(ring, *handles):
    """Close them in the middle of what others do."""
    for _ in range(20):
        ring.participants()
    for handle in handles or (ring,):
        handle.close()


@pytest.mark.parametrize("what", ["ring", "handles"])
def test_closed_while_other_threads_use_it(name, thread, what):
    for _ in range(ROUNDS // 4):
        with kept(name) as ring:
            out, inp = ring.producer(), ring.consumer("a")
            uses = everything(ring, out, inp)
            if what == "ring":
                close = partial(close_soon, ring)
            else:
                close = partial(close_soon, ring, inp, out)
                uses = uses[:-3]
            together(thread, [close, *(partial(use_until_closed, use) for use in uses)])
            del uses, close
            assert out.closed
            assert inp.closed


def test_collected_while_the_ring_is_closed(name, thread):
    for _ in range(ROUNDS):
        with kept(name) as ring:
            boxes = [[ring.producer(), ring.consumer(f"b{n}")] for n in range(THREADS)]
            together(thread, [ring.close, *(box.clear for box in boxes)])


def test_views_that_die_while_everything_is_closed(name, thread):
    for _ in range(ROUNDS):
        with kept(name) as ring:
            out, inp = ring.producer(), ring.consumer("a")
            out.push_many([b"%d" % i for i in range(32)])
            batch, one = inp.lease_many(16), inp.lease()
            with out.claim(300) as claim:
                boxes = [[batch[0]], [batch.array], [batch.slots], [one.data], [claim.buffer]]
            assert boxes[1][0][1, 0] == ord("1")
            together(thread, [inp.close, ring.close, batch.release, *(box.clear for box in boxes)])
            with pytest.warns(ResourceWarning, match="was dropped"):
                del batch, one, claim
