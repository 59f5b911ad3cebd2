"""Nothing that was committed is missing or double, whatever is killed and whenever.

    python spark_examples/durable_demo.py --rounds 5

Four producers push numbered messages with durable=True through a ring whose journal runs in a
process of its own; a reader stands behind the journal. In the middle of it everything is killed
with SIGKILL and the ring is removed, as if the machine had lost its memory. The ring is made again
from the journal, each producer looks into the journal for its last number and goes on behind it,
and in the end the journal is read and compared with what the producers had been told.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

import shmring
from shmring.durable import replay, restore, verify

PRODUCERS = 4
console = Console()


def produce(name: str, directory: Path, producer: int, first: int) -> None:
    """Push numbers; note each one in a file when it is on disk, and not before."""
    with (
        open(directory / f"told-{producer}", "ab", buffering=0) as told,
        shmring.attach(name) as ring,
        ring.producer(f"producer {producer}") as out,
    ):
        number = first
        while True:
            out.push(b"%d %d" % (producer, number), durable=True)
            told.write(b"%d\n" % number)
            number += 1


def read(name: str, directory: Path) -> None:
    """The business logic: sees a message when it is on disk, and notes which it has seen."""
    with (
        open(directory / "seen", "ab", buffering=0) as seen,
        shmring.attach(name) as ring,
        ring.consumer("logic", start="earliest", after="journal") as inp,
    ):
        while True:
            with inp.lease() as message:
                seen.write(b"%d %s\n" % (message.message_id, bytes(message.data)))


def numbers(journal: Path) -> list[tuple[int, int, int]]:
    """Messages in the journal: message_id, producer, number."""
    if not any(journal.glob("*.journal")):
        return []
    found: list[tuple[int, int, int]] = []
    for message in replay(journal):
        producer, number = map(int, bytes(message.data).split())
        found.append((message.message_id, producer, number))
    return found


def run_and_kill(name: str, directory: Path, seconds: float) -> int:
    """One life of all processes; how many messages the journal has after it."""
    journal = directory / "journal"
    last = dict.fromkeys(range(PRODUCERS), -1)
    for _, producer, number in numbers(journal):
        last[producer] = number
    processes: list[subprocess.Popen[bytes]] = []

    def start(*command: object, ready: bool = False) -> None:
        pipe = subprocess.PIPE if ready else None
        processes.append(subprocess.Popen([sys.executable, *map(str, command)], stdout=pipe))
        if ready:
            output = processes[-1].stdout
            assert output is not None
            assert output.readline(), "the journal did not start"

    begun = any(journal.glob("*.journal"))
    with restore(journal, name) if begun else shmring.create(name):
        try:
            start("-m", "shmring", "journal", "run", name, journal, "--json", ready=True)
            start(__file__, "--read", name, directory)
            for producer in range(PRODUCERS):
                start(__file__, "--produce", name, directory, producer, last[producer] + 1)
            while not any(journal.glob("*.journal")):  # a busy machine begins late
                time.sleep(0.01)
            time.sleep(seconds)
        finally:
            random.shuffle(processes)
            for process in processes:
                process.kill()
            for process in processes:
                process.wait()
                if process.stdout is not None:
                    process.stdout.close()
            shmring.unlink(name)
    return len(numbers(journal))


def check(directory: Path) -> Table:
    """Compare the journal with what producers were told and the reader saw.

    Raises
    ------
    SystemExit : something is missing, double or out of order
    """
    found = numbers(directory / "journal")
    problems: list[str] = []
    ids = [message_id for message_id, _, _ in found]
    if ids != sorted(set(ids)):
        problems.append("message_ids are double or out of order")
    table = Table("producer", "told that it is on disk", "in the journal", "missing", "double")
    for producer in range(PRODUCERS):
        own = [number for _, who, number in found if who == producer]
        told = {int(line) for line in (directory / f"told-{producer}").read_text().split()}
        missing = len(told - set(own)) + len(set(range(len(own))) - set(own))
        double = len(own) - len(set(own))
        if missing or double or own != sorted(own):
            problems.append(f"producer {producer}: {missing} missing, {double} double")
        table.add_row(*map(str, (producer, len(told), len(own), missing, double)))
    journalled = {b"%d %d %d" % each for each in found}
    with open(directory / "seen", "rb") as file:
        seen = {line.rstrip(b"\n") for line in file if line.endswith(b"\n")}
    if seen - journalled:
        problems.append(f"the reader saw {len(seen - journalled)} messages that are not on disk")
    if problems:
        raise SystemExit("; ".join(problems))
    return table


def demo(rounds: int, seconds: float) -> None:
    """Kill, restart, count."""
    name = f"durable-demo-{os.getpid()}"
    with tempfile.TemporaryDirectory(prefix="shmring-durable-") as temporary:
        directory = Path(temporary)
        for file in ("seen", *(f"told-{producer}" for producer in range(PRODUCERS))):
            (directory / file).touch()
        for number in range(1, rounds + 1):
            lived = seconds * random.uniform(0.5, 1.5)
            count = run_and_kill(name, directory, lived)
            console.print(
                f"life {number}: everything killed with -9 after {lived:.1f} s and the ring "
                f"removed; the journal has {count:,} messages"
            )
        console.print(check(directory))
        journal = directory / "journal"
        found = verify(journal)
        with contextlib.closing(restore(journal, name)) as ring:
            console.print(
                f"{found.messages:,} messages in {found.records:,} records: every one that a "
                f"producer was told of is there, once, in order. A ring made again from the "
                f"journal goes on at sequence {ring.info.first_sequence}."
            )
        shmring.unlink(name)


def main() -> None:
    """Run the demo, or one of its processes."""
    if sys.argv[1:2] == ["--produce"]:
        name, directory, producer, first = sys.argv[2:]
        produce(name, Path(directory), int(producer), int(first))
    elif sys.argv[1:2] == ["--read"]:
        read(sys.argv[2], Path(sys.argv[3]))
    else:
        parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
        parser.add_argument("--rounds", type=int, default=5, help="how often all is killed")
        parser.add_argument("--seconds", type=float, default=2.0, help="length of a life, about")
        options = parser.parse_args()
        demo(options.rounds, options.seconds)


if __name__ == "__main__":
    main()
