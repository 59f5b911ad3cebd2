"""C, Python and Java: each as the producer and as the consumer of each other, bytes and Arrow."""

from __future__ import annotations

import gzip
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest
from java_programs import Java, beside, check, message

import shmring

GOLDEN = Path(__file__).parents[1] / "golden/ring"
SCHEMA = pa.schema([("number", pa.int64()), ("text", pa.string())])
ROWS = 100
Command = Callable[[str, str, str, object, int], list[str]]


def batch(k: int) -> pa.RecordBatch:
    """Numbers that go on from batch to batch, and texts of which every tenth is null."""
    numbers = pa.array(range(k * ROWS, (k + 1) * ROWS), pa.int64())
    texts = pa.array([None if i % 10 == 0 else f"s{i}" for i in range(ROWS)])
    return pa.record_batch([numbers, texts], schema=SCHEMA)


def produce(ring: shmring.Ring, kind: str, count: int) -> None:
    if kind == "bytes":
        with ring.producer("python") as producer:
            for i in range(count):
                producer.push(message(i), timeout=600)
            producer.push_end()
    else:
        with ring.arrow_writer() as writer:
            for k in range(count):
                writer.write(batch(k), timeout=600)
            writer.end()


def consume(ring: shmring.Ring, kind: str, count: int) -> None:
    if kind == "bytes":
        with ring.consumer("pair", start="earliest") as consumer:
            assert list(consumer) == [message(i) for i in range(count)]
    else:
        with ring.arrow_reader("pair", start="earliest", timeout=600) as reader:
            assert list(reader) == [batch(k) for k in range(count)]


@pytest.fixture
def command(java: Java, c_peer: Path) -> Command:
    """The command of one side of a pair; C knows of bytes alone."""

    def command(language: str, act: str, kind: str, path, count: int) -> list[str]:
        if language == "java":
            return java("Peer", act, kind, path, count)
        return [str(c_peer), act, str(path), str(count)]

    return command


# Pairs of each language with each other language.
@pytest.mark.parametrize(
    ("producer", "consumer", "kind"),
    [
        ("c", "python", "bytes"),
        ("python", "java", "bytes"),
        ("java", "c", "bytes"),
        ("python", "java", "arrow"),
        ("java", "python", "arrow"),
    ],
)
def test_what_one_language_writes_each_other_reads(
    name: str, command: Command, producer: str, consumer: str, kind: str
) -> None:
    schema, count = (SCHEMA, 50) if kind == "arrow" else (None, 3000)
    # Smaller than what goes through it: both sides wait for each other.
    with shmring.create(name, slots=1024, schema=schema, temporary=True) as ring:
        ring.subscribe("pair", start="earliest")
        with ExitStack() as others:
            for language, act in ((producer, "produce"), (consumer, "consume")):
                if language != "python":
                    others.enter_context(beside(command(language, act, kind, ring.path, count)))
            if producer == "python":
                produce(ring, kind, count)
            if consumer == "python":
                consume(ring, kind, count)
        assert ring.branches()[0]["position"] == ring.claimed


# CHANGE: edit this for a new version of the layout
@pytest.mark.parametrize(
    ("language", "kind"),
    [("c", "bytes"), ("java", "bytes"), ("java", "arrow"), ("", "bytes"), ("", "arrow")],
)
def test_golden_ring_file_is_read(
    command: Command, tmp_path: Path, language: str, kind: str
) -> None:
    """tests/golden/ring/make.py wrote it."""
    file, count = tmp_path / "ring", 500 if kind == "bytes" else 5
    file.write_bytes(gzip.decompress((GOLDEN / f"{kind}-1.0.ring.gz").read_bytes()))
    if language:
        check(command(language, "consume", kind, file, count))
        return
    with shmring.attach(path=file) as ring:
        consume(ring, kind, count)


def test_java_sets_aside_what_was_delivered_too_often(name: str, java: Java) -> None:
    with (
        shmring.create(name, slots=1024, temporary=True) as ring,
        shmring.create(f"{name}.dead", slots=1024, temporary=True) as dead,
        ring.producer() as out,
        dead.consumer("letters") as letters,
    ):
        ring.subscribe("pair", start="earliest")
        for data in b"bad", b"good", b"worse", b"best":
            out.push(data, kind=99)
        check(java("Peer", "aside", "bytes", name, 3))
        assert ring.branches()[0]["released"] == ring.claimed
        for data in b"bad", b"worse":
            with letters.lease(timeout=0) as letter:
                assert (letter.data, letter.kind) == (data, 99)
        assert len(dead.participants()) == 1  # this process, as a consumer


def test_a_close_ends_the_waits_of_other_threads(name: str, java: Java) -> None:
    with shmring.create(name, slots=1024, temporary=True) as ring, ring.producer() as out:
        ring.subscribe("holds", start="earliest")
        out.push_many([b""] * 1024)
        check(java("Peer", "close", "bytes", name, 40))
        assert len(ring.participants()) == 1  # this process, as a producer


def test_branch_that_java_drops_is_gone_for_all(name: str, java: Java) -> None:
    with (
        shmring.create(name, slots=1024, temporary=True) as ring,
        ring.producer(when_full="raise") as out,
        ring.consumer("holds", start="earliest") as inp,
    ):
        out.push_many([b""] * 1024)
        check(java("Peer", "drop", "bytes", name, 3))
        assert ring.branches() == []
        out.push(b"goes on")
        with pytest.raises(shmring.BranchDropped):
            inp.pop(timeout=0)


def test_one_end_marker_ends_each_thread_of_each_process_once_a_run(name: str, java: Java) -> None:
    with shmring.create(name, slots=1024, temporary=True) as ring, ring.producer() as out:
        command = java("Peer", "runs", "bytes", name, 3)
        processes = [
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            for _ in range(2)
        ]
        try:
            lines = [[process.stdout.readline()] for process in processes if process.stdout]
            assert lines == [[b"ready\n"]] * 2, processes[0].communicate()[1].decode()
            for run in range(2):
                sent = [b"%d.%d" % (run, i) for i in range(100)]
                out.push_many(sent)
                out.push_end()
                got = [process.stdout.readline() for process in processes if process.stdout]
                assert sorted(b" ".join(got).split()) == sorted(sent)
            for process in processes:
                rest, errors = process.communicate(timeout=600)
                assert (process.returncode, rest) == (0, b""), errors.decode()
        finally:
            for process in processes:
                process.kill()
                process.communicate()
