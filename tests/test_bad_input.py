"""Wrong input gets its own exception that says what to do, and the ring and the others go on."""

from __future__ import annotations

import os

import numpy as np
import pyarrow as pa
import pytest

import shmring
from shmring.durable import AppendOnlyQueue, PersistentQueue, Retention
from shmring.metrics import HostMetrics
from shmring.sidecars import Sidecar, SidecarClient
from shmring.spark import through

pytestmark = pytest.mark.usefixtures("bystanders")


# --- sizes and options ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "slots", [0, -1, -1024, 1, 512, 1000, 1025, 2**31 + 1, 2**62, 2**64, 10**30]
)
def test_impossible_number_of_slots_is_a_value_error_and_makes_nothing(name, slots):
    with pytest.raises(ValueError, match=rf"slots.*{abs(slots)}"):
        shmring.create(name, slots=slots)
    assert name not in shmring.rings()


@pytest.mark.parametrize("slots", [1024.0, "1024", None, True])
def test_slots_that_are_no_number_are_a_type_error(name, slots):
    with pytest.raises(TypeError, match="slots must be an int"):
        shmring.create(name, slots=slots)
    assert name not in shmring.rings()


# CHANGE: edit this for a new option of a ring
@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("participants", 0, "participants"),
        ("participants", 249, "participants"),
        ("participants", -5, "participants"),
        ("clock", "atomic", "'coarse', 'precise', 'off'"),
        ("clock", None, "clock must be one of"),
        ("mode", 0o7777, "mode"),
        ("mode", -1, "mode"),
        ("first_sequence", -1, "first_sequence"),
        ("first_sequence", 1 << 60, "first_sequence"),
    ],
)
def test_impossible_option_is_a_value_error_and_makes_nothing(name, option, value, text):
    with pytest.raises(ValueError, match=text):
        shmring.create(name, slots=1024, **{option: value})
    assert name not in shmring.rings()


@pytest.mark.parametrize("number", [2**50 + 1, 2**64, 10**30])
def test_number_that_is_too_large_for_a_push_is_a_value_error(out, number):
    for option in ("kind", "align"):
        with pytest.raises(ValueError, match=f"{option} must be .*, not {number}"):
            out.push(b"x", **{option: number})


def test_rows_take_no_more_room_than_the_ring_has(ring, out):
    out.push(b"x")
    assert [row[-1] for row in ring.rows(capacity=2**62)] == [b"x"]
    with pytest.raises(ValueError, match="capacity must be"):
        ring.rows(capacity=2**64)


@pytest.mark.parametrize("call", [shmring.create, shmring.attach, shmring.unlink])
def test_path_of_bytes_is_a_type_error(call):
    with pytest.raises(TypeError, match=r"path must be a str .* not b'/x': os\.fsdecode"):
        call(path=b"/x", **({"slots": 1024} if call is shmring.create else {}))


@pytest.mark.parametrize("letters", ["a ring", 5])
def test_dead_letter_ring_is_a_name(ring, letters):
    given = ring if letters == "a ring" else letters
    with pytest.raises(TypeError, match="dead_letter is the name or path of a ring"):
        ring.consumer("a", max_deliveries=2, dead_letter=given)


def _make_pipe(path):
    os.mkfifo(path)


def _make_link(path):
    path.symlink_to("nowhere")


def _make_folder(path):
    path.mkdir()


@pytest.mark.parametrize(
    ("make", "what"),
    [(_make_folder, "a directory"), (_make_link, "a symbolic link"), (_make_pipe, "a pipe")],
)
def test_no_ring_is_made_over_what_is_no_file(tmp_path, make, what):
    make(tmp_path / "x")
    with pytest.raises(shmring.NotARing, match=f"x is {what}.*use another name or path"):
        shmring.create(path=tmp_path / "x", slots=1024)


def test_ring_that_was_replaced_removes_no_other(name):
    with shmring.create(name, slots=1024) as first:
        shmring.unlink(name)
        with pytest.raises(shmring.RingNotFound, match="create it with"):
            first.unlink()
        with shmring.create(name, slots=1024, temporary=True):
            with pytest.raises(shmring.RingNotFound, match="is another file, which stays"):
                first.unlink()
            assert name in shmring.rings()


