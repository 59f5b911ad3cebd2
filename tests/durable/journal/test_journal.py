"""The journal of a ring: what is on disk, what branches behind it see, and replay."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fixture_types import RunChild, RunThread, Until
from simulated_disk import SimulatedDisk

import shmring
from shmring.durable import Journal, Retention, replay, replay_batches, restore, truncate, verify
from shmring.errors import (
    BranchNotFound,
    Damaged,
    JournalGap,
    Locked,
    NotARing,
    NotDurable,
    RingNotFound,
    SecondConsumer,
)


def stored(path: Path, **bounds: int) -> list[bytes]:
    return [bytes(m.data) for m in replay(path, **bounds)]


def test_a_durable_push_returns_when_it_is_on_disk(ring: shmring.Ring, tmp_path: Path) -> None:
    with ring.journal(tmp_path) as journal, ring.producer() as out:
        first = out.push(b"one", durable=True)
        assert journal.durable > first
        assert stored(tmp_path) == [b"one"]
        last = out.push_many([b"two", b"three"], durable=True)
        out.push(b"x" * 1000, durable=True, kind=19)
    found = list(replay(tmp_path))
    assert [bytes(m.data) for m in found] == [b"one", b"two", b"three", b"x" * 1000]
    assert [m.message_id for m in found] == [first, last, last + 1, last + 2]
    assert found[-1].kind == 19
    assert all(m.time for m in found)


def test_a_branch_behind_the_journal_sees_only_what_is_on_disk(
    ring: shmring.Ring, tmp_path: Path
) -> None:
    disk = SimulatedDisk()
    with Journal(ring, tmp_path, disk=disk) as journal, ring.producer() as out:
        with ring.consumer("logic", start="earliest", after="journal") as inp:
            for i in range(50):
                out.push(b"%d" % i)
                with inp.lease(timeout=120) as message:
                    assert message.message_id < journal.durable
        assert disk.syncs


def test_without_a_journal_a_durable_push_publishes_nothing(
    ring: shmring.Ring, out: shmring.Producer, tmp_path: Path
) -> None:
    with pytest.raises(BranchNotFound, match="no journal"):
        out.push(b"x", durable=True)
    ring.journal(tmp_path).close()
    with pytest.raises(NotDurable, match="nothing was published"):
        out.push(b"x", durable=True)
    with pytest.raises(ValueError, match="no message 0 has been pushed; the next is 0"):
        out.wait_durable(ring.claimed)
    assert ring.claimed == 0
    out.push(b"x")
    with pytest.raises(NotDurable):
        out.wait_durable(0, timeout=0)


def test_a_durable_push_notices_that_the_journal_has_failed(
    ring: shmring.Ring, tmp_path: Path
) -> None:
    disk = SimulatedDisk()
    journal = Journal(ring, tmp_path, disk=disk)
    with ring.producer() as out:
        out.push(b"safe", durable=True)
        disk.failing.add("sync")
        with pytest.raises(NotDurable) as caught:
            out.push(b"lost?", durable=True)
        assert caught.value.message_id == 1
    assert journal.wait(120)
    with pytest.raises(OSError, match="failed to sync"):
        journal.close()
    # Messages not known to be on disk are delivered to the next journal.
    with Journal(ring, tmp_path, disk=disk.kill()) as journal, ring.producer() as out:
        out.push(b"next", durable=True)
        assert journal.durable == 3


def test_a_journal_begun_anew_behind_a_message_never_makes_it_durable(
    ring: shmring.Ring, out: shmring.Producer, thread: RunThread, until: Until
) -> None:
    taker = ring.consumer("journal", start="earliest", exclusive=True)
    push = thread(lambda: out.push(b"x", durable=True))
    until(lambda: ring.claimed == 1)
    ring.drop_branch("journal")
    taker.close()
    with ring.consumer("journal", start="latest", exclusive=True):
        with pytest.raises(NotDurable, match="was dropped"):
            push.outcome()
        with pytest.raises(NotDurable, match="was dropped"):
            out.wait_durable(0)
        assert ring.branches()[0]["released"] == 1


def test_more_than_the_ring_holds_flows_through(ring: shmring.Ring, tmp_path: Path) -> None:
    with ring.journal(tmp_path, segment_bytes=1 << 20), ring.producer() as out:
        for i in range(20_000):
            out.push(b"%d" % i)
        out.push_end()
        out.push(b"last", durable=True)
    found = list(replay(tmp_path))
    assert [bytes(m.data) for m in found[:20_000]] == [b"%d" % i for i in range(20_000)]
    assert found[20_000].kind == 2
    assert stored(tmp_path, from_=19_998, until=20_000) == [b"19998", b"19999"]


def test_aborted_claims_leave_gaps_in_the_numbers(ring: shmring.Ring, tmp_path: Path) -> None:
    with ring.journal(tmp_path), ring.producer() as out:
        for i in range(300):
            with contextlib.suppress(ZeroDivisionError), out.claim(700 if i % 3 else 5) as slot:
                slot.buffer[:] = bytes(len(slot.buffer))
                if i % 5 == 0:
                    raise ZeroDivisionError
        last = out.push(b"last", durable=True)
    found = list(replay(tmp_path))
    assert len(found) == 241
    assert found[-1].message_id == last


def batches(count: int) -> Iterator[pa.RecordBatch]:
    for i in range(count):
        yield pa.record_batch({"n": pa.array(range(i * 1000, i * 1000 + 1000)), "s": ["x"] * 1000})


@pytest.mark.parametrize("in_header", [True, False])
def test_arrow_batches_come_back_mapped_and_aligned(
    name: str, tmp_path: Path, in_header: bool
) -> None:
    given = list(batches(30))
    schema = given[0].schema
    options: dict[str, Any] = {"schema": schema} if in_header else {}
    with (
        shmring.create(name, slots=1024, temporary=True, **options) as ring,
        ring.journal(tmp_path),
        ring.arrow_writer(schema) as writer,
        ring.producer() as out,
    ):
        for batch in given:
            writer.write(batch)
        writer.end()
        out.wait_durable(ring.claimed - 1)
    before = pa.total_allocated_bytes()
    found = list(replay_batches(tmp_path))
    assert found == given
    assert pa.total_allocated_bytes() - before < 10_000
    assert all(b.column(0).buffers()[1].address % 64 == 0 for b in found)


def test_a_ring_made_again_continues_the_sequence(name: str, tmp_path: Path) -> None:
    schema = pa.schema({"n": pa.int64()})
    with shmring.create(name, slots=1024, schema=schema) as ring:
        with ring.journal(tmp_path), ring.arrow_writer() as writer, ring.producer() as out:
            writer.write(pa.record_batch({"n": [1, 2]}))
            out.wait_durable(ring.claimed - 1)
        end = ring.claimed
    shmring.unlink(name)

    with shmring.create(name, slots=1024) as other, pytest.raises(JournalGap, match="restore"):
        other.journal(tmp_path)
    shmring.unlink(name)

    with restore(tmp_path, name, slots=2048, temporary=True) as ring:
        assert ring.schema == schema
        with ring.journal(tmp_path), ring.arrow_writer() as writer, ring.producer() as out:
            assert writer.write(pa.record_batch({"n": [3]})) == end
            out.wait_durable(end)
        with ring.journal(tmp_path) as journal:
            assert journal.durable == end + 1
    assert [b.to_pydict()["n"] for b in replay_batches(tmp_path)] == [[1, 2], [3]]


def test_no_ring_is_made_anew_beside_a_journal_that_writes(name: str, tmp_path: Path) -> None:
    """Its durable messages would have the numbers of the new ring's."""
    with shmring.create(name, slots=1024) as ring, ring.producer() as out:
        with ring.journal(tmp_path):
            out.push(b"one", durable=True)
            Path(ring.path).unlink()  # a cleaner of /dev/shm
            with pytest.raises(Locked, match=f"is open in process {os.getpid()}"):
                restore(tmp_path, name)
            out.push(b"two", durable=True)
        with restore(tmp_path, name, slots=1024, temporary=True) as new:
            assert new.claimed == ring.claimed


