"""``shmring top``: a ring as it lives."""

from __future__ import annotations

import itertools
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

import shmring
from shmring.cli.look import (
    BRANCH_COLUMNS,
    PARTICIPANT_COLUMNS,
    branch_rows,
    participant_cells,
    summary,
)
from shmring.cli.options import Place, json_option, ring_argument
from shmring.cli.output import console, emit, make_table, print_lines, size, wants_json

if TYPE_CHECKING:
    from rich.console import Group

__all__ = ["top"]

_PARTICIPANT_COLUMNS = (*PARTICIPANT_COLUMNS[:-1], "messages/s", "bytes/s")


class Rates:
    """What counters gain a second between two looks."""

    def __init__(self) -> None:
        self._seen: dict[object, tuple[float, int]] = {}

    def of(self, what: object, value: int) -> int:
        """0 for what is seen for the first time, or has begun anew."""
        now = time.monotonic()
        then, before = self._seen.get(what, (now, value))
        self._seen[what] = (now, value)
        return round((value - before) / (now - then)) if now > then and value > before else 0


@click.command()
@ring_argument
@click.option(
    "--interval",
    type=click.FloatRange(0.05),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Between two looks.",
)
@click.option("--times", type=click.IntRange(1), metavar="N", help="Look N times, then end.")
@json_option
def top(place: Place, interval: float, times: int | None) -> None:
    """Watch a ring until q or Ctrl-C: branches, participants, what passes a second, who holds it.

    It looks on without joining. With --json, each look is a line: that of `shmring stat`, and the
    rates.
    """
    with place.attach(read_only=True) as ring:
        live = sys.stdout.isatty() and not wants_json()
        with _keys(live) as ended:
            looks = _looks(ring, interval, times, ended)
            if live:
                _show_live(place, looks)
                return
            for stats in looks:
                if wants_json():
                    emit(stats)
                    continue
                out = console()
                with out.capture() as captured:
                    out.print(_draw(place, stats))
                print_lines(captured.get())
                sys.stdout.flush()


@contextmanager
def _keys(live: bool) -> Generator[Callable[[float], bool], None, None]:
    """A pause that a typed q ends, where there is a terminal to type at: True if it did."""
    if not (live and sys.stdin.isatty()):
        yield lambda seconds: bool(time.sleep(seconds))
        return
    typed = sys.stdin.fileno()
    before = termios.tcgetattr(typed)

    def ended(seconds: float) -> bool:
        until = time.monotonic() + seconds
        while select.select([typed], [], [], max(0.0, until - time.monotonic()))[0]:
            if os.read(typed, 1) in (b"q", b"Q", b""):
                return True
        return False

    try:
        tty.setcbreak(typed)
        yield ended
    finally:
        termios.tcsetattr(typed, termios.TCSADRAIN, before)


def _looks(
    ring: shmring.Ring, interval: float, times: int | None, ended: Callable[[float], bool]
) -> Iterator[Any]:
    rates = Rates()
    for number in itertools.count(1):
        stats: Any = ring.stats()
        stats["slots_per_s"] = rates.of("claimed", stats["claimed"])
        for branch in stats["branches"]:
            branch["slots_per_s"] = rates.of(("branch", branch["name"]), branch["position"])
        for participant in stats["participants"]:
            who = (participant["seat"], participant["pid"], participant["joined_ns"])
            participant["messages_per_s"] = rates.of((who, "messages"), participant["messages"])
            participant["bytes_per_s"] = rates.of((who, "bytes"), participant["bytes"])
        yield stats
        if number == times or ended(interval):
            return


def _show_live(place: Place, looks: Iterator[Any]) -> None:
    from rich.live import Live

    with Live(screen=True, auto_refresh=False) as live:
        for stats in looks:
            live.update(_draw(place, stats), refresh=True)


def _draw(place: Place, stats: Any) -> Group:
    from rich.console import Group
    from rich.text import Text

    participants = [s for s in stats["participants"] if s["role"] != "attached"]
    return Group(
        Text("\n".join((*summary(place, stats), f"{stats['slots_per_s']:,} slots a second\n"))),
        make_table(
            (*BRANCH_COLUMNS, "slots/s"),
            [
                (*row, branch["slots_per_s"])
                for row, branch in zip(branch_rows(stats), stats["branches"], strict=True)
            ],
        ),
        "",
        make_table(
            _PARTICIPANT_COLUMNS,
            [
                (*participant_cells(s), s["messages_per_s"], f"{size(s['bytes_per_s'])}/s")
                for s in participants
            ],
        ),
        "",
    )