def test_schema_that_is_none_is_a_type_error(name):
    with pytest.raises(TypeError, match=r"pyarrow\.Schema"):
        shmring.create(name, slots=1024, schema={"x": "int64"})
    assert name not in shmring.rings()


# --- names ------------------------------------------------------------------------------------


BAD_NAMES = ["", "a/b", "/a", "..", ".hidden", "-x", "a b", "ä", "a\n", "a\0b", "x" * 201]


@pytest.mark.parametrize("bad", BAD_NAMES)
@pytest.mark.parametrize(
    "call", [shmring.create, shmring.attach, shmring.open_or_create, shmring.unlink, shmring.gc]
)
def test_name_with_a_slash_or_the_like_is_a_value_error(call, bad):
    with pytest.raises(ValueError, match="cannot name a ring"):
        call(bad)


@pytest.mark.parametrize("good", ["a", "A-1_b.c", "_", "0", "x" * 200])
def test_names_at_the_limits_work(good, name):
    full = (good + name)[-200:].lstrip("-.")
    with shmring.create(full, slots=1024, temporary=True):
        assert full in shmring.rings()


def test_ring_has_a_name_or_a_path(tmp_path):
    for arguments in ({}, {"name": "a", "path": tmp_path / "a"}):
        with pytest.raises(ValueError, match="give one of the two"):
            shmring.attach(**arguments)
    with pytest.raises(TypeError, match="must be a str"):
        shmring.attach(b"a")


@pytest.mark.parametrize(
    ("bad", "kind"),
    [("", ValueError), ("x" * 48, ValueError), ("a\0b", ValueError), (7, TypeError)],
)
def test_impossible_branch_name_is_refused(ring, bad, kind):
    with pytest.raises(kind, match="branch's name"):
        ring.consumer(bad)
    assert ring.branches() == []


def test_branch_that_follows_an_unknown_one_is_refused_and_not_made(ring):
    with pytest.raises(shmring.BranchNotFound, match='"nobody"'):
        ring.consumer("a", after="nobody")
    assert ring.branches() == []


@pytest.mark.parametrize("after", ["", ("",), ("x" * 48,), ("a\0",), b"a", None, 5, (5,), (None,)])
def test_collection_that_names_no_branches_is_refused(ring, after):
    with pytest.raises((TypeError, ValueError), match=r"after|branch's name"):
        ring.consumer("a", after=after)
    assert ring.branches() == []


@pytest.mark.parametrize("start", ["first", None, -1, 1.5, True, 10**30])
def test_impossible_start_is_a_value_error(ring, start):
    with pytest.raises(ValueError, match="start"):
        ring.consumer("a", start=start)
    assert ring.branches() == []


def test_start_ahead_of_the_producers_is_a_value_error(ring):
    with pytest.raises(ValueError, match="ahead of the producers"):
        ring.consumer("a", start=1)
    assert ring.branches() == []


@pytest.mark.parametrize("option", ["wait", "when_full"])
def test_unknown_choice_names_the_known_ones(ring, option):
    with pytest.raises(ValueError, match=r"one of 'default'|one of 'block'"):
        ring.producer(**{option: "sometimes"})


# --- messages ---------------------------------------------------------------------------------


def test_message_larger_than_the_ring_is_refused_and_publishes_nothing(ring, out, inp):
    for call in (
        lambda: out.push(bytes(300 * ring.slots + 1)),
        lambda: out.claim(300 * ring.slots + 1),
        lambda: out.claim(1 << 40),
        lambda: out.push_many([b"x"] * (ring.slots + 1)),
        lambda: out.push_many(np.zeros((ring.slots + 1, 300), np.uint8)),
    ):
        with pytest.raises(shmring.MessageTooLarge):
            call()
    assert ring.claimed == 0
    out.push(bytes(300 * ring.slots), timeout=0)
    assert len(inp.pop(timeout=0)) == 300 * ring.slots


def test_row_longer_than_a_slot_is_refused_and_publishes_nothing(ring, out):
    for rows in ([b"ok", b"x" * 301], np.zeros((2, 301), np.uint8)):
        with pytest.raises(shmring.MessageTooLarge, match="push"):
            out.push_many(rows)
    assert ring.claimed == 0


