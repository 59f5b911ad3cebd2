"""The journal's files: every crash point on a simulated disk, every cut, every flipped byte."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from damage import flip
from simulated_disk import SimulatedDisk

from shmring.durable import replay, restore, truncate, verify
from shmring.durable.base.files import Disk, File
from shmring.durable.journal import log as journal_log
from shmring.durable.journal.log import (
    ENTRY,
    JournalLog,
    encode_segment,
    segment_names,
    segment_path,
)
from shmring.errors import Damaged, JournalGap, NoSpace, VersionMismatch

UUID = bytes(range(16))
SEEDS = range(int(os.environ.get("SHMRING_CRASH_SEEDS", "1")))
EACH = [*SEEDS, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(len(SEEDS), 6))]
Contents = list[tuple[int, bytes]]


def open_log(
    disk: Disk,
    directory: str = "/j",
    segment_bytes: int = 3000,
    uuid: bytes = UUID,
    **options: bool,
) -> JournalLog:
    return JournalLog(
        disk, directory, uuid=uuid, schema=b"", segment_bytes=segment_bytes, **options
    )


def append(log: JournalLog, rng: random.Random) -> Contents:
    """A record of one to three one-slot messages, sometimes behind an aborted claim."""
    first = log.end + (rng.random() < 0.2)
    messages = [(first + i, rng.randbytes(rng.randrange(301))) for i in range(rng.randint(1, 3))]
    write(log, messages)
    return messages


def write(log: JournalLog, messages: Contents) -> None:
    """A record of one-slot messages without gaps."""
    first = messages[0][0]
    entries = b"".join(ENTRY.pack(7, i, len(m), 0, 0) for i, (_, m) in enumerate(messages))
    slots = b"".join(m.ljust(300, b"\0") for _, m in messages)
    log.append(first, first + len(messages), entries, [slots], first * 300)


def contents(disk: Disk, directory: str = "/j") -> Contents:
    """Return the messages that a reader finds."""
    try:
        return [(m.message_id, bytes(m.data)) for m in replay(directory, disk=disk)]
    except FileNotFoundError:
        return []


class Workload:
    """Appends, syncs and forgets, and at every step reopens what a crash might leave.

    Parameters
    ----------
    forgets : forget what has been consumed, a few records behind the end
    rings : go on with another ring now and then, as after restore()
    """

    def __init__(self, seed: int, *, forgets: bool = False, rings: bool = False) -> None:
        self.rng = random.Random(seed)
        self.disk = SimulatedDisk()
        self.disk.on_step = self.check
        self.written: Contents = []
        self.pending: Contents = []
        self.durable = 0
        self.kept = 0
        self.checked = 0
        self.uuid = UUID
        self.forgets = forgets
        self.rings = rings

    def run(self) -> None:
        log = open_log(self.disk)
        for i in range(12):
            for _ in range(self.rng.randint(1, 3)):
                self.append(log)
            log.sync()
            self.durable = len(self.written)
            if self.forgets:
                consumed = self.written[max(0, self.durable - 8)][0]
                self.kept = max(0, self.durable - 8)
                log.forget(max_bytes=None, max_age=None, consumed=consumed)
            if self.rings and i % 3 == 2:
                log.close()
                self.uuid = bytes([i]) * 16
                log = open_log(self.disk, uuid=self.uuid)
        log.close()

    def append(self, log: JournalLog) -> None:
        # A crash may find what is being written before append() has returned.
        state = self.rng.getstate()
        self.pending = append(_Dry(log.end), self.rng)  # type: ignore[arg-type]
        self.rng.setstate(state)
        self.written += append(log, self.rng)
        self.pending = []

    def check(self) -> None:
        for image in self.disk.crashes(random.Random(self.disk.steps), 4):
            before = contents(image)
            log = open_log(image, uuid=self.uuid)
            found = contents(image)
            assert found == before
            self.compare(found)
            more = append(log, random.Random(1))
            log.sync()
            log.close()
            for again in image.crashes(random.Random(2), 1):
                open_log(again, uuid=self.uuid).close()
                assert contents(again) == found + more
            self.checked += 1

    def compare(self, found: Contents) -> None:
        """All that was synced and may not be forgotten, a prefix of the rest, and no hole."""
        everything = self.written + self.pending
        skipped = everything.index(found[0]) if found else self.durable
        assert skipped <= self.kept
        assert found == everything[skipped : skipped + len(found)]
        assert skipped + len(found) >= self.durable


class _Dry:
    """Takes an append and does nothing, to learn what it will write."""

    def __init__(self, end: int) -> None:
        self.end = end

    def append(self, *_: object) -> None:
        pass


@pytest.mark.crash
@pytest.mark.parametrize("arrangement", ["plain", "forgets", "rings", "both"])
@pytest.mark.parametrize("seed", EACH)
def test_a_crash_at_any_step_leaves_all_that_was_synced_and_a_prefix_of_the_rest(
    seed: int, arrangement: str
) -> None:
    workload = Workload(
        seed, forgets=arrangement in ("forgets", "both"), rings=arrangement in ("rings", "both")
    )
    workload.run()
    assert workload.checked > 100


def filled(directory: Path, records: int = 8, segment_bytes: int = 3000) -> Contents:
    log = open_log(Disk(), str(directory), segment_bytes)
    rng = random.Random(5)
    written: Contents = []
    for _ in range(records):
        written += append(log, rng)
        log.sync()
    log.close()
    return written


@pytest.mark.crash
def test_a_segment_cut_at_any_byte_is_a_shorter_journal(tmp_path: Path) -> None:
    written = filled(tmp_path / "whole", records=3, segment_bytes=1 << 20)
    segment = next((tmp_path / "whole").glob("*.journal"))
    data = segment.read_bytes()
    where = tmp_path / "cut"
    where.mkdir()
    lengths = set()
    for nbytes in range(len(data)):
        (where / segment.name).write_bytes(data[:nbytes])
        log = open_log(Disk(), str(where))
        log.close()
        found = contents(Disk(), str(where))
        assert found == written[: len(found)]
        lengths.add(len(found))
    assert len(lengths) == 4


def test_damage_before_what_was_known_to_be_on_disk_is_an_error_that_says_where(
    tmp_path: Path,
) -> None:
    filled(tmp_path, records=8, segment_bytes=1 << 20)
    segment = next(tmp_path.glob("*.journal"))
    data = segment.read_bytes()
    for at in range(0, len(data) * 3 // 4, 37):
        segment.write_bytes(data[:at] + bytes([data[at] ^ 255]) + data[at + 1 :])
        try:
            open_log(Disk(), str(tmp_path)).close()
        except (Damaged, VersionMismatch) as error:
            assert segment.name in str(error)  # noqa: PT017
        else:  # padding between the parts is nobody's
            assert contents(Disk(), str(tmp_path))


def _remove_one(first: Path, middle: Path, last: Path) -> None:
    middle.unlink()


def _cut_at_a_record(first: Path, middle: Path, last: Path) -> None:
    segment = log_segment(middle)
    next(segment.walk())
    os.truncate(middle, segment.offset)
    segment.close()


def log_segment(path: Path) -> journal_log.Segment:
    return journal_log.Segment(Disk(), str(path))


@pytest.mark.parametrize("harm", [_remove_one, _cut_at_a_record])
def test_a_hole_between_two_segments_is_a_gap_for_all_who_walk_them(
    tmp_path: Path, name: str, harm: Callable[[Path, Path, Path], None]
) -> None:
    filled(tmp_path, 20)
    numbers = segment_names(Disk(), str(tmp_path))
    paths = [tmp_path / f"{number:020d}.journal" for number in numbers]
    harm(paths[0], paths[1], paths[2])
    there = contents_across_gaps(tmp_path)
    begin = max(m for m, _ in there if m < numbers[2]) + 1
    hole = f"lacks the sequences {begin} to {numbers[2] - 1}:.*allow_gap=True"
    for walk in (
        verify,
        lambda path: list(replay(path)),
        lambda path: list(replay(path, from_=begin)),
        lambda path: restore(path, name),
        lambda path: open_log(Disk(), str(path)),
    ):
        with pytest.raises(JournalGap, match=hole):
            walk(tmp_path)
    assert len(list(replay(tmp_path, until=begin))) == sum(m < begin for m, _ in there)
    assert len(list(replay(tmp_path, from_=numbers[2]))) == sum(m >= numbers[2] for m, _ in there)
    assert verify(tmp_path, allow_gap=True).messages == len(there)
    restore(tmp_path, name, slots=1024, temporary=True, allow_gap=True).close()
    log = open_log(Disk(), str(tmp_path), allow_gap=True)
    write(log, [(log.end, b"more")])
    log.close()
    assert contents_across_gaps(tmp_path) == [*there, (there[-1][0] + 1, b"more")]


def contents_across_gaps(directory: Path) -> Contents:
    return [(m.message_id, bytes(m.data)) for m in replay(directory, allow_gap=True)]


def test_a_segment_under_the_name_of_another_is_damage_that_names_both(
    tmp_path: Path, name: str
) -> None:
    filled(tmp_path, 20)
    numbers = segment_names(Disk(), str(tmp_path))
    first, second = (tmp_path / f"{number:020d}.journal" for number in numbers[:2])
    first.rename(tmp_path / "aside")
    second.rename(first)
    (tmp_path / "aside").rename(second)
    wrong = (
        r"\d+.journal is the segment that begins at sequence \d+: rename it to \d+.journal, once"
    )
    for walk in (
        verify,
        lambda path: list(replay(path, allow_gap=True)),
        lambda path: restore(path, name),
        lambda path: open_log(Disk(), str(path), allow_gap=True),
    ):
        with pytest.raises(Damaged, match=wrong):
            walk(tmp_path)
    second.rename(tmp_path / "aside")
    with pytest.raises(Damaged, match=r"rename it to \d+.journal$"):
        verify(tmp_path)


def test_an_aborted_claim_between_two_segments_is_no_gap(tmp_path: Path) -> None:
    log = open_log(Disk(), str(tmp_path), segment_bytes=1)
    for first in (5, 8, 12):
        write(log, [(first, b"x"), (first + 1, b"y")])
    log.close()
    assert segment_names(Disk(), str(tmp_path)) == [5, 7, 10]
    assert verify(tmp_path).messages == 6
    open_log(Disk(), str(tmp_path)).close()


def test_truncate_cuts_at_the_damage_and_keeps_a_copy(tmp_path: Path) -> None:
    written = filled(tmp_path, records=20)
    names = sorted(tmp_path.glob("*.journal"))
    assert len(names) >= 3
    damaged = flip(names[1])
    with pytest.raises(Damaged, match=names[1].name):
        verify(tmp_path)
    good = [m for m in written if m[0] < truncate(tmp_path)]
    assert [(m.message_id, bytes(m.data)) for m in replay(tmp_path)] == good
    assert verify(tmp_path).messages == len(good)
    assert damaged == names[1].with_name(names[1].name + ".broken").read_bytes()
    assert names[2].with_name(names[2].name + ".broken").exists()
    open_log(Disk(), str(tmp_path)).close()


def test_truncating_again_keeps_the_earlier_copies(tmp_path: Path) -> None:
    filled(tmp_path)
    before: list[bytes] = []
    for _ in range(2):
        before.append(flip(max(tmp_path.glob("*.journal"))))
        truncate(tmp_path)
    kept = [path.read_bytes() for path in tmp_path.glob("*.broken")]
    assert all(data in kept for data in before)


# CHANGE: edit this for a new option of a journal
def test_forgetting_goes_by_size_age_and_what_was_consumed(tmp_path: Path) -> None:
    log = open_log(Disk(), str(tmp_path), segment_bytes=500)
    rng = random.Random(1)
    for _ in range(10):
        append(log, rng)
        log.sync()
    names = segment_names(Disk(), str(tmp_path))
    log.forget(max_bytes=1 << 30, max_age=3600, consumed=None)
    assert segment_names(Disk(), str(tmp_path)) == names
    log.forget(max_bytes=0, max_age=None, consumed=names[2])
    assert segment_names(Disk(), str(tmp_path)) == names[2:]
    log.forget(max_bytes=None, max_age=None, consumed=names[4])
    assert segment_names(Disk(), str(tmp_path)) == names[4:]
    log.forget(max_bytes=None, max_age=0, consumed=None)
    assert segment_names(Disk(), str(tmp_path)) == names[-1:]
    log.close()


def test_a_replay_before_the_next_writer_ends_at_a_torn_record(tmp_path: Path) -> None:
    written = filled(tmp_path, records=4, segment_bytes=1 << 20)
    (segment,) = tmp_path.glob("*.journal")
    data = bytearray(segment.read_bytes())
    data[-300:-100] = bytes(200)
    segment.write_bytes(data)
    found = contents(Disk(), str(tmp_path))
    assert found == written[: len(found)]
    assert 0 < len(found) < len(written)
    assert verify(tmp_path).messages == len(found)


def test_a_journal_inside_a_message_is_no_record_of_this_one(tmp_path: Path) -> None:
    """Its records stand at the right place and say that they had been on disk."""
    begun = len(encode_segment(UUID, 0, 0, b""))
    other = open_log(Disk(), str(tmp_path / "other"), uuid=bytes(16))
    for number in range(2):
        nbytes = other.append(number, number + 1, ENTRY.pack(0, 0, 0, 0, 0), [bytes(40)], 0)
        other.sync()
    other.close()
    (segment,) = (tmp_path / "other").glob("*.journal")
    inside = segment.read_bytes()[-nbytes:]
    log = open_log(Disk(), str(tmp_path))
    # The payload begins at a multiple of 64 because the slot does.
    log.append(0, 1, ENTRY.pack(0, 0, len(inside), 0, 0), [inside.ljust(300, b"\0")], 0)
    log.close()
    (segment,) = tmp_path.glob("*.journal")
    assert segment.read_bytes().index(inside) % 64 == 0
    flip(segment, begun + 8)  # the record around it is torn
    log = open_log(Disk(), str(tmp_path))
    assert (log.end, log.torn is None) == (0, False)
    log.close()


def test_a_new_ring_forgets_the_oldest_segments_of_the_one_before(tmp_path: Path) -> None:
    filled(tmp_path, records=20)
    names = segment_names(Disk(), str(tmp_path))
    assert len(names) > 2
    log = open_log(Disk(), str(tmp_path), uuid=bytes(16))
    log.forget(max_bytes=None, max_age=None, consumed=names[1])
    assert segment_names(Disk(), str(tmp_path)) == names[1:]
    log.forget(max_bytes=None, max_age=None, consumed=1 << 40)
    assert segment_names(Disk(), str(tmp_path)) == names[-1:]  # it says where to go on
    log.close()


def test_a_new_ring_counts_the_segments_of_the_one_before_once(tmp_path: Path) -> None:
    filled(tmp_path, records=20)
    names = segment_names(Disk(), str(tmp_path))
    nbytes = sum(Path(segment_path(str(tmp_path), name)).stat().st_size for name in names)
    log = open_log(Disk(), str(tmp_path), uuid=bytes(16))
    log.forget(max_bytes=nbytes, max_age=None, consumed=None)
    assert segment_names(Disk(), str(tmp_path)) == names
    log.close()


@pytest.mark.parametrize("reopens", [False, True])
def test_a_segment_larger_than_it_may_be_without_a_record_is_begun_once(reopens: bool) -> None:
    disk = SimulatedDisk()
    log = open_log(disk, segment_bytes=1)
    write(log, [(0, b"before")])
    log.sync()
    free = 500  # for a header, and for no record
    disk.capacity = sum(len(file.now) for file in disk.names_now.values()) + free
    for _ in range(2):
        with pytest.raises(NoSpace):
            write(log, [(1, b"behind")])
    if reopens:
        log.close()
        log = open_log(disk, segment_bytes=1)
    disk.capacity = 1 << 40
    write(log, [(1, b"behind")])
    log.sync()
    log.forget(max_bytes=None, max_age=None, consumed=1)
    assert contents(disk) == [(1, b"behind")]
    log.close()


def test_a_segment_that_is_begun_while_it_is_opened_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin(file: File) -> bool:
        newest.write_bytes(written)
        return was_begun(file)

    expected = filled(tmp_path)
    newest = max(tmp_path.glob("*.journal"))
    written = newest.read_bytes()
    newest.write_bytes(b"")
    was_begun = journal_log.was_begun
    monkeypatch.setattr(journal_log, "was_begun", begin)
    assert contents(Disk(), str(tmp_path)) == expected


def test_a_segment_that_was_never_begun_is_the_end_for_readers_too(tmp_path: Path) -> None:
    written = filled(tmp_path)
    end = verify(tmp_path).end
    for torn in (b"", b"SHMRJNL1", bytes(70)):
        Path(segment_path(str(tmp_path), end)).write_bytes(torn)
        assert contents(Disk(), str(tmp_path)) == written
        assert verify(tmp_path).end == end
    (tmp_path / "new").mkdir()
    Path(segment_path(str(tmp_path / "new"), 0)).write_bytes(b"")
    assert contents(Disk(), str(tmp_path / "new")) == []


class Times:
    """A wall clock that somebody sets, and the time that really passes; both in seconds."""

    CLOCK_BOOTTIME = object()

    def __init__(self) -> None:
        self.wall = 1_700_000_000.0
        self.passed = 5000.0

    def wait(self, seconds: float) -> None:
        self.wall += seconds
        self.passed += seconds

    def time_ns(self) -> int:
        return int(self.wall * 1e9)

    def clock_gettime_ns(self, _clock: object) -> int:
        return int(self.passed * 1e9)


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> Times:
    times = Times()
    monkeypatch.setattr(journal_log, "time", times)
    return times


def aging(disk: Disk) -> JournalLog:
    return open_log(disk, segment_bytes=1)  # a segment a record


def kept(disk: Disk) -> int:
    return len(segment_names(disk, "/j"))


def forget_old(log: JournalLog) -> None:
    log.forget(max_bytes=None, max_age=3600, consumed=None)


def append_synced(log: JournalLog) -> None:
    append(log, random.Random(1))
    log.sync()


@pytest.mark.parametrize("hours", [2, -2, 24 * 365])
def test_a_clock_that_jumps_and_comes_back_deletes_nothing_young(
    times: Times, hours: float, caplog: pytest.LogCaptureFixture
) -> None:
    disk = SimulatedDisk()
    log = aging(disk)
    for at in range(60):  # one a minute, while the clock is wrong for a while
        if at == 20:
            times.wall += hours * 3600
        if at == 23:
            times.wall -= hours * 3600
        append_synced(log)
        forget_old(log)
        times.wait(60)
    assert kept(disk) == 60
    assert sum("clock has jumped" in record.getMessage() for record in caplog.records) == 2
    for _ in range(30):
        times.wait(60)
        append_synced(log)
        forget_old(log)
    assert kept(disk) in (61, 62)  # an hour's, as before
    log.close()


@pytest.mark.parametrize(
    ("running", "closed"), [(0, 2), (0, -2), (2, -2), (-2, 2)], ids=lambda hours: f"{hours} hours"
)
def test_a_clock_that_jumps_about_a_restart_deletes_nothing_young(
    times: Times, running: float, closed: float
) -> None:
    """It jumps while no journal runs; or before, and comes back then."""
    disk = SimulatedDisk()
    log = aging(disk)
    for at in range(10):
        times.wall += running * 3600 if at == 9 else 0
        append_synced(log)
        times.wait(60)
    log.close()
    times.wall += closed * 3600
    log = aging(disk)
    append_synced(log)
    forget_old(log)
    assert kept(disk) == 11
    times.wait(3000)  # nine minutes and fifty
    forget_old(log)
    assert kept(disk) == 11
    for _ in range(15):
        times.wait(60)
        forget_old(log)
    assert kept(disk) == 1  # old segments go, whatever the wall clock says
    log.close()


def test_segments_that_a_jump_has_stamped_go_in_their_time_after_a_restart(times: Times) -> None:
    disk = SimulatedDisk()
    log = aging(disk)
    for jump in (0, 7200, -7200, -7200, 7200, 0):
        times.wall += jump
        append_synced(log)
        times.wait(60)
    log.close()
    log = aging(disk)
    forget_old(log)
    assert kept(disk) == 6
    times.wait(7200 + 3600)
    forget_old(log)
    assert kept(disk) == 1
    log.close()


def test_the_only_record_that_is_damaged_is_counted_as_torn(tmp_path: Path) -> None:
    filled(tmp_path, records=1)
    assert verify(tmp_path).torn == 0
    (segment,) = tmp_path.glob("*.journal")
    nbytes = segment.stat().st_size
    begin = len(encode_segment(UUID, 0, 0, b""))
    flip(segment, begin + 70)
    assert verify(tmp_path).torn == nbytes - begin
