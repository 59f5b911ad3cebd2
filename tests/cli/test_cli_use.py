"""The command line with invalid numbers, and with streams that take no output."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from functions import numbers
from programs import ended

import shmring
from shmring.cli import app
from shmring.sidecars import SidecarClient

# --- numbers that are none -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "check --age nan",
        "consume x --timeout nan",
        "exporter --interval inf",
        "journal run x y --max-age nan",
        "produce x --timeout nan",
        "sidecar m:f --max-wait-ms nan",
        "sidecar m:f --timeout nan",
        "top --interval inf",
    ],
)
def test_number_that_is_none_is_refused(line: str) -> None:
    said = CliRunner().invoke(app, line.split())
    assert said.exit_code == 2
    assert re.search(
        "Invalid value for '--.*': (nan is no number|inf is not in the range)", said.stderr
    )


# --- a stdout that takes nothing, and streams that are closed ------------------------------------


def consuming(ring: shmring.Ring, *options: str) -> list[str]:
    assert ring.name is not None
    command = [sys.executable, "-m", "shmring", "consume", ring.name]
    return [*command, "--until", "empty", *options]


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_consume_keeps_messages_that_stdout_does_not_take(
    ring: shmring.Ring, monkeypatch: pytest.MonkeyPatch, unbuffered: str
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    lines = [b"%d" % i for i in range(100)]
    with ring.producer() as out:
        ring.subscribe("default")
        out.push_many(lines)
    with open("/dev/full", "wb") as full:
        done = subprocess.run(consuming(ring), stdout=full, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (1, b"shmring: No space left on device\n")
    written = subprocess.run(consuming(ring), stdout=subprocess.PIPE, check=True).stdout
    assert written.splitlines() == lines


def test_messages_before_one_that_cannot_be_written_come_once(ring: shmring.Ring) -> None:
    no_time = pa.record_batch({"t": pa.array([2**62], pa.timestamp("s"))})
    ring.subscribe("default")
    with ring.producer() as out, ring.arrow_writer(no_time.schema) as writer:
        out.push_many([b"0", b"1", b"2"])
        writer.write(no_time)
        out.push(b"behind")
    first, again = (subprocess.run(consuming(ring), capture_output=True) for _ in range(2))
    assert (first.returncode, first.stdout) == (1, b"0\n1\n2\n")
    assert (again.returncode, again.stdout) == (1, b"")
    assert first.stderr == again.stderr != b""
    with ring.consumer("default") as inp:
        assert [inp.pop(timeout=0) for _ in range(2)][1] == b"behind"


def test_names_that_the_encoding_lacks_are_escaped(ring: shmring.Ring) -> None:
    ring.subscribe("übrig")
    arguments = [sys.executable, "-m", "shmring", "stat", str(ring.name)]
    done = ended(*arguments, env={**os.environ, "PYTHONIOENCODING": "ascii"}, check=True)
    assert "\\xfcbrig" in done.stdout


def test_rows_are_json_also_with_numbers_and_names_that_json_lacks(ring: shmring.Ring) -> None:
    numbers = pa.array([float("nan"), float("inf"), float("-inf"), 1.5])
    lists = pa.array([[float("nan"), 1.0], [], None, [None]], pa.list_(pa.float64()))
    whole = pa.array([1, 2, 3, 4])
    batch = pa.record_batch([numbers, whole, whole, lists], names=["a", "a_1", "a", "l"])
    ring.subscribe("default")
    with ring.arrow_writer(batch.schema) as writer:
        writer.write(batch)
    printed = subprocess.run(consuming(ring), stdout=subprocess.PIPE, check=True).stdout

    def refused(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    assert [json.loads(line, parse_constant=refused) for line in printed.splitlines()] == [
        {"a": "NaN", "a_1": 1, "a_2": 1, "l": ["NaN", 1.0]},
        {"a": "Infinity", "a_1": 2, "a_2": 2, "l": []},
        {"a": "-Infinity", "a_1": 3, "a_2": 3, "l": None},
        {"a": 1.5, "a_1": 4, "a_2": 4, "l": [None]},
    ]


def test_what_a_sidecars_function_prints_goes_nowhere_where_stdout_is_closed(name: str) -> None:
    shell = f'exec {sys.executable} -m shmring sidecar "$@" >&-'
    with subprocess.Popen(
        ["sh", "-c", shell, "sh", "functions:print_much", "--name", name],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        stderr=subprocess.PIPE,
    ) as server:
        try:
            assert server.stderr is not None
            assert b"is ready" in server.stderr.readline()
            with SidecarClient(name) as client:
                (answer,) = client.map([numbers(0)])
            assert answer == numbers(0)
        finally:
            server.terminate()


def closed(streams: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    shell = f'exec {sys.executable} -m shmring "$@" {streams}'
    return ended("sh", "-c", shell, "sh", *arguments, stdin=subprocess.DEVNULL)


@pytest.mark.parametrize(
    ("streams", "command", "status"),
    [
        (">&-", "ls", 1),
        (">&-", "stat RING --json", 1),
        (">&-", "consume RING --until empty", 1),
        (">&-", "--help", 1),
        ("<&-", "produce RING", 1),
        ("<&-", "ls", 0),
        (">&-", "produce RING", 0),
        ("2>&-", "ls", 0),
        ("<&- >&- 2>&-", "ls", 1),
        ("<&- >&- 2>&-", "drop-branch RING other", 0),
    ],
)
def test_closed_stream_is_an_error_for_who_needs_it(
    ring: shmring.Ring, streams: str, command: str, status: int
) -> None:
    assert ring.name is not None
    with ring.producer() as out:
        ring.subscribe("default")
        ring.subscribe("other")
        out.push(b"kept")
    said = closed(streams, *command.replace("RING", ring.name).split())
    heard = status == 1 and "2>&-" not in streams
    assert said.returncode == status
    assert said.stderr == ("shmring: Bad file descriptor\n" if heard else "")
    with ring.consumer("default") as inp:
        assert inp.pop(timeout=0) == b"kept"