@pytest.mark.parametrize("data", ["text", 7, None, 1.5, [1, 2], {"a": 1}, object()])
def test_message_that_is_not_bytes_is_a_type_error(ring, out, data):
    with pytest.raises(TypeError, match="a message is bytes"):
        out.push(data)
    with pytest.raises(TypeError, match=r"encode\(\)"):
        out.push("text")
    assert ring.claimed == 0


def test_message_that_is_not_contiguous_is_refused(ring):
    with ring.producer() as out, pytest.raises(BufferError, match="contiguous"):
        out.push(np.zeros(10, np.uint8)[::2])


@pytest.mark.parametrize(
    "rows",
    [
        b"bytes",
        "text",
        7,
        None,
        {"a": b"x"},
        iter([b"x"]),
        ["text"],
        [b"x", 7],
        np.zeros(10, np.uint8),
        np.zeros((2, 3, 4), np.uint8),
        np.zeros((2, 3), np.int8),
        np.zeros((2, 3), np.uint16),
        np.zeros((3, 4), np.uint8).T,
        np.zeros((3, 4), np.uint8)[::-1],
        pa.array([b"x"], pa.binary(1)),
    ],
    ids=lambda rows: f"{type(rows).__name__}",
)
def test_rows_of_another_kind_are_a_type_error_and_publish_nothing(ring, out, rows):
    with pytest.raises(TypeError, match="row"):
        out.push_many(rows)
    assert ring.claimed == 0


def test_calls_with_wrong_arguments_are_type_errors(ring, out, inp):
    for call in (
        lambda: out.push(),
        lambda: out.push(b"a", 1),
        lambda: out.push(b"a", speed=1),
        lambda: out.push(b"a", timeout="soon"),
        lambda: out.push(b"a", kind="x"),
        lambda: out.push_many(),
        lambda: out.claim(),
        lambda: out.claim("10"),
        lambda: out.claim(10, nbytes=5),
        lambda: inp.pop(1.0),
        lambda: inp.pop(timeout=[]),
        lambda: inp.lease_many(),
        lambda: inp.lease_many("10"),
        lambda: out.done(),
        lambda: inp.done("1"),
    ):
        with pytest.raises(TypeError):
            call()
    assert ring.claimed == 0


def test_numbers_out_of_range_are_value_errors(ring, out, inp):
    for call in (
        lambda: out.push(b"a", kind=1),
        lambda: out.push(b"a", kind=2),
        lambda: out.push(b"a", kind=3),
        lambda: out.push(b"\xff\xff\xff\xff\0\0\0\1" + bytes(8), kind=4),
        lambda: out.push(b"", kind=5),
        lambda: out.push(b"a", kind=15),
        lambda: out.push(b"a", kind=256),
        lambda: out.push(b"a", kind=-1),
        lambda: out.claim(-1),
        lambda: out.claim(10, align=3),
        lambda: inp.lease_many(0),
        lambda: inp.lease_many(-1),
        lambda: inp.slot(-1),
        lambda: out.next(-1),
        lambda: out.next(0),
    ):
        with pytest.raises(ValueError, match=r"must|at least"):
            call()
    assert ring.claimed == 0


@pytest.mark.parametrize("workers", [0, 247, 2**50])
def test_sidecar_has_no_more_workers_than_its_ring_has_participants(ring, workers):
    with pytest.raises(ValueError, match="workers must be from 1 to 246"):
        Sidecar("functions:double", name=ring.name, workers=workers)


# CHANGE: edit this for a new option of a client
# CHANGE: edit this for a new option of a journal
@pytest.mark.parametrize("bad", [-1, float("nan")])
def test_time_that_is_none_is_a_value_error_everywhere(ring, tmp_path, bad):
    reader = ring.arrow_reader("a")
    for call in (
        lambda: reader.read(timeout=bad),
        lambda: ring.arrow_reader("b", timeout=bad),
        lambda: PersistentQueue(tmp_path / "queue", timeout=bad),
        lambda: PersistentQueue(tmp_path / "queue", delay=bad),
        lambda: AppendOnlyQueue(tmp_path / "log", timeout=bad),
        lambda: Retention(max_age=bad),
        lambda: HostMetrics(interval=bad),
        lambda: HostMetrics(interval=None, age=bad),
        lambda: Sidecar("functions:double", name=ring.name).start(timeout=bad),
        lambda: SidecarClient(ring.name, timeout=bad),
        lambda: SidecarClient(ring.name, connect_timeout=bad),
        lambda: through("x", timeout=bad),
        lambda: through("x", connect_timeout=bad),
    ):
        with pytest.raises(ValueError, match=r" must be from 0 to .* seconds, not (-1|nan)"):
            call()
    assert not any(tmp_path.iterdir())


