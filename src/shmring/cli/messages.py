"""``shmring produce``: lines into a ring; ``shmring consume``: what comes out of it."""

from __future__ import annotations

import signal
import sys
import time
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Self

import click

import shmring
from shmring._shmring import SLOT_BYTES
from shmring.arguments import ARROW_KINDS, DEFAULT_START, KIND_ARROW_BATCH, STARTS
from shmring.cli.options import Number, Place, json_option, ring_argument, slots_option
from shmring.cli.output import Lines, Terminated, complain, emit, wants_json
from shmring.errors import Damaged, Empty, EndOfStream, Overrun
from shmring.extras import need_pyarrow

if TYPE_CHECKING:
    import pyarrow as pa

DEFAULT_BRANCH = "default"

_AT_ONCE = 256  # messages of one push, so that a small ring need not be empty for it
_READ = 1 << 16


@click.command()
@ring_argument
@click.option(
    "--branch",
    metavar="NAME",
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
    place: Place, branch: str | None, end: bool, timeout: float | None, slots: int | None
) -> None:
    """Push the lines of stdin into a ring, each as a message.

    The ring is made if it is not there. A ring without a branch gets one, so that nothing is lost
    before `shmring consume` comes.
    """
    messages = nbytes = 0
    with place.open(slots=slots)[0] as ring:
        if branch is not None or not ring.branches():
            ring.subscribe(branch or DEFAULT_BRANCH, start="earliest")
        with ring.producer("shmring produce") as out:
            for run in _runs(lines(sys.stdin.buffer)):
                if len(run) > 1:
                    out.push_many(run, timeout=timeout)
                else:
                    out.push(run[0], timeout=timeout)
                messages += len(run)
                nbytes += sum(map(len, run))
            if end:
                out.push_end(timeout=timeout)
    if wants_json():
        emit({"messages": messages, "bytes": nbytes})


def _runs(read: Iterator[list[bytes]]) -> Iterator[list[bytes]]:
    """What goes by one push each: several short messages, or one."""
    for messages in read:
        for first in range(0, len(messages), _AT_ONCE):
            part = messages[first : first + _AT_ONCE]
            if max(map(len, part)) <= SLOT_BYTES:
                yield part
            else:
                yield from ([message] for message in part)


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


# --- consume --------------------------------------------------------------------------------------


_LULL = 0.001  # seconds without a message after which what was written is flushed
_LEAST = 0.001  # of the last wait: one of 0 s is not told who is in the way
_SLICE = 0.2  # seconds of one wait, after which a signal is looked for


def start(value: str) -> str | int:
    """Where a new branch begins."""
    if value in STARTS:
        return value
    if value.isdigit():
        return int(value)
    raise click.BadParameter(f"{value!r} is none of {', '.join(STARTS)} and a sequence")


@click.command()
@ring_argument
@click.option(
    "--branch", default=DEFAULT_BRANCH, show_default=True, metavar="NAME", help="To join."
)
@click.option(
    "--start",
    type=start,
    default=DEFAULT_START,
    show_default=True,
    metavar="WHERE",
    help=f"Where the branch begins if it is new: {', '.join(STARTS)} or a sequence.",
)
@click.option(
    "--until",
    type=click.Choice(["end", "empty", "never"]),
    default="end",
    show_default=True,
    help="Stop at an end marker, when there is nothing more, or only at Ctrl-C.",
)
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Stop after N messages.")
@click.option(
    "--timeout",
    type=Number(0),
    metavar="SECONDS",
    help="Give up if nothing comes for so long; the default waits for ever.",
)
@click.option("--count", is_flag=True, help="Only count; print the number of messages.")
@slots_option
@json_option
def consume(
    place: Place,
    slots: int | None,
    until: str,
    limit: int | None,
    timeout: float | None,
    count: bool,
    **branch: Any,
) -> None:
    """Take messages from a ring, a line each, until an end marker comes.

    Who consumes from the same branch shares its messages; every branch gets all of them. Arrow
    batches become a line of JSON a row. A ring that is not there is made, as stderr says. With
    --json, each message is a JSON object; --count ends with the counts as one.
    """
    opened, made = place.open(slots=slots)
    counts = Counter(messages=0, bytes=0)
    with opened as ring:
        if made:  # perhaps for want of a letter
            complain(f'there was no ring "{place.label}": made one of {ring.slots:,} slots')
        lines = None if count else Lines()
        with ring.consumer(name="shmring consume", **branch) as inp:
            _drain(ring, inp, lines, counts, until=until, limit=limit, timeout=timeout)
    if count and wants_json():
        emit(counts)
    elif count:
        print(counts["messages"])


