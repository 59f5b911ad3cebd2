"""``shmring produce``: lines, Parquet or made-up messages into a ring."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import click

import shmring
from shmring._shmring import SLOT_BYTES
from shmring.cli.options import (
    Number,
    Place,
    binary_count,
    branch_names,
    count,
    json_option,
    ring_argument,
    slots_option,
)
from shmring.cli.output import Meter, emit, wants_json
from shmring.extras import pyarrow

if TYPE_CHECKING:
    import pyarrow as pa

DEFAULT_BRANCH = "default"

_AT_ONCE = 256  # messages of one push, so that a small ring need not be empty for it
_READ = 1 << 16


class Pushing(NamedTuple):
    """How messages go into the ring."""

    rate: float | None
    timeout: float | None
    end: bool


@click.command()
@ring_argument
@click.option("--parquet", metavar="FILE", help="Send a Parquet file as Arrow batches.")
@click.option("--generate", type=count, metavar="N", help="Send N made-up messages.")
@click.option(
    "--size",
    type=binary_count,
    metavar="BYTES",
    help=f"Of a made-up message.  [default: {SLOT_BYTES}]",
)
@click.option(
    "--branch",
    metavar="NAME",
    shell_complete=branch_names,
    help=f'Make this branch first, to hold what comes. ["{DEFAULT_BRANCH}" if there is none yet]',
)
@click.option("--end", is_flag=True, help="Push an end marker behind it all.")
@click.option(
    "--rate",
    type=Number(0, 1e9, min_open=True),
    metavar="N",
    help="Messages (or batches) a second at most.",
)
@click.option(
    "--timeout",
    type=Number(0),
    metavar="SECONDS",
    help="Give up if the ring stays full for so long; the default waits for ever.",
)
@slots_option
@json_option
def produce(
    place: Place,
    parquet: str | None,
    generate: int | None,
    size: int | None,
    branch: str | None,
    slots: int | None,
    **pushing: Any,
) -> None:
    """Push messages into a ring: the lines of stdin, unless told otherwise.

    The ring is made if it is not there. A ring without a branch gets one, so that nothing is lost
    before `shmring consume` comes.
    """
    how = Pushing(**pushing)
    if parquet is not None and generate is not None:
        raise click.UsageError("give one of --parquet and --generate")
    if size is not None and (generate is None or size == 0):
        raise click.UsageError("--size is for --generate, and at least 1")
    # The source comes first: without one no ring is made.
    batches = None if parquet is None else parquet_batches(parquet)
    if generate is None:
        messages = lines(sys.stdin.buffer)
    else:
        messages = generated(generate, size or SLOT_BYTES)
    schema = None if batches is None else batches.schema
    with place.open(slots=slots, schema=schema)[0] as ring:
        if branch is not None or not ring.branches():
            ring.subscribe(branch or DEFAULT_BRANCH, start="earliest")
        if batches is not None:
            meter = _push_batches(ring, batches, how)
        else:
            meter = _push_messages(ring, messages, how)
    if wants_json():
        emit(meter.summary())


class Pace:
    """Keeps to a rate."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._begun = time.monotonic()
        self._sent = 0
        #: messages to push at once: what is due within 10 ms
        self.at_once = _AT_ONCE if rate is None else max(1, min(_AT_ONCE, int(rate / 100)))

    def sent(self, messages: int) -> None:
        """Wait until the next ones are due."""
        if self._rate is None:
            return
        self._sent += messages
        time.sleep(max(0.0, self._begun + self._sent / self._rate - time.monotonic()))


def _push_messages(ring: shmring.Ring, messages: Iterator[list[bytes]], how: Pushing) -> Meter:
    pace = Pace(how.rate)
    with ring.producer("shmring produce") as out, Meter("produced") as meter:
        for rows in messages:
            for first in range(0, len(rows), pace.at_once):
                part = rows[first : first + pace.at_once]
                short = max(map(len, part)) <= SLOT_BYTES
                for run in [part] if short else [[row] for row in part]:
                    if len(run) > 1:
                        out.push_many(run, timeout=how.timeout)
                    else:
                        out.push(run[0], timeout=how.timeout)
                    meter.add(len(run), sum(map(len, run)))
                pace.sent(len(part))
        if how.end:
            out.push_end(timeout=how.timeout)
    return meter


def _push_batches(ring: shmring.Ring, source: Batches, how: Pushing) -> Meter:
    pace = Pace(how.rate)
    meter = Meter("produced", unit="rows")
    with ring.arrow_writer(source.schema, name="shmring produce") as out, meter:
        meter.more["batches"] = 0
        for batch in source.batches:
            out.write(batch, timeout=how.timeout)
            meter.more["batches"] += 1
            meter.add(batch.num_rows, batch.nbytes)
            pace.sent(1)
        if how.end:
            out.end(timeout=how.timeout)
    return meter


def lines(file: Any) -> Iterator[list[bytes]]:
    """Messages that end with a newline, which the last one may lack; as soon as they are there."""
    begun: list[bytes] = []
    for read in iter(lambda: file.read1(_READ), b""):
        whole, found, rest = read.rpartition(b"\n")
        if found:
            yield b"".join((*begun, whole)).split(b"\n")
            begun = [rest]
        else:
            begun.append(rest)
    last = b"".join(begun)
    if last:
        yield [last]


def generated(messages: int, nbytes: int) -> Iterator[list[bytes]]:
    """Messages of a fixed size: their number, and dots."""
    for first in range(0, messages, 1024):
        numbers = range(first, min(first + 1024, messages))
        yield [(b"%d" % number).ljust(nbytes, b".")[:nbytes] for number in numbers]


class Batches(NamedTuple):
    """Record batches of one schema."""

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]


def parquet_batches(file: str) -> Batches:
    source: Any = pyarrow("parquet", "Parquet").ParquetFile(file)
    return Batches(source.schema_arrow, source.iter_batches(batch_size=65_536))
