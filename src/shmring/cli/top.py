"""``shmring top``: a ring as it lives."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from shmring.cli.look import (
    BRANCH_COLUMNS,
    PARTICIPANT_COLUMNS,
    branch_rows,
    participant_cells,
    summary,
)
from shmring.cli.options import DAY, Number, Place, json_option, ring_argument
from shmring.cli.output import console, emit, make_table, print_lines, size, wants_json

if TYPE_CHECKING:
    from rich.console import Group

_PARTICIPANT_COLUMNS = (*PARTICIPANT_COLUMNS[:-1], "messages/s", "bytes/s")


@click.command()
@ring_argument
@click.option(
    "--interval",
    type=Number(0.05, DAY),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Between two looks.",
)
@click.option("--times", type=click.IntRange(1), metavar="N", help="Look N times, then end.")
@json_option
def top(place: Place, interval: float, times: int | None) -> None:
    """Watch a ring until Ctrl-C: branches, participants, what passes a second, and who holds it.

    It looks on without joining. With --json, each look is a line: that of `shmring stat` with the
    rates.
    """
    rates = Rates()
    with _screen(place) as show:
        for number in itertools.count(1):
            show(_look(place, rates))
            if number == times:
                return
            time.sleep(interval)


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


def _look(place: Place, rates: Rates) -> Any:
    """The ring's statistics, and what its counters gain a second."""
    with place.look_on() as ring:
        stats: Any = ring.stats()
    stats["slots_per_s"] = rates.of("claimed", stats["claimed"])
    for branch in stats["branches"]:
        branch["slots_per_s"] = rates.of(("branch", branch["name"]), branch["position"])
    for participant in stats["participants"]:
        who = (participant["seat"], participant["pid"], participant["joined_ns"])
        participant["messages_per_s"] = rates.of((who, "messages"), participant["messages"])
        participant["bytes_per_s"] = rates.of((who, "bytes"), participant["bytes"])
    return stats


@contextmanager
def _screen(place: Place) -> Generator[Callable[[Any], None], None, None]:
    """Where looks are shown: a terminal, or lines."""

    def lines(stats: Any) -> None:
        if wants_json():
            emit(stats)
            return
        out = console()
        with out.capture() as captured:
            out.print(_draw(place, stats))
        print_lines(captured.get())
        sys.stdout.flush()

    if wants_json() or not sys.stdout.isatty():
        yield lines
        return
    from rich.live import Live

    with Live(screen=True, auto_refresh=False) as screen:
        yield lambda stats: screen.update(_draw(place, stats), refresh=True)


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