def test_a_segment_that_is_a_link_to_nothing_is_damage(ring: shmring.Ring, tmp_path: Path) -> None:
    with ring.journal(tmp_path), ring.producer() as out:
        out.push(b"one", durable=True)
    (segment,) = tmp_path.glob("*.journal")
    segment.unlink()
    segment.symlink_to("elsewhere")
    with pytest.raises(Damaged, match=f"{segment}: this link leads to no file"):
        verify(tmp_path)


def test_a_second_journal_of_a_ring_is_refused(ring: shmring.Ring, tmp_path: Path) -> None:
    with ring.journal(tmp_path / "a"):
        with pytest.raises(SecondConsumer, match=f"runs already in process {os.getpid()}"):
            ring.journal(tmp_path / "b")
        with pytest.raises(Locked):
            ring.journal(tmp_path / "a")


def test_replay_into_the_ring_that_is_journalled_ends(ring: shmring.Ring, tmp_path: Path) -> None:
    with ring.journal(tmp_path, segment_bytes=1), ring.producer() as out:
        for number in range(3):
            out.push(b"%d" % number, durable=True)
        again: list[bytes] = []
        for message in replay(tmp_path):
            again.append(bytes(message.data))
            assert len(again) <= 3, "the replay reads what it has pushed"
            out.push(message.data, durable=True)
        assert again == [b"0", b"1", b"2"]
        assert stored(tmp_path) == again * 2