@contextmanager
def _between_messages() -> Generator[list[int]]:
    """Signals that have come, in place of exceptions that would lose a message just taken.

    A second one is acted on at once: stdout may be a pipe that nobody reads from.
    """
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    found: list[int] = []
    before = {n: signal.getsignal(n) for n in numbers if signal.getsignal(n) != signal.SIG_IGN}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(number: int, frame: FrameType | None) -> None:
        found.append(number)
        restore()

    for number in before:
        signal.signal(number, note)
    try:
        yield found
    finally:
        restore()
    if found:
        raise KeyboardInterrupt if found[0] == signal.SIGINT else Terminated(found[0])


def _drain(
    ring: shmring.Ring,
    inp: shmring.Consumer,
    lines: Lines | None,
    counts: Counter[str],
    *,
    until: str,
    limit: int | None,
    timeout: float | None,
) -> None:
    # A second Ctrl-C, or a stdout that takes no more, hands back what is not written out.
    with _between_messages() as signals, _Unwritten(lines, counts) as unwritten:
        while not signals and (limit is None or counts["messages"] < limit):
            try:
                lease = _next(inp, unwritten, signals, until=until, timeout=timeout)
            except EndOfStream:
                if until == "end":
                    return
                continue
            except Overrun as overrun:
                counts["lost"] += overrun.last - overrun.first + 1
                continue
            if lease is None:
                return
            unwritten.take(lease, ring)


class _Unwritten:
    """Messages whose lines stdout does not have yet: released then, or else handed back."""

    def __init__(self, lines: Lines | None, counts: Counter[str]) -> None:
        self._lines = lines
        self._counts = counts
        self._leases = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # What stdout did not take does not wait any more; a signal is not to wait for it.
        waiting = self._lines is not None and self._lines.waiting
        if error is None or (isinstance(error, Exception) and waiting):
            with self._leases:
                self.flush()
        else:
            self._leases.__exit__(kind, error, traceback)

    def take(self, lease: shmring.Lease, ring: shmring.Ring) -> None:
        """Keep the message until it is written; one that cannot be goes back."""
        with ExitStack() as own:
            own.enter_context(lease)
            try:
                self._add(lease, _batch_of(ring, lease))
            except Damaged:
                lease.release()  # for the next one, too, it would be
                raise
            self._leases.push(own.pop_all())
        if self._lines is None or self._lines.is_full:
            self.flush()

    def _add(self, lease: shmring.Lease, batch: pa.RecordBatch | None) -> None:
        if self._lines is not None:
            self._lines.add(lease, batch)
        self._counts["messages"] += 1
        self._counts["bytes"] += len(lease)
        if batch is not None:
            self._counts["rows"] += batch.num_rows

    def flush(self) -> None:
        """Write out what there is."""
        if self._lines is not None:
            self._lines.flush()
        self._leases.pop_all().close()


def _next(
    inp: shmring.Consumer,
    unwritten: _Unwritten,
    signals: list[int],
    *,
    until: str,
    timeout: float | None,
) -> shmring.Lease | None:
    """The next message; None if there is none and it is time to stop."""
    try:
        return inp.lease(timeout=0 if until == "empty" else _LULL)
    except Empty:
        if until == "empty":
            return None
    unwritten.flush()
    deadline = None if timeout is None else time.monotonic() + timeout
    why = ""
    while not signals:
        left = _SLICE if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            return inp.lease(timeout=min(max(left, _LEAST), _SLICE))
        except Empty as error:
            _, colon, said = str(error).partition(" s: ")  # who is in the way
            why = f"{colon[2:]}{said}" if said else why
            if left == 0:
                text = f'branch "{inp.branch}": no message within {timeout} s{why}'
                raise Empty(text) from None
    return None


def _batch_of(ring: shmring.Ring, lease: shmring.Lease) -> pa.RecordBatch | None:
    """The batch that the message is; no ArrowReader, because a ring may hold other messages too."""
    if lease.kind not in ARROW_KINDS:
        return None
    need_pyarrow("a record batch")
    import pyarrow as pa

    from shmring.arrow.batches import decode_batch

    return decode_batch(
        pa.py_buffer(lease),
        ring.schema if lease.kind == KIND_ARROW_BATCH else None,
        ring=ring.name or ring.path,
        message_id=lease.message_id,
    )
