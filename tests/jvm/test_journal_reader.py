"""Journals read by Java: the same as Python reads, and the same errors, whatever the files hold."""

from __future__ import annotations

import random
import shutil
import subprocess
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import shmring
from shmring.durable import Retention, replay
from shmring.durable.base.files import Disk
from shmring.durable.journal.log import JournalLog
from shmring.durable.journal.segments import ENTRY, segment_names, segment_path
from shmring.errors import Damaged, VersionMismatch

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "durable" / "journal"
ALL = 2**63 - 1
Ask = Callable[..., list[str]]


@pytest.fixture(scope="module")
def ask(java: Callable[..., list[str]]) -> Iterator[Ask]:
    """Asks a Java program; its answer, a line a message, or what it throws."""
    with subprocess.Popen(
        java("JournalCheck"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        answers = program.stdout

        def asked(*words: object) -> list[str]:
            print(*words, file=program.stdin, flush=True)
            lines = iter(answers.readline, "\n")
            found = []
            for line in lines:
                assert line, "the program has ended"
                found.append(line.rstrip("\n"))
            return found

        yield asked
        program.stdin.close()
        assert program.wait() == 0


def in_python(path: Path, from_: int = 0, until: int = ALL) -> list[str]:
    """What Python reads, and what it raises, as JournalCheck writes it."""
    lines = []
    try:
        for m in replay(path, from_=from_, until=until):
            data = bytes(m.data)
            lines.append(f"{m.message_id} {m.time} {m.kind} {len(data)} {zlib.crc32(data)}")
    except VersionMismatch as error:
        lines.append(f"VERSION {error}")
    except Damaged as error:
        lines.append(f"DAMAGED {error}")
    return lines


def in_java(ask: Ask, path: Path, from_: int = 0, until: int = ALL) -> list[str]:
    return [without_slots(line) for line in ask("read", from_, until, path)]


def without_slots(line: str) -> str:
    words = line.split(" ")
    return " ".join(words[:4] + words[5:]) if words[0].isdecimal() else line


def filled(
    path: Path, *, records: int = 12, segment_bytes: int = 4000, begin: int = 5
) -> list[int]:
    """A journal of messages of all sizes, with aborted claims between; their numbers."""
    rng = random.Random(records)
    log = JournalLog(
        Disk(), str(path), uuid=bytes(range(16)), schema=b"x" * 70, segment_bytes=segment_bytes
    )
    ids = []
    sequence = begin
    for _ in range(records):
        sequence += rng.random() < 0.3
        first, entries, payload = sequence, b"", b""
        for _ in range(rng.randint(1, 3)):
            data, shift = rng.randbytes(rng.randrange(900)), rng.choice((0, 4, 60))
            slots = max(1, -(-(len(data) + shift) // 300))
            kind = rng.choice((0, 0, 2, 7, 255))
            entries += ENTRY.pack(1000 + sequence, sequence - first, len(data), kind, shift)
            payload += (bytes(shift) + data).ljust(slots * 300, b"\0")
            ids.append(sequence)
            sequence += slots
        log.append(first, sequence, entries, [payload], first * 300)
        log.sync()
    log.close()
    return ids


def test_a_journal_of_version_1(ask: Ask) -> None:
    assert ask("read", 0, ALL, GOLDEN) == [
        f"10 1000 0 5 1 {zlib.crc32(b'first')}",
        f"12 2000 7 400 2 {zlib.crc32(b'x' * 400)}",
        "14 3000 2 0 1 0",
    ]
    assert ask("end", GOLDEN) == ["15"]


def test_every_part_of_a_journal_is_what_python_reads(ask: Ask, tmp_path: Path) -> None:
    ids = filled(tmp_path)
    assert len(segment_names(Disk(), str(tmp_path))) > 2
    assert in_java(ask, tmp_path) == in_python(tmp_path)
    (end,) = ask("end", tmp_path)
    for from_ in range(ids[0], int(end) + 1):
        assert in_java(ask, tmp_path, from_) == in_python(tmp_path, from_)
        assert in_java(ask, tmp_path, ids[0], from_) == in_python(tmp_path, ids[0], from_)


def test_a_segment_cut_at_any_byte_is_a_shorter_journal(ask: Ask, tmp_path: Path) -> None:
    filled(tmp_path / "whole", records=3, segment_bytes=1 << 20)
    (segment,) = (tmp_path / "whole").glob("*.journal")
    data = segment.read_bytes()
    where = tmp_path / "cut"
    where.mkdir()
    lengths = set()
    for nbytes in range(len(data)):
        (where / segment.name).write_bytes(data[:nbytes])
        found = in_java(ask, where)
        assert found == in_python(where)
        lengths.add(len(found))
    assert len(lengths) == 4


def test_a_flipped_byte_is_found_where_python_finds_it(ask: Ask, tmp_path: Path) -> None:
    """In the newest segment the end may be torn; in the one before it anything is damage."""
    filled(tmp_path / "whole")
    for number, answers in ((0, {"DAMAGED", "VERSION"}), (-1, {"DAMAGED", "VERSION"})):
        where = tmp_path / f"flipped{number}"
        shutil.copytree(tmp_path / "whole", where)
        segment = sorted(where.glob("*.journal"))[number]
        data = segment.read_bytes()
        errors = set()
        for at in range(0, len(data), 7):
            segment.write_bytes(data[:at] + bytes([data[at] ^ 255]) + data[at + 1 :])
            found, expected = in_java(ask, where), in_python(where)
            # A header is looked at when a read is planned: then there is nothing before the error.
            assert found == (expected if len(found) > 1 else expected[-1:]), (at, number)
            if found and not found[-1][0].isdecimal():
                errors.add(found[-1].split(" ")[0])
                assert segment.name in found[-1]
        assert errors == answers


def test_numbers_beyond_the_file_are_damage_and_not_memory(ask: Ask, tmp_path: Path) -> None:
    filled(tmp_path, records=2, segment_bytes=1 << 20)
    (segment,) = tmp_path.glob("*.journal")
    data = segment.read_bytes()
    record = 64 + 128  # behind the schema
    for offset, nbytes in ((16, 4), (record + 32, 8), (record + 44, 4), (record + 48, 4)):
        for value in (2 ** (8 * nbytes) - 1, 2 ** (8 * nbytes - 1), 2 ** (8 * nbytes - 1) - 1):
            number = value.to_bytes(nbytes, "little")
            segment.write_bytes(data[:offset] + number + data[offset + nbytes :])
            assert in_java(ask, tmp_path) == in_python(tmp_path)


def test_a_segment_that_was_never_begun_is_the_end(ask: Ask, tmp_path: Path) -> None:
    filled(tmp_path)
    whole = in_python(tmp_path)
    (end,) = ask("end", tmp_path)
    for torn in (b"", b"SHMRJNL1", bytes(70)):
        Path(segment_path(str(tmp_path), int(end))).write_bytes(torn)
        assert in_java(ask, tmp_path) == whole
        assert ask("end", tmp_path) == [end]


def test_what_is_no_journal_is_told(ask: Ask, tmp_path: Path) -> None:
    assert ask("read", 0, ALL, tmp_path) == []
    assert ask("end", tmp_path) == ["0"]
    (tmp_path / "other.journal").write_bytes(b"")
    (tmp_path / f"{9:09d}.journal").write_bytes(b"")
    (tmp_path / f"{10**20 - 1}.journal").write_bytes(b"")
    assert ask("read", 0, ALL, tmp_path) == []
    (missing,) = ask("read", 0, ALL, tmp_path / "missing")
    assert missing.startswith(f"NOT_FOUND {tmp_path}/missing holds no journal")
    (file,) = ask("read", 0, ALL, tmp_path / "other.journal")
    assert "is a file" in file


def test_a_link_to_nowhere_is_told_and_not_waited_for(ask: Ask, tmp_path: Path) -> None:
    filled(tmp_path)
    segment = sorted(tmp_path.glob("*.journal"))[1]
    segment.unlink()
    segment.symlink_to(tmp_path / "nowhere")
    (error,) = ask("read", 0, ALL, tmp_path)
    assert error == f"NOT_FOUND {segment} is a link to a file that is not there"


def test_a_segment_that_is_forgotten_once_it_was_planned(ask: Ask, tmp_path: Path) -> None:
    filled(tmp_path)
    first, *rest = sorted(tmp_path.glob("*.journal"))
    ask("plan", 0, ALL, tmp_path)
    first.unlink()
    (lost,) = ask("planned", tmp_path)
    assert lost.startswith("OVERRUN")
    assert "have been forgotten" in lost
    ask("plan", 0, ALL, tmp_path)
    shutil.copy(rest[1], rest[0])
    (other,) = ask("planned", tmp_path)
    assert other.startswith("NOT_FOUND")
    assert "was replaced by another one" in other


def test_a_journal_that_ends_before_what_is_wanted_of_it(ask: Ask, tmp_path: Path) -> None:
    ids = filled(tmp_path)
    (end,) = ask("end", tmp_path)
    *found, lost = ask("read", 0, int(end) + 1, tmp_path)
    assert len(found) == len(ids)
    assert f"the messages {end} to {end} are gone" in lost
    assert len(ask("read", 0, int(end), tmp_path)) == len(ids)


def test_how_far_so_many_messages_or_slots_reach(ask: Ask, tmp_path: Path) -> None:
    ids = filled(tmp_path)
    slots = {int(m[0]): int(m[4]) for m in map(str.split, ask("read", 0, ALL, tmp_path))}
    end = int(ask("end", tmp_path)[0])
    assert ask("reach", ids[0], ALL, ALL, ALL, tmp_path) == [str(end)]
    for i, begin in enumerate(ids):
        assert ask("reach", begin, ALL, 1, 1, tmp_path) == [str([*ids, end][i + 1])]
        assert ask("reach", begin, begin + 1, 5, 100, tmp_path) == [str(begin + 1)]
        later = ids[i:]
        three = later[3] if len(later) > 3 else end
        assert ask("reach", begin, ALL, 3, ALL, tmp_path) == [str(three)]
        wide = next((k for k in later[1:] if k + slots[k] - begin > 6), end)
        assert ask("reach", begin, ALL, ALL - 1, 6, tmp_path) == [str(wide)]
    assert ask("reach", end, ALL, 1, 1, tmp_path) == [str(end)]


def test_a_reader_keeps_up_with_a_journal_that_is_written_and_forgets(
    ask: Ask, ring: shmring.Ring, tmp_path: Path, thread: Callable[..., object]
) -> None:
    """What is read is always a run of the messages, whole."""

    def write() -> None:
        with ring.producer() as out:
            for number in range(20_000):
                out.push(number.to_bytes(8, "little") + bytes([number % 251]) * (number % 500))

    keep = Retention(max_bytes=60_000)
    with ring.journal(tmp_path, segment_bytes=15_000, retention=keep) as journal:
        writer = thread(write)
        reads = 0
        while writer.is_alive() or reads < 3:
            found = ask("read", 0, ALL, tmp_path)
            if found and found[-1].startswith("OVERRUN"):
                found.pop()
            numbers = []
            for line in found:
                message_id, _, _, nbytes, _, crc = map(int, line.split(" "))
                number = next(n for n in range(nbytes - 8, 20_000, 500) if fits(n, crc))
                numbers.append((message_id, number))
            assert [n for _, n in numbers] == [numbers[0][1] + i for i in range(len(numbers))]
            reads += bool(found)
        writer.outcome()
        assert journal.error is None


def fits(number: int, crc: int) -> bool:
    return zlib.crc32(number.to_bytes(8, "little") + bytes([number % 251]) * (number % 500)) == crc
