"""``shmring journal``: keep a ring's messages on disk; read, replay, check and cut them."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from itertools import chain, groupby, islice
from typing import IO, TYPE_CHECKING, Any

import click

from shmring._shmring import KIND_END
from shmring.cli.messages import DEFAULT_BRANCH
from shmring.cli.options import Number, address_of, binary_count, json_option, slots_option
from shmring.cli.output import (
    Lines,
    Terminated,
    as_time,
    complain,
    emit,
    noted,
    say,
    size,
    wants_json,
)
from shmring.common.closing import Closing
from shmring.common.extras import need_pyarrow
from shmring.common.words import counted

if TYPE_CHECKING:
    import pyarrow as pa

    from shmring.arrow import ArrowWriter
    from shmring.durable.journal.reader import Message
    from shmring.ring import Ring

_SLICE = 0.5  # seconds between two checks whether the journal still runs
_ROWS = 10_000  # messages in one row group of a Parquet file

directory = click.argument("directory", metavar="DIR")
gap_option = click.option(
    "--allow-gap", is_flag=True, help="Go on although messages were lost in between."
)
sequence = click.IntRange(0)
from_option = click.option(
    "--from", "first", type=sequence, default=0, metavar="SEQUENCE", help="Begin here."
)
until_option = click.option(
    "--until", type=sequence, metavar="SEQUENCE", help="Stop before this one."
)


@click.group()
def journal() -> None:
    """Put a ring's messages on disk; read, check and cut the journal.

    \b
        shmring journal run orders /var/lib/orders
        shmring journal cat /var/lib/orders --from 1000
    """


@journal.command()
@click.argument("ring")
@directory
@click.option(
    "--segment",
    "segment_bytes",
    type=binary_count,
    default="64M",
    show_default=True,
    metavar="SIZE",
    help="Begin a new file at this size.",
)
# CHANGE: edit this for a new option of a journal
@click.option("--max-bytes", type=binary_count, metavar="SIZE", help="Forget the oldest beyond it.")
@click.option("--max-age", type=Number(0), metavar="SECONDS", help="Forget older files.")
@click.option(
    "--consumed-by",
    multiple=True,
    metavar="BRANCH",
    help="Keep what this branch has not released; alone, forget what it has. Repeatable.",
)
@gap_option
@json_option
def run(
    ring: str,
    directory: str,
    max_bytes: int | None,
    max_age: float | None,
    consumed_by: tuple[str, ...],
    **options: Any,
) -> None:
    """Write every message of RING to DIR until Ctrl-C or SIGTERM.

    Before the command ends, it writes all messages taken so far to disk. The branch "journal" keeps
    its position, and holds producers once the ring is full: start the command again, and no message
    is missing.
    """
    from shmring.durable import Journal, Retention

    # CHANGE: edit this for a new option of a journal
    retention = None
    if max_bytes is not None or max_age is not None or consumed_by:
        retention = Retention(max_bytes=max_bytes, max_age=max_age, consumed_by=consumed_by)
    with address_of(ring).attach() as attached:
        running = Journal(attached, directory, retention=retention, **options)
        try:
            _announce(ring, running)
            with suppress(KeyboardInterrupt, Terminated):  # a signal ends the command
                _watch(running)
        finally:
            # Messages already taken go to disk within moments: let no second Ctrl-C interrupt that.
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            running.close()
        _conclude(running)


def _announce(ring: str, running: Any) -> None:
    if running.recovered:
        complain(running.recovered)
    say(
        {"event": "ready", "sequence": running.durable, "recovered": running.recovered},
        f'journal of ring "{ring}" goes on at sequence {running.durable} in {running.path}',
        err=True,
    )


def _watch(running: Any) -> None:
    said: str | None = None
    while not running.wait(_SLICE):
        problem = str(running.error) if running.error else None
        if problem is not None and problem != said:
            complain(f"{problem} (it goes on when there is space)")
        said = problem


def _conclude(running: Any) -> None:
    counts = {
        "sequence": running.durable,
        "messages": running.messages,
        "bytes": running.bytes_written,
        "syncs": running.syncs,
    }
    say(
        {"event": "end", **counts},
        f"journalled {counted(running.messages, 'message')}, {size(running.bytes_written)} in "
        f"{counted(running.syncs, 'sync')}, up to sequence {running.durable}",
        err=True,
    )


@journal.command()
@directory
@from_option
@until_option
@click.option("--parquet", metavar="FILE", help="Write a Parquet file instead.")
@gap_option
@json_option
def cat(
    directory: str, first: int, until: int | None, parquet: str | None, *, allow_gap: bool
) -> None:
    """Print the messages of a journal, a line each; Arrow batches as a line of JSON a row.

    The journal may be running. End markers are left out.
    """
    from shmring.durable import replay

    found = replay(directory, from_=first, until=until, allow_gap=allow_gap)
    messages = (message for message in found if message.kind != KIND_END)
    if parquet is not None:
        _write_parquet(messages, parquet)
        return
    out = Lines()
    try:
        for message in messages:
            out.add(message, message.batch() if message.is_batch else None)
            if out.is_full:
                out.flush()
    finally:
        out.flush()


def _write_parquet(messages: Iterator[Message], path: str) -> None:
    """Write the rows of all batches, or a row for each message; the file appears when complete."""
    need_pyarrow("Parquet")
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    fields = {"message_id": pa.int64(), "time": pa.timestamp("ns", "UTC"), "message": pa.binary()}
    row = pa.schema(fields)

    def batches() -> Iterator[pa.RecordBatch]:
        for is_batch, alike in groupby(messages, lambda message: message.is_batch):
            if is_batch:
                yield from (message.batch() for message in alike)
                continue
            while taken := list(islice(alike, _ROWS)):
                rows = [(m.message_id, m.time or None, bytes(m.data)) for m in taken]
                dicts = [dict(zip(fields, values, strict=True)) for values in rows]
                yield pa.RecordBatch.from_pylist(dicts, schema=row)

    found = batches()
    first = next(found, None)
    schema = row if first is None else first.schema
    with _whole(path) as file, ParquetWriter(file, schema) as out:
        for batch in found if first is None else chain([first], found):
            if not batch.schema.equals(schema):
                raise ValueError(
                    f"{path} is for {', '.join(schema.names)}, but now comes "
                    f"{', '.join(batch.schema.names)}: a file holds batches of one schema, or "
                    f"messages"
                )
            out.write_batch(batch)


@contextmanager
def _whole(path: str) -> Generator[IO[bytes]]:
    """Open a draft file that replaces `path`, with the old file's mode, when the block ends.

    If `path` is no regular file (/dev/stdout, a pipe), it is opened itself.
    """
    if os.path.exists(path) and not os.path.isfile(path):
        with open(path, "wb") as out:
            yield out
        return
    target = os.path.realpath(path)  # replace the file that a link leads to, not the link
    draft = f"{target}.{os.getpid()}.part"
    with open(draft, "xb") as out:  # "x" fails if the file exists: it would be another program's
        try:
            if os.path.exists(target):
                shutil.copymode(target, draft)
            yield out
            out.flush()
            os.replace(draft, target)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(draft)
            raise


@journal.command()
@directory
@gap_option
@json_option
def verify(directory: str, *, allow_gap: bool) -> None:
    """Read a whole journal and compare it with its checksums.

    With damage, the status is 1 and stderr names the file and the byte.
    """
    from shmring.durable import verify

    begun = time.monotonic()
    found = verify(directory, allow_gap=allow_gap)
    if wants_json():
        counts = asdict(found)
        counts["bytes"] = counts.pop("nbytes")
        emit(counts)
        return
    print(
        f"{directory}: good. Sequences {found.first} to {found.end}, "
        f"{counted(found.messages, 'message')} in {counted(found.records, 'record')}, "
        f"{counted(found.segments, 'file')}, {size(found.nbytes)}"
    )
    if found.torn:
        print(
            f"the end, {counted(found.torn, 'byte')}, is no whole record: a crash has torn it, a "
            f"journal is writing it now, or it is damaged"
        )
    if found.newest_ns:  # 0 if the ring has no clock
        print(f"messages of {as_time(found.oldest_ns)} to {as_time(found.newest_ns)}")
    click.echo(f"read in {time.monotonic() - begun:.1f} s", err=True)


@journal.command()
@directory
@click.argument("ring")
@click.option(
    "--speed",
    type=Number(0, min_open=True),
    metavar="FACTOR",
    help="1: at the pace at which they were pushed once; 2: twice as fast. Without it: at once.",
)
@from_option
@until_option
@gap_option
@json_option
def replay(
    directory: str,
    ring: str,
    speed: float | None,
    first: int,
    until: int | None,
    *,
    allow_gap: bool,
) -> None:
    """Push the messages of a journal into RING again, with their kinds and end markers.

    The messages get new numbers and times. While RING is full, the replay waits; afterwards it
    catches up with its schedule. Messages that come into the journal meanwhile are not replayed.
    """
    from shmring.durable import replay

    pushed = nbytes = 0
    last = -1  # number of the last message that was pushed
    pace = _Pace(speed)
    with address_of(ring).attach() as attached:
        if not attached.branches():
            attached.subscribe(DEFAULT_BRANCH, start="earliest")
        with (
            attached.producer("shmring journal replay") as out,
            _Batches(attached) as batches,
            # The same command again would push these messages twice.
            noted(lambda: f"pushed up to message {last}: add --from {last + 1}" if pushed else ""),
        ):
            for message in replay(directory, from_=first, until=until, allow_gap=allow_gap):
                pace.await_turn(message.time)
                if message.kind == KIND_END:
                    out.push_end()
                elif message.is_batch:
                    batches.write(message.batch())
                else:
                    out.push(message.data, kind=message.kind)
                last = message.message_id
                pushed += 1
                nbytes += len(message.data)
    say(
        {"messages": pushed, "bytes": nbytes},
        f'pushed {counted(pushed, "message")}, {size(nbytes)}, into ring "{ring}"',
    )


class _Batches(Closing):
    """Writes batches of any schemas into a ring.

    Only one writer is open at a time, because each writer takes a seat.
    """

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        # Schema of the last batch, and its writer.
        self._last: tuple[pa.Schema, ArrowWriter] | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        if self._last is None or not batch.schema.equals(self._last[0], check_metadata=True):
            self.close()
            self._last = batch.schema, self._ring.arrow_writer(batch.schema)
        self._last[1].write(batch)

    def close(self) -> None:
        if self._last is not None:
            self._last[1].close()


class _Pace:
    """Waits between messages for the difference of their times, divided by a factor."""

    def __init__(self, speed: float | None) -> None:
        self._speed = speed
        self._first_ns = 0
        self._began = 0.0

    def await_turn(self, time_ns: int) -> None:
        if self._speed is None or not time_ns:  # 0 if the ring had no clock
            return
        now = time.monotonic()
        if not self._first_ns:
            self._first_ns, self._began = time_ns, now
        left = self._began + (time_ns - self._first_ns) / 1e9 / self._speed - now
        if left > 0:
            time.sleep(left)


@journal.command()
@directory
@json_option
def truncate(directory: str) -> None:
    """Cut a journal off at the first damage.

    Every file that changes is kept beside the new one as *.broken. The command is refused while the
    journal runs.
    """
    from shmring.durable import truncate

    end = truncate(directory)
    say({"end": end}, f"{directory} ends at sequence {end} now")


@journal.command()
@directory
@click.argument("ring")
@slots_option
@gap_option
@json_option
def restore(directory: str, ring: str, slots: int | None, *, allow_gap: bool) -> None:
    """Make a lost RING again, with its schema but empty, to go on where the journal in DIR ends.

    The messages stay in the journal. `shmring journal run RING DIR` goes on with it.
    """
    from shmring.durable import restore

    address = address_of(ring)
    options: dict[str, Any] = {"allow_gap": allow_gap}
    if slots is not None:
        options["slots"] = slots
    with restore(directory, address.name, ring_path=address.path, **options) as made:
        found = made.info.first_sequence
        say(
            {"path": made.path, "slots": made.slots, "first_sequence": found},
            f'created ring "{ring}" of {made.slots:,} slots, next sequence {found}',
        )
