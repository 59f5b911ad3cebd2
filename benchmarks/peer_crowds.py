"""The peers with several producers and several consumers, which are more processes than cores.

A process stays on no core, and gives its core away while it waits.
"""

from __future__ import annotations

from functools import partial

from benchmarks import native
from benchmarks.harness import Row, Sample
from benchmarks.payload import DEFAULT_SLOTS, MESSAGE_BYTES
from benchmarks.peer_rows import (
    AERON,
    ICEORYX,
    OWN,
    RATE,
    SOME,
    Programs,
    Rows,
    messages,
)
from benchmarks.several import several

__all__ = ["rows"]

SEVERAL = (2, 4)

DEFAULT = 0

# What its readers do, where they are several.
SEES_ALL = "each of its readers sees all messages"


def _native(producers: int, consumers: int, each: bool, seconds: float) -> Sample:
    figures = native.ring(
        "stream",
        seconds,
        slots=DEFAULT_SLOTS,
        take=SOME,
        producers=producers,
        consumers=consumers,
        each=int(each),
        single=int(each and producers == 1),
        wait=DEFAULT,
    )
    return messages(figures["gb_s"] * 1e9)


def _python(producers: int, consumers: int, each: bool, seconds: float) -> Sample:
    return messages(several(producers, consumers, seconds, each=each) * MESSAGE_BYTES)


def _program(
    programs: Programs,
    senders: int,
    readers: int,
    divided: bool,
    peer: str,
    how: str,
    seconds: float,
) -> Sample:
    rate = programs.of(peer).crowd(
        peer,
        seconds,
        senders=senders,
        readers=readers,
        how=how,
        divided=divided,
    )
    return messages(rate)


def _to_one(programs: Programs, producers: int) -> list[Row]:
    run = partial(partial, _program, programs, producers, 1, False)
    rows = Rows(f"{producers} producers", RATE)
    rows.ours("C", partial(_native, producers, 1, False))
    rows.ours("Java", run(OWN, "one"))
    rows.ours("Python", partial(_python, producers, 1, False))
    rows.theirs("Aeron IPC, a publication each", run(AERON, "one"))
    rows.theirs("Aeron IPC, one publication", run(AERON, "shared"))
    rows.theirs("iceoryx2", run(ICEORYX, "one"))
    return rows.rows()


def _to_all(programs: Programs, readers: int) -> list[Row]:
    run = partial(partial, _program, programs, 1, readers, False)
    rows = Rows(f"{readers} readers of all", RATE)
    rows.ours("C", partial(_native, 1, readers, True))
    rows.ours("Java", run(OWN, "one"))
    rows.ours("Python", partial(_python, 1, readers, True))
    rows.theirs("Aeron IPC", run(AERON, "one"))
    rows.theirs("iceoryx2", run(ICEORYX, "one"))
    return rows.rows()


def _divided(programs: Programs, count: int) -> list[Row]:
    run = partial(partial, _program, programs, count, count, True)
    rows = Rows(f"{count} + {count} that share", RATE)
    rows.ours("C", partial(_native, count, count, False))
    rows.ours("Java", run(OWN, "one"))
    rows.ours("Python", partial(_python, count, count, False))
    rows.cannot("Aeron IPC", SEES_ALL)
    rows.cannot("iceoryx2", SEES_ALL)
    return rows.rows()


def rows(programs: Programs) -> list[Row]:
    """Several to one, one to several who each see all, several to several who share the work."""
    return [
        row for kind in (_to_one, _to_all, _divided) for n in SEVERAL for row in kind(programs, n)
    ]
