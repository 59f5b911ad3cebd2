"""``shmring produce``: lines, chunks, Parquet, CSV or made-up messages into a ring."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any, NamedTuple

import click

import shmring
from shmring._shmring import SLOT_BYTES
from shmring.cli.options import (
    Number,
    Place,
    binary_count,
    branch_names,
    count,
    creation_options,
    json_option,
    positive,
    ring_argument,
    wait_option,
)
from shmring.cli.output import Meter, emit, wants_json
from shmring.cli.sources import (
    Batches,
    chunks,
    csv_batches,
    generated,
    opened,
    parquet_batches,
    separated,
)
from shmring.errors import ShmringError

__all__ = ["DEFAULT_BRANCH", "produce"]

DEFAULT_BRANCH = "default"

_AT_ONCE = 256  # messages of one push, so that a small ring need not be empty for it


class Pushing(NamedTuple):
    """How messages go into the ring."""

    rate: float | None
    timeout: float | None
    drop: bool
    end: bool
    wait: Any


@click.command()
@ring_argument
@click.option("--file", metavar="FILE", help="Read messages from this file, not from stdin.")
@click.option("--parquet", metavar="FILE", help="Send a Parquet file as Arrow batches.")
@click.option("--csv", metavar="FILE", help="Send a CSV file as Arrow batches; - is stdin.")
@click.option("--generate", type=count, metavar="N", help="Send N made-up messages.")
@click.option("--null", is_flag=True, help="Messages end with a null byte, not a newline.")
@click.option(
    "--size",
    type=binary_count,
    metavar="BYTES",
    help=f"Messages are chunks of this many bytes.  [default with --generate: {SLOT_BYTES}]",
)
@click.option("--batch-rows", type=positive, metavar="N", help="Rows of an Arrow batch at most.")
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
@click.option("--drop", is_flag=True, help="Drop messages while the ring is full.")
@creation_options
@wait_option
@json_option
def produce(
    place: Place,
    file: str | None,
    parquet: str | None,
    csv: str | None,
    generate: int | None,
    null: bool,
    size: int | None,
    batch_rows: int | None,
    branch: str | None,
    slots: int | None,
    **pushing: Any,
) -> None:
    """Push messages into a ring: the lines of stdin, unless told otherwise.

    The ring is made if it is not there. A ring without a branch gets one, so that nothing is lost
    before `shmring consume` comes.
    """
    how = Pushing(**pushing)
    arrow = parquet is not None or csv is not None
    _check_usage(
        sources=[file, parquet, csv, generate],
        formats=[null, size],
        batch_rows=batch_rows,
        arrow=arrow,
        generate=generate,
        how=how,
    )
    with ExitStack() as stack:
        batches: Batches | None = None
        messages: Iterator[list[bytes]] = iter(())
        if parquet is not None:
            batches = parquet_batches(parquet, batch_rows)
        elif csv is not None:
            batches = csv_batches(stack.enter_context(opened(csv)), batch_rows)
        elif generate is not None:
            messages = generated(generate, SLOT_BYTES if size is None else size)
        else:
            source = stack.enter_context(opened(file or "-"))
            if size is not None:
                messages = chunks(source, size)
            else:
                messages = separated(source, b"\0" if null else b"\n")
        # The source comes first: without one no ring is made.
        schema = None if batches is None else batches.schema
        ring = stack.enter_context(place.open(slots=slots, schema=schema)[0])
        if branch is not None or not ring.branches():
            ring.subscribe(branch or DEFAULT_BRANCH, start="earliest")
        if batches is not None:
            meter = _push_batches(ring, batches, how)
        else:
            meter = _push_messages(ring, messages, how, total=generate)
    if wants_json():
        emit(meter.summary())


def _check_usage(
    *,
    sources: list[object],
    formats: list[object],
    batch_rows: int | None,
    arrow: bool,
    generate: int | None,
    how: Pushing,
) -> None:
    if sum(source is not None for source in sources) > 1:
        raise click.UsageError("give one of --file, --parquet, --csv and --generate")
    null, size = formats
    if null and (size is not None or arrow or generate is not None):
        raise click.UsageError("--null is for messages from stdin or --file, without --size")
    if size is not None and (arrow or size == 0):
        raise click.UsageError("--size is for messages, and at least 1")
    if batch_rows is not None and not arrow:
        raise click.UsageError("--batch-rows is for --parquet and --csv")
    if how.drop and (arrow or how.timeout is not None):
        raise click.UsageError("--drop is for messages, without --timeout")


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


def _why_waiting(ring: shmring.Ring) -> str:
    with suppress(ShmringError):
        holding = [b for b in ring.branches() if not b["drop_oldest"]]
        slowest = min(holding, key=lambda b: b["released"], default=None)
        if slowest is not None and ring.claimed - slowest["released"] > ring.slots * 0.9:
            return f'the ring is full: branch "{slowest["name"]}" holds it'
    return "waiting for input"


def _push_messages(
    ring: shmring.Ring, messages: Iterator[list[bytes]], how: Pushing, *, total: int | None
) -> Meter:
    # A timeout, even None, would overrule when_full.
    waiting: dict[str, Any] = {} if how.drop else {"timeout": how.timeout}
    when_full = "drop" if how.drop else "block"
    pace = Pace(how.rate)
    with (
        ring.producer("shmring produce", when_full=when_full, wait=how.wait) as out,
        Meter("produced", total=total, why_waiting=lambda: _why_waiting(ring)) as meter,
    ):
        for rows in messages:
            for first in range(0, len(rows), pace.at_once):
                part = rows[first : first + pace.at_once]
                short = max(map(len, part)) <= SLOT_BYTES
                for run in [part] if short else [[row] for row in part]:
                    if len(run) > 1:
                        message_id = out.push_many(run, **waiting)
                    else:
                        message_id = out.push(run[0], **waiting)
                    if message_id < 0:
                        meter.more["dropped"] = meter.more.get("dropped", 0) + len(run)
                    else:
                        meter.add(len(run), sum(map(len, run)))
                pace.sent(len(part))
        if how.end:
            out.push_end(timeout=how.timeout)
    return meter


def _push_batches(ring: shmring.Ring, source: Batches, how: Pushing) -> Meter:
    pace = Pace(how.rate)
    meter = Meter(
        "produced", unit="rows", total=source.rows, why_waiting=lambda: _why_waiting(ring)
    )
    with ring.arrow_writer(source.schema, wait=how.wait, name="shmring produce") as out, meter:
        meter.more["batches"] = 0
        for batch in source.batches:
            out.write(batch, timeout=how.timeout)
            meter.more["batches"] += 1
            meter.add(batch.num_rows, batch.nbytes)
            pace.sent(1)
        if how.end:
            out.end(timeout=how.timeout)
    return meter