def test_retention_of_another_type_is_refused_before_anything_is_written(
    ring: shmring.Ring, tmp_path: Path
) -> None:
    with pytest.raises(TypeError, match="retention must be a Retention, not 1024"):
        ring.journal(tmp_path / "a", retention=1024)  # pyright: ignore[reportArgumentType]
    assert list(tmp_path.iterdir()) == []


def test_messages_that_were_never_journalled_are_a_gap(ring: shmring.Ring, tmp_path: Path) -> None:
    with ring.producer() as out:
        with ring.journal(tmp_path):
            out.push(b"a", durable=True)
        ring.drop_branch("journal")
        for _ in range(3000):
            out.push(b"lost")
        with pytest.raises(JournalGap, match="allow_gap"):
            ring.journal(tmp_path)
        with ring.journal(tmp_path, allow_gap=True):
            out.push(b"b", durable=True)
        with ring.journal(tmp_path):
            out.push(b"c", durable=True)  # a journal goes on behind a gap that it was told of
    with pytest.raises(JournalGap, match=r"lacks the sequences 1 to \d+"):
        stored(tmp_path)
    found = [bytes(m.data) for m in replay(tmp_path, allow_gap=True)]
    assert (found[0], *found[-2:]) == (b"a", b"b", b"c")
    assert verify(tmp_path, allow_gap=True).messages == len(found) < 3000


def test_a_new_directory_beside_another_journal_s_is_a_gap(
    ring: shmring.Ring, tmp_path: Path
) -> None:
    with ring.producer() as out:
        with ring.journal(tmp_path / "a"):
            out.push_many([b"1", b"2", b"3"], durable=True)
        with pytest.raises(JournalGap, match=r"up to 2 already.*allow_gap=True"):
            ring.journal(tmp_path / "b")
        with ring.journal(tmp_path / "a"):
            out.push(b"4", durable=True)
        with ring.journal(tmp_path / "b", allow_gap=True):
            out.push(b"5", durable=True)
    assert stored(tmp_path / "b") == [b"5"]


def test_what_is_no_journal_is_refused_in_our_words(ring: shmring.Ring, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"")
    uses = (lambda path: list(replay(path)), verify, truncate, restore)
    for use in uses:
        with pytest.raises(RingNotFound, match="holds no journal"):
            use(tmp_path)
        with pytest.raises(RingNotFound, match=f"there is no directory {tmp_path}/none; "):
            use(tmp_path / "none")
        with pytest.raises(NotARing, match="file is a file"):
            use(file)
    with ring.producer() as out, ring.journal(tmp_path / "deeper"):
        out.push(b"x", durable=True)
    (tmp_path / "empty").mkdir()
    with pytest.raises(RingNotFound, match="no journal, but these directories in it do: deeper;"):
        list(replay(tmp_path))
    with pytest.raises(NotARing, match="file is a file"):
        ring.journal(file)


