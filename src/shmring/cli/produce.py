"""``shmring produce``: lines into a ring."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import click

from shmring._shmring import SLOT_BYTES
from shmring.cli.options import Number, Place, json_option, ring_argument, slots_option
from shmring.cli.output import emit, wants_json

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
