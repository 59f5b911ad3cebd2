"""``shmring produce``: lines, Parquet or made-up messages into a ring."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import click

import shmring
from shmring._shmring import SLOT_BYTES
from shmring.cli.options import (
    Number,
    Place,
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


@click.command()
@ring_argument
@click.option("--parquet", metavar="FILE", help="Send a Parquet file as Arrow batches.")
@click.option("--generate", type=count, metavar="N", help="Send N made-up messages.")
@click.option(
    "--branch",
    metavar="NAME",
    shell_complete=branch_names,
    help=f'Make this branch first, to hold what comes. ["{DEFAULT_BRANCH}" if there is none yet]',
)
@click.option("--end", is_flag=True, help="Push an end marker behind it all.")
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
    branch: str | None,
    end: bool,
    timeout: float | None,
    slots: int | None,
) -> None:
    """Push messages into a ring: the lines of stdin, unless told otherwise.

    The ring is made if it is not there. A ring without a branch gets one, so that nothing is lost
    before `shmring consume` comes.
    """
    if parquet is not None and generate is not None:
        raise click.UsageError("give one of --parquet and --generate")
    # The source comes first: without one no ring is made.
    batches = None if parquet is None else parquet_batches(parquet)
    messages = lines(sys.stdin.buffer) if generate is None else generated(generate)
    schema = None if batches is None else batches.schema
    with place.open(slots=slots, schema=schema)[0] as ring:
        if branch is not None or not ring.branches():
            ring.subscribe(branch or DEFAULT_BRANCH, start="earliest")
        if batches is not None:
            meter = _push_batches(ring, batches, end, timeout)
        else:
            meter = _push_messages(ring, messages, end, timeout)
    if wants_json():
        emit(meter.summary())


def _push_messages(
    ring: shmring.Ring, messages: Iterator[list[bytes]], end: bool, timeout: float | None
) -> Meter:
    with ring.producer("shmring produce") as out, Meter("produced") as meter:
        for rows in messages:
            for first in range(0, len(rows), _AT_ONCE):
                part = rows[first : first + _AT_ONCE]
                short = max(map(len, part)) <= SLOT_BYTES
                for run in [part] if short else [[row] for row in part]:
                    if len(run) > 1:
                        out.push_many(run, timeout=timeout)
                    else:
                        out.push(run[0], timeout=timeout)
                    meter.add(len(run), sum(map(len, run)))
        if end:
            out.push_end(timeout=timeout)
    return meter


def _push_batches(ring: shmring.Ring, source: Batches, end: bool, timeout: float | None) -> Meter:
    meter = Meter("produced", unit="rows")
    with ring.arrow_writer(source.schema, name="shmring produce") as out, meter:
        meter.more["batches"] = 0
        for batch in source.batches:
            out.write(batch, timeout=timeout)
            meter.more["batches"] += 1
            meter.add(batch.num_rows, batch.nbytes)
        if end:
            out.end(timeout=timeout)
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


def generated(messages: int) -> Iterator[list[bytes]]:
    """Messages of one slot: their number, and dots."""
    for first in range(0, messages, 1024):
        numbers = range(first, min(first + 1024, messages))
        yield [(b"%d" % number).ljust(SLOT_BYTES, b".") for number in numbers]


class Batches(NamedTuple):
    """Record batches of one schema."""

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]


def parquet_batches(file: str) -> Batches:
    source: Any = pyarrow("parquet", "Parquet").ParquetFile(file)
    return Batches(source.schema_arrow, source.iter_batches(batch_size=65_536))