# CHANGE: edit this for a new option of a journal
@pytest.mark.parametrize(
    ("option", "bad"),
    [
        ("segment_bytes", "1"),
        ("segment_bytes", 0),
        ("max_bytes", -1),
        ("consumed_by", "logic"),
        ("consumed_by", b"logic"),
        ("consumed_by", None),
        ("consumed_by", ("logic", "")),
        ("consumed_by", ("x" * 48,)),
        ("consumed_by", ("a\0b",)),
        ("consumed_by", (5,)),
    ],
)
def test_option_that_cannot_be_meant_so_is_refused(
    ring: shmring.Ring, tmp_path: Path, option: str, bad: Any
) -> None:
    use = partial(ring.journal, tmp_path) if option == "segment_bytes" else Retention
    with pytest.raises((TypeError, ValueError), match=f"{option}|a branch's name"):
        use(**{option: bad})


def test_retention_forgets_whole_segments(ring: shmring.Ring, tmp_path: Path, until: Until) -> None:
    keep = Retention(max_bytes=20_000, consumed_by=("logic",))
    with ring.producer() as out, ring.consumer("logic", start="earliest") as inp:
        with ring.journal(tmp_path, segment_bytes=4000, retention=keep):
            for _ in range(400):
                out.push(b"x" * 300, durable=True)
            assert stored(tmp_path, until=1) == [b"x" * 300]  # not consumed yet
            for _ in range(400):
                inp.pop(timeout=120)
            until(lambda: len(list(tmp_path.glob("*.journal"))) < 8, "forgetting")
        first = next(replay(tmp_path)).message_id
        assert first > 0
        with pytest.raises(JournalGap, match=f"begins at sequence {first}"):
            next(replay(tmp_path, from_=1))
        for bad in ("from_", "until"):
            with pytest.raises(ValueError, match=rf"{bad} must be from 0 to .*, not -1"):
                next(replay(tmp_path, **{bad: -1}))


def test_a_full_disk_holds_producers_up_and_loses_nothing(
    ring: shmring.Ring, tmp_path: Path, until: Until
) -> None:
    disk = SimulatedDisk(capacity=100_000)
    with Journal(ring, tmp_path, disk=disk) as journal, ring.producer() as out:
        with contextlib.suppress(shmring.Full):
            while True:
                out.push(bytes(300), timeout=0.5)
        until(lambda: journal.error is not None)
        assert isinstance(journal.error, shmring.NoSpace)
        disk.capacity = 1 << 30
        out.push(b"at last", durable=True)
        assert journal.error is None


def test_what_was_written_before_the_disk_was_full_is_durable(
    ring: shmring.Ring, tmp_path: Path
) -> None:
    disk = SimulatedDisk(capacity=20_000)
    large: list[int] = []

    def push_large() -> None:  # when the small one is written and not yet synced
        if not large and sum(len(file.now) for file in disk.names_now.values()) > 300:
            large.append(other.push(bytes(30_000)))

    disk.on_step = push_large
    with (
        ring.producer() as out,
        ring.producer() as other,
        Journal(ring, tmp_path, disk=disk) as journal,
    ):
        small = out.push(bytes(300))
        out.wait_durable(small, timeout=120)
        assert isinstance(journal.error, shmring.NoSpace)
        disk.capacity = 1 << 30
        out.wait_durable(large[0], timeout=120)


def test_a_forked_child_leaves_the_journal_to_its_parent(
    ring: shmring.Ring, tmp_path: Path, in_child: Callable[..., None]
) -> None:
    with ring.journal(tmp_path) as journal, ring.producer() as out:

        def child() -> None:
            journal.close()
            assert not journal.running
            assert journal.wait(120)

        in_child(child)
        out.push(b"x", durable=True)
        assert journal.running
    assert stored(tmp_path) == [b"x"]


def test_the_files_have_the_mode_of_the_ring(ring: shmring.Ring, tmp_path: Path) -> None:
    with ring.journal(tmp_path, segment_bytes=1000), ring.producer() as out:
        for _ in range(10):
            out.push(bytes(300), durable=True)
    modes = {path.stat().st_mode & 0o777 for path in tmp_path.glob("*.journal")}
    assert modes == {0o600}