def test_types_are_made_by_the_ring_only():
    for made in (shmring.Producer, shmring.Consumer, shmring.Lease, shmring.Batch, shmring.Claim):
        with pytest.raises(TypeError):
            made()


# --- limits of participants -------------------------------------------------------------------


@pytest.mark.ring(single_producer=True)
def test_second_single_producer_is_refused_and_the_first_goes_on(ring, out, inp):
    for attempt in (ring.producer, ring.sequence):
        with pytest.raises(shmring.SecondProducer, match=str(os.getpid())):
            attempt()
    out.push(b"x")
    assert inp.pop(timeout=0) == b"x"


def test_second_consumer_of_an_exclusive_branch_is_refused(ring):
    with ring.consumer("a", exclusive=True) as inp:
        with pytest.raises(shmring.SecondConsumer, match='"a"'):
            ring.consumer("a")
        inp.close()
        ring.consumer("a").close()


def test_participant_without_a_seat_is_refused(name):
    with shmring.create(name, slots=1024, participants=2, temporary=True) as ring:
        with ring.producer(), ring.consumer("a"):
            for attempt in (
                ring.producer,
                lambda: ring.consumer("b"),
                lambda: shmring.attach(name),
            ):
                with pytest.raises(shmring.LimitReached, match="2 participants"):
                    attempt()
            assert [branch["name"] for branch in ring.branches()] == ["a"]
        ring.producer().close()


# --- handles used after their end -------------------------------------------------------------


def test_closed_producer_says_so(ring):
    out = ring.producer()
    out.close()
    out.close()
    for call in (
        lambda: out.push(b"x"),
        lambda: out.push_many([b"x"]),
        lambda: out.push_many([]),
        lambda: out.claim(1),
        out.push_end,
        out.next,
        out.abort,
        out.available,
        lambda: out.done(0),
        lambda: out.slot(0),
    ):
        with pytest.raises(shmring.Closed, match=f'producer of ring "{ring.name}" was closed') as e:
            call()
        assert isinstance(e.value, ValueError)


def test_closed_consumer_says_so(ring):
    inp = ring.consumer("a")
    inp.close()
    inp.close()
    for call in (
        inp.pop,
        inp.lease,
        lambda: inp.lease_many(1),
        lambda: next(inp),
        inp.next,
        inp.available,
        lambda: inp.done(0),
        lambda: inp.slot(0),
        lambda: inp.position,
        lambda: inp.lag,
    ):
        with pytest.raises(shmring.Closed, match=f'consumer of ring "{ring.name}" was closed'):
            call()


def test_argument_that_closes_the_handle_while_it_is_read(ring):
    out, inp = ring.producer(), ring.consumer("a")

    class Closing:
        def __init__(self, handle):
            self.handle = handle

        def __float__(self):
            self.handle.close()
            return 1.0

        def __index__(self):
            self.handle.close()
            return 0

    for call in (
        lambda: out.push(b"x", timeout=Closing(out)),
        lambda: out.push_many([b"x"], timeout=Closing(out)),
        lambda: inp.pop(timeout=Closing(inp)),
    ):
        with pytest.raises(shmring.Closed):
            call()
    for call in (
        lambda out, inp: out.claim(Closing(out)),
        lambda out, inp: out.slot(Closing(out)),
        lambda out, inp: out.done(Closing(out)),
        lambda out, inp: inp.done(Closing(inp)),
        lambda out, inp: inp.slot(Closing(inp)),
        lambda out, inp: inp.lease_many(1, timeout=Closing(inp)),
    ):
        with pytest.raises(shmring.Closed):
            call(ring.producer(), ring.consumer("a"))
