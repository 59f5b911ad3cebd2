"""``shmring produce`` pushes lines into a ring; ``shmring consume`` prints a ring's messages."""

from __future__ import annotations

import json
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
from shmring.cli.options import (
    Address,
    Number,
    branch_name,
    json_option,
    ring_argument,
    slots_option,
)
from shmring.cli.output import Lines, Terminated, complain, emit, noted, wants_json
from shmring.common.arguments import ARROW_KINDS, DEFAULT_START, KIND_ARROW_BATCH, STARTS
from shmring.common.extras import need_pyarrow
from shmring.common.words import counted
from shmring.errors import Damaged, Empty, EndOfStream, Overrun
from shmring.ring.records import is_journal

if TYPE_CHECKING:
    import pyarrow as pa

DEFAULT_BRANCH = "default"

_AT_ONCE = 256  # maximum messages in one push: few enough for a small ring that is not empty
_READ = 1 << 16


@click.command()
@ring_argument
@click.option(
    "--branch",
    type=branch_name,
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
    address: Address, branch: str | None, end: bool, timeout: float | None, slots: int | None
) -> None:
    """Push the lines of stdin into a ring, each as a message.

    The ring is made if it is missing. A ring without a branch gets one, so that no message is lost
    before `shmring consume` joins.
    """
    messages = nbytes = 0
    with address.open(slots=slots) as ring:
        if branch is not None or not ring.branches():
            ring.subscribe(branch or DEFAULT_BRANCH, start="earliest")
        with (
            ring.producer("shmring produce") as out,
            noted(lambda: f"pushed before: {counted(messages, 'message')}" if messages else ""),
        ):
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
    """Divide the messages into pushes of several messages; a push of a long message has only one.

    Messages that are read together with a message of more than one slot are pushed one by one, too.
    """
    for messages in read:
        for first in range(0, len(messages), _AT_ONCE):
            part = messages[first : first + _AT_ONCE]
            if max(map(len, part)) <= SLOT_BYTES:
                yield part
            else:
                yield from ([message] for message in part)


def lines(file: Any) -> Iterator[list[bytes]]:
    """Yield the lines of a file, without their newlines, as soon as they arrive.

    The last line may lack its newline.
    """
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


_LULL = 0.001  # seconds without a message after which the lines so far are written out
# Minimum seconds of a wait. After a wait of 0 s, the text of Empty does not say which participant
# holds the messages back.
_LEAST = 0.001
_SLICE = 0.2  # seconds of one wait; between two waits the command checks for signals


def start(value: str) -> str | int:
    """Parse the option --start: a name of STARTS, or a sequence."""
    if value in STARTS:
        return value
    if value.isdigit():
        return int(value)
    raise click.BadParameter(f"{value!r} is none of {', '.join(STARTS)} and a sequence")


@click.command()
@ring_argument
@click.option(
    "--branch",
    type=branch_name,
    default=DEFAULT_BRANCH,
    show_default=True,
    metavar="NAME",
    help="To join.",
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
    address: Address,
    slots: int | None,
    until: str,
    limit: int | None,
    timeout: float | None,
    count: bool,
    **branch: Any,
) -> None:
    """Take messages from a ring, a line each, until an end marker comes.

    Consumers of one branch share its messages; every branch gets all messages. Arrow batches become
    a line of JSON a row. A missing ring or branch is made, and stderr says so. With --json, each
    message is a JSON object; --count ends with the counts as a JSON object.
    """
    counts = Counter(messages=0, bytes=0)
    with address.open(slots=slots, reports=True) as ring:
        _report_new_branch(address, ring, branch["branch"])
        lines = None if count else Lines()
        with ring.consumer(name="shmring consume", **branch) as inp:
            _drain(ring, inp, lines, counts, until=until, limit=limit, timeout=timeout)
    if count and wants_json():
        emit(counts)
    elif count:
        print(counts["messages"])


def _report_new_branch(address: Address, ring: shmring.Ring, branch: str) -> None:
    """Say on stderr if the branch is new and the ring has others: its name may be misspelled."""
    others = [each["name"] for each in ring.branches() if not is_journal(each)]
    if others and branch not in others:
        complain(
            f'ring "{address.label}" had no branch "{branch}" beside '
            f"{', '.join(map(json.dumps, others))}: making it; "
            f"`{address.command('drop-branch', branch)}` removes it"
        )


@contextmanager
def _between_messages() -> Generator[list[int]]:
    """Yield a list to which the first signal is added, instead of raising an exception.

    An exception could lose a message just taken. A second signal is acted on at once, because
    stdout may be a pipe from which nobody reads. After the block the first signal is raised.
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
    # After a second Ctrl-C, or an error of stdout, the messages not yet written are handed back.
    with _between_messages() as signals, _Unwritten(lines, counts) as unwritten:
        while not signals and (limit is None or counts["messages"] < limit):
            # CHANGE: edit this for a new error
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
    """Messages taken but not written to stdout yet.

    Writing a message releases its lease; a message that cannot be written is handed back.
    """

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
        # Write the lines that wait, unless a second signal ends the block (with an error that is no
        # Exception): then the command must not wait for stdout. After an error of stdout no lines
        # wait: Lines.flush() has dropped them.
        waiting = self._lines is not None and self._lines.waiting
        if error is None or (isinstance(error, Exception) and waiting):
            with self._leases:
                self.flush()
        else:
            self._leases.__exit__(kind, error, traceback)

    def take(self, lease: shmring.Lease, ring: shmring.Ring) -> None:
        """Keep the message until it is written; if an error comes first, hand it back."""
        with ExitStack() as own:
            own.enter_context(lease)
            try:
                self._add(lease, _batch_of(ring, lease))
            except Damaged:
                lease.release()  # the message would be damaged for the next consumer, too
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
        """Write all lines that wait, and release their messages."""
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
    """Return the next message; None if there is none and the command is to stop."""
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
            # The error's text names the participant that holds the messages back, after " s: ".
            _, colon, said = str(error).partition(" s: ")
            why = f"{colon[2:]}{said}" if said else why
            if left == 0:
                text = f'branch "{inp.branch}": no message within {timeout} s{why}'
                raise Empty(text) from None
    return None


def _batch_of(ring: shmring.Ring, lease: shmring.Lease) -> pa.RecordBatch | None:
    """Return the message's record batch; None if the message is no batch.

    An ArrowReader would not do: a ring may hold other messages, too.
    """
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
