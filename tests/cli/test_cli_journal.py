"""``shmring journal``: run, cat, verify, truncate and restore, as one calls them."""

from __future__ import annotations

import inspect
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from damage import flip
from programs import ended

import shmring
from shmring._shmring import KIND_END
from shmring.cli import app
from shmring.cli.journal import run
from shmring.durable import Journal, Retention, replay
from shmring.durable.base.files import Disk
from shmring.durable.journal.log import ENTRY, JournalLog

COMMAND = [sys.executable, "-m", "shmring", "journal"]


def call(*arguments: object) -> subprocess.CompletedProcess[str]:
    return ended(*COMMAND, *arguments, timeout=600)


def test_method_and_command_take_each_option_of_a_journal() -> None:
    taken = inspect.signature(Journal).parameters.keys() - {"ring", "path", "disk"}
    method = inspect.signature(shmring.Ring.journal).parameters.keys() - {"self", "path"}
    assert method == taken
    rules = {rule.name for rule in fields(Retention)}
    command = {str(option.name) for option in run.params} - {"ring", "directory", "json"}
    assert command == (taken - {"retention"}) | rules


@contextmanager
def running(ring: shmring.Ring, path: Path, *options: object) -> Iterator[subprocess.Popen[str]]:
    """`journal run`, from when it is ready on."""
    process = subprocess.Popen(
        [*COMMAND, "run", str(ring.name), str(path), *map(str, options), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()
        assert ready, process.communicate()[1]
        assert json.loads(ready)["event"] == "ready"
        yield process
    finally:
        process.kill()
        process.communicate()


def end(process: subprocess.Popen[str], number: signal.Signals) -> dict[str, object]:
    process.send_signal(number)
    output, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (0, "")
    found: dict[str, object] = json.loads(output)
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_run_journals_until_it_is_told_to_end(
    ring: shmring.Ring, tmp_path: Path, number: signal.Signals
) -> None:
    with running(ring, tmp_path) as process, ring.producer() as out:
        out.push_many([b"%d" % i for i in range(500)], durable=True)
        out.push(b"taken, but not waited for")
        found = end(process, number)
    assert found["event"] == "end"
    assert found["sequence"] == found["messages"] == len(list(replay(tmp_path)))
    assert [b["consumers"] for b in ring.branches()] == [0]


def test_a_run_that_was_killed_goes_on_where_it_was(ring: shmring.Ring, tmp_path: Path) -> None:
    with ring.producer() as out:
        for i in range(3):
            with running(ring, tmp_path):
                out.push(b"%d" % i, durable=True)
        out.push(b"between")
        with running(ring, tmp_path) as process:
            out.push(b"last", durable=True)
            end(process, signal.SIGTERM)
    assert call("cat", tmp_path).stdout.split() == ["0", "1", "2", "between", "last"]


def test_run_says_that_the_disk_is_not_to_be_had(ring: shmring.Ring, tmp_path: Path) -> None:
    with running(ring, tmp_path):
        second = call("run", ring.name, tmp_path)
    assert second.returncode == 1
    assert "is open in process" in second.stderr
    missing = call("run", "no-such-ring", tmp_path)
    assert missing.returncode == 1
    assert 'no ring "no-such-ring"' in missing.stderr


def test_cat_prints_what_is_asked_for(ring: shmring.Ring, tmp_path: Path) -> None:
    with ring.journal(tmp_path), ring.producer() as out:
        out.push_many([b"%d" % i for i in range(10)])
        out.push_end()
        out.push(b"\xff", durable=True)
    assert call("cat", tmp_path, "--from", 3, "--until", 6).stdout == "3\n4\n5\n"
    lines = call("cat", tmp_path, "--json", "--from", 9).stdout.splitlines()
    shown = [json.loads(line) for line in lines]
    assert [s["message_id"] for s in shown] == [9, 11]
    assert shown[0]["message"] == "9"
    assert shown[1]["message_base64"] == "/w=="
    assert all(s["time_ns"] for s in shown)


def test_cat_prints_a_line_for_each_row_of_a_batch(name: str, tmp_path: Path) -> None:
    schema = pa.schema({"n": pa.int64()})
    with (
        shmring.create(name, slots=1024, schema=schema, temporary=True) as ring,
        ring.journal(tmp_path),
        ring.arrow_writer() as writer,
        ring.producer() as out,
    ):
        writer.write(pa.record_batch({"n": [1, 2]}))
        out.wait_durable(ring.claimed - 1)
    assert call("cat", tmp_path).stdout == '{"n": 1}\n{"n": 2}\n'


def test_cat_writes_a_parquet_file(ring: shmring.Ring, name: str, tmp_path: Path) -> None:
    with ring.journal(tmp_path / "bytes"), ring.producer() as out:
        out.push_many([b"%d" % i for i in range(3)])
        out.push_end()
        out.push(b"\xff", durable=True)
    done = call("cat", tmp_path / "bytes", "--parquet", tmp_path / "bytes.parquet", "--from", 1)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    rows = pq.read_table(tmp_path / "bytes.parquet")
    assert rows["message_id"].to_pylist() == [1, 2, 4]
    assert rows["message"].to_pylist() == [b"1", b"2", b"\xff"]

    schema = pa.schema({"n": pa.int64()})
    with (
        shmring.create(f"{name}-b", slots=1024, schema=schema, temporary=True) as other,
        other.journal(tmp_path / "batches"),
        other.arrow_writer() as writer,
        other.producer() as out,
    ):
        for first in (1, 3):
            writer.write(pa.record_batch({"n": [first, first + 1]}))
        out.wait_durable(other.claimed - 1)
    call("cat", tmp_path / "batches", "--parquet", tmp_path / "batches.parquet")
    assert pq.read_table(tmp_path / "batches.parquet").to_pydict() == {"n": [1, 2, 3, 4]}
    nowhere = call("cat", tmp_path / "batches", "--parquet", tmp_path / "none" / "file")
    assert nowhere.returncode == 1
    assert "No such file or directory" in nowhere.stderr


def test_a_parquet_file_goes_where_its_name_leads_and_touches_no_other(
    ring: shmring.Ring, tmp_path: Path
) -> None:
    with ring.journal(tmp_path / "j"), ring.producer() as out:
        out.push(b"1", durable=True)
    folder = tmp_path / "files"
    folder.mkdir()
    target, link, other = folder / "target", folder / "link", folder / "link.part"
    target.write_bytes(b"old")
    target.chmod(0o640)
    link.symlink_to(target)
    other.write_bytes(b"somebody's")
    assert call("cat", tmp_path / "j", "--parquet", link).returncode == 0
    assert link.is_symlink()
    assert pq.read_table(target)["message"].to_pylist() == [b"1"]
    assert target.stat().st_mode & 0o777 == 0o640
    assert other.read_bytes() == b"somebody's"

    pipe = folder / "pipe"
    os.mkfifo(pipe)
    reading = subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE)
    assert call("cat", tmp_path / "j", "--parquet", pipe).returncode == 0
    assert pq.read_table(pa.BufferReader(reading.communicate()[0])).num_rows == 1
    assert sorted(each.name for each in folder.iterdir()) == ["link", "link.part", "pipe", "target"]


def test_a_parquet_file_is_for_one_schema(ring: shmring.Ring, tmp_path: Path) -> None:
    schema = pa.schema({"n": pa.int64()})
    with ring.journal(tmp_path / "j"), ring.producer() as out, ring.arrow_writer(schema) as writer:
        out.push(b"1")
        writer.write(pa.record_batch({"n": [1]}))
        out.wait_durable(ring.claimed - 1)
    failed = call("cat", tmp_path / "j", "--parquet", tmp_path / "file")
    assert failed.returncode == 1
    assert "a file holds batches of one schema, or messages" in failed.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["j"]


def test_verify_and_truncate_find_and_cut_damage(ring: shmring.Ring, tmp_path: Path) -> None:
    folder = tmp_path / "it's kept"
    with ring.journal(folder), ring.producer() as out:
        for i in range(20):
            out.push(b"%d" % i, durable=True)
    good = call("verify", folder, "--json")
    found = json.loads(good.stdout)
    assert (found["first"], found["end"], found["messages"]) == (0, 20, 20)
    assert 0 < found["oldest_ns"] <= found["newest_ns"]
    assert "Sequences 0 to 20, 20 messages in 20 records, 1 file," in call("verify", folder).stdout

    (segment,) = folder.glob("*.journal")
    flip(segment)
    bad = call("verify", folder)
    assert bad.returncode == 1
    command = shlex.join(["shmring", "journal", "truncate", str(folder)])
    assert f"is damaged; `{command}` cuts the journal there" in bad.stderr
    cut = json.loads(call("truncate", folder, "--json").stdout)["end"]
    assert 0 < cut < 20
    assert call("cat", folder).stdout.split() == [str(i) for i in range(cut)]
    assert call("truncate", folder).stdout == f"{folder} ends at sequence {cut} now\n"


def test_a_restored_ring_goes_on_with_its_journal(name: str, tmp_path: Path) -> None:
    with (
        shmring.create(name, slots=1024) as ring,
        ring.journal(tmp_path),
        ring.producer() as out,
    ):
        out.push(b"before", durable=True)
    shmring.unlink(name)
    restored = call("restore", tmp_path, name, "--slots", 2048, "--json")
    assert json.loads(restored.stdout)["first_sequence"] == 1
    try:
        with shmring.attach(name) as ring, running(ring, tmp_path), ring.producer() as out:
            assert out.push(b"after", durable=True) == 1
    finally:
        shmring.unlink(name)
    assert call("cat", tmp_path).stdout.split() == ["before", "after"]


def test_what_is_no_journal_is_said_to_be_none(tmp_path: Path) -> None:
    for command in ("cat", "verify", "truncate"):
        answer = call(command, tmp_path)
        assert answer.returncode == 1
        assert "holds no journal" in answer.stderr


def test_a_gap_is_told_in_the_words_of_the_command_line(ring: shmring.Ring, tmp_path: Path) -> None:
    with ring.producer() as out:
        with ring.journal(tmp_path / "a", segment_bytes=1):
            for number in b"123":
                out.push(b"%c" % number, durable=True)
        refused = call("run", ring.name, tmp_path / "b")
        assert (refused.returncode, refused.stdout) == (1, "")
        assert "has released the sequences up to 2 already" in refused.stderr
        assert "by --allow-gap" in refused.stderr
        with running(ring, tmp_path / "b", "--allow-gap"):
            out.push(b"4", durable=True)
    (tmp_path / "a" / f"{1:020d}.journal").unlink()
    for command in ("verify", "cat"):
        refused = call(command, tmp_path / "a")
        assert refused.returncode == 1
        assert "lacks the sequences 1 to 1:" in refused.stderr
        assert "by --allow-gap" in refused.stderr
        assert call(command, tmp_path / "a", "--allow-gap").returncode == 0
    assert call("cat", tmp_path / "a", "--allow-gap").stdout.split() == ["1", "3"]


def test_replay_that_ends_at_a_gap_says_how_to_push_no_message_twice(
    ring: shmring.Ring, name: str, tmp_path: Path
) -> None:
    with ring.producer() as out, ring.journal(tmp_path, segment_bytes=1):
        for number in b"123":
            out.push(b"%c" % number, durable=True)
    (tmp_path / f"{1:020d}.journal").unlink()
    with shmring.create(f"{name}-again", slots=1024, temporary=True) as again:
        failed = call("replay", tmp_path, str(again.name))
        assert failed.returncode == 1
        assert "lacks the sequences 1 to 1:" in failed.stderr
        assert failed.stderr.endswith("by --allow-gap; pushed up to message 0: add --from 1\n")
        options = ("--allow-gap", "--from", 1)
        assert call("replay", tmp_path, str(again.name), *options).returncode == 0
        with again.consumer("default") as inp:
            assert [inp.pop(timeout=0) for _ in range(again.claimed)] == [b"1", b"3"]


def test_replay_writes_more_schemas_than_a_ring_has_seats(
    ring: shmring.Ring, name: str, tmp_path: Path
) -> None:
    batches = [pa.record_batch({f"column {n % 3}": [n]}) for n in range(9)]
    with ring.producer() as out, ring.journal(tmp_path):
        for batch in batches:
            with ring.arrow_writer(batch.schema) as writer:
                writer.write(batch)
        out.push(b"last", durable=True)
    options = {"slots": 1024, "participants": 3, "temporary": True}
    with shmring.create(f"{name}-again", **options) as again:
        again.subscribe("default")
        done = call("replay", tmp_path, str(again.name))
        assert (done.returncode, done.stderr) == (0, "")
        with again.arrow_reader("default") as reader:
            assert [reader.read(timeout=0) for _ in batches] == batches


class Clock:
    """Time that passes only in sleep()."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.mark.parametrize(("speed", "slept"), [("1", [2, 4]), ("4", [0.5, 1]), (None, [])])
def test_replay_gives_a_ring_its_messages_at_the_recorded_pace(
    ring: shmring.Ring,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    speed: str | None,
    slept: list[float],
) -> None:
    log = JournalLog(Disk(), str(tmp_path), uuid=bytes(16), schema=b"", segment_bytes=1 << 20)
    seconds, messages = (1, 3, 3, 7), (b"a", b"bb", b"", b"")
    entries = b"".join(
        ENTRY.pack(s * 10**9, i, len(m), KIND_END if s == 7 else 200 + i, 0)
        for i, (s, m) in enumerate(zip(seconds, messages, strict=True))
    )
    log.append(0, 4, entries, [b"".join(m.ljust(300) for m in messages)], 0)
    log.close()
    clock = Clock()
    monkeypatch.setattr(sys.modules["shmring.cli.journal"], "time", clock)
    options = [] if speed is None else ["--speed", speed]
    said = CliRunner().invoke(app, ["journal", "replay", str(tmp_path), str(ring.name), *options])
    assert said.exit_code == 0, said.output
    assert clock.slept == slept
    found = []
    with ring.consumer("default") as inp:
        for _ in range(3):
            with inp.lease(timeout=0) as message:
                found.append((bytes(message.data), message.kind))
        with pytest.raises(shmring.EndOfStream):
            inp.pop(timeout=0)
    assert found == [(b"a", 200), (b"bb", 201), (b"", 202)]


def test_replay_makes_batches_again(name: str, tmp_path: Path) -> None:
    batch = pa.record_batch({"n": [1, 2, 3]})
    with shmring.create(name, slots=1024, schema=batch.schema, temporary=True) as ring:
        with ring.journal(tmp_path), ring.arrow_writer() as writer, ring.producer() as out:
            writer.write(batch)
            writer.end()
            out.wait_durable(ring.claimed - 1)
        ring.drop_branch("journal")
        assert call("replay", tmp_path, name).returncode == 0
        with ring.arrow_reader("default") as reader:
            assert list(reader) == [batch]