@pytest.mark.slow
@pytest.mark.parametrize("nbytes", [300, pytest.param(100_000, marks=pytest.mark.long)])
def test_a_reader_keeps_up_with_a_journal_that_forgets(
    ring: shmring.Ring, tmp_path: Path, thread: RunThread, until: Until, nbytes: int
) -> None:
    """Replays run all the time while segments are written and removed."""
    replayed = threading.Event()
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            with contextlib.suppress(FileNotFoundError, JournalGap):
                before = None
                for message in replay(tmp_path):
                    number = int.from_bytes(message.data[:8], "little")
                    assert before is None or number == before + 1
                    assert bytes(message.data[8:]) == bytes([number % 251]) * (nbytes - 8)
                    before = number
                replayed.set()

    keep = Retention(max_bytes=20 * nbytes)
    with ring.journal(tmp_path, segment_bytes=5 * nbytes, retention=keep), ring.producer() as out:
        reader = thread(read)
        for number in range(1000):
            out.push(number.to_bytes(8, "little") + bytes([number % 251]) * (nbytes - 8))
        out.wait_durable(ring.claimed - 1)
        until(lambda: replayed.is_set() or not reader.is_alive())
        stop.set()
        reader.outcome()
    assert replayed.is_set()


def _remove_all(folder: Path) -> None:
    shutil.rmtree(folder)


def _unlink_the_newest(folder: Path) -> None:
    max(folder.glob("*.journal"), key=lambda path: path.name).unlink()


def _unlink_one_between(folder: Path) -> None:
    sorted(folder.glob("*.journal"))[1].unlink()


def _make_anew(folder: Path) -> None:
    folder.rename(folder.with_name("before"))
    folder.mkdir()


@pytest.mark.parametrize(
    "change", [_remove_all, _unlink_the_newest, _unlink_one_between, _make_anew]
)
@pytest.mark.parametrize("idle", [False, True])
def test_a_journal_whose_files_have_gone_stops_and_acknowledges_nothing(
    ring: shmring.Ring, tmp_path: Path, until: Until, change: Callable[[Path], None], idle: bool
) -> None:
    folder = tmp_path / "journal"
    journal = ring.journal(folder, segment_bytes=4096)
    with ring.producer() as out:
        for _ in range(40):
            out.push(bytes(300), durable=True)
        change(folder)
        if idle or change is _unlink_one_between:  # the next sync need not notice it
            until(lambda: not journal.running)
        with pytest.raises(NotDurable):
            out.push(b"after", durable=True)
    with pytest.raises(Damaged, match=rf"{folder}.* was removed or replaced"):
        journal.close()
    branch = next(b for b in ring.branches() if b["name"] == "journal")
    assert branch["released"] <= ring.claimed


def test_the_oldest_segments_may_be_removed_by_hand(
    ring: shmring.Ring, tmp_path: Path, until: Until
) -> None:
    with ring.journal(tmp_path, segment_bytes=4096) as journal, ring.producer() as out:
        for _ in range(40):
            out.push(bytes(300), durable=True)
        for path in sorted(tmp_path.glob("*.journal"))[:2]:
            path.unlink()
        until(lambda: len(journal._log._kept) == len(list(tmp_path.glob("*.journal"))) - 1)
        out.push(b"after", durable=True)


@pytest.mark.parametrize("count", [47, 48])
def test_as_many_separate_leases_as_there_may_be_are_taken_over(
    ring: shmring.Ring, tmp_path: Path, child: RunChild, count: int
) -> None:
    """A dead consumer of the journal's branch had them on lease, with others in between."""
    ring.journal(tmp_path).close()
    with ring.producer() as out:
        for i in range(2 * count):
            out.push(b"%d" % i)
        dead = child(
            """
            import sys, shmring
            with shmring.attach(sys.argv[1]).consumer("journal") as inp:
                kept = []
                for i in range(2 * int(sys.argv[2])):
                    lease = inp.lease()
                    if i % 2:
                        lease.release()
                    else:
                        kept.append(lease)
                print("ready")
                sys.stdin.read()
            """,
            ring.name,
            count,
        )
        assert dead.line() == "ready"
        dead.kill()
        with ring.journal(tmp_path):
            out.push(b"last", durable=True)
    kept = [b"%d" % i for i in range(0, 2 * count, 2)]
    assert stored(tmp_path) == [*kept, b"last"]
