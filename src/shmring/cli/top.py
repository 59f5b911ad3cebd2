"""``shmring top``: a ring as it lives, or all of the host."""

from __future__ import annotations

import itertools
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import click

from shmring.cli.look import (
    BRANCH_COLUMNS,
    PARTICIPANT_COLUMNS,
    branch_rows,
    participant_cells,
    summary,
)
from shmring.cli.options import Place, json_option, place_of, ring_names
from shmring.cli.output import console, emit, make_table, print_lines, size, wants_json

if TYPE_CHECKING:
    from rich.console import Group, RenderableType

__all__ = ["Rates", "RingView", "View", "top"]

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
@click.argument("ring", required=False, shell_complete=ring_names)
@click.option("--path", type=click.Path(), metavar="FILE", help="The ring is this file.")
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
def top(ring: str | None, path: str | None, interval: float, times: int | None) -> None:
    """Watch a ring, or all rings and sidecars of this host, until q or Ctrl-C.

    Of a ring it shows branches, participants, what passes a second, and who holds it. Without RING
    those with trouble come first, then those that are busiest; Enter goes into one, Escape back.

    It looks on without joining. With --json, each look is a line: that of `shmring stat` with the
    rates, or of the whole host.
    """
    from shmring.cli.top_host import HostView

    live = sys.stdout.isatty() and not wants_json()
    first = HostView() if ring is None and path is None else RingView(place_of(ring, path))
    with ExitStack() as stack:
        views: list[View] = [stack.enter_context(closing(first))]
        pressed = stack.enter_context(_keys(live))
        show = stack.enter_context(_screen(live))
        for number in itertools.count(1):
            views[-1].look()
            show(views[-1])
            key = "q" if number == times else pressed(interval)
            if key == "q":
                return
            if key == "escape" and len(views) > 1:
                views.pop().close()
            elif (into := views[-1].press(key)) is not None:
                views.append(stack.enter_context(closing(into)))


class View(Protocol):
    """What can be shown."""

    def look(self) -> None:
        """Look again."""
        ...

    def document(self) -> object:
        """What was seen, for machines."""
        ...

    def draw(self) -> RenderableType:
        """What was seen, for people."""
        ...

    def press(self, key: str) -> View | None:
        """Obey a key; the view that it goes into, if it does."""
        ...

    def close(self) -> None: ...


_KEYS = {
    b"": "q",
    b"q": "q",
    b"\x1b": "escape",
    b"\n": "enter",
    b"\r": "enter",
    b"k": "up",
    b"\x1b[A": "up",
    b"j": "down",
    b"\x1b[B": "down",
}


@contextmanager
def _keys(live: bool) -> Generator[Callable[[float], str], None, None]:
    """A pause that a key ends, where there is a terminal to type at: which one it was."""
    if not (live and sys.stdin.isatty()):
        yield lambda seconds: str(time.sleep(seconds))
        return
    typed = sys.stdin.fileno()
    before = termios.tcgetattr(typed)

    def pressed(seconds: float) -> str:
        until = time.monotonic() + seconds
        while select.select([typed], [], [], max(0.0, until - time.monotonic()))[0]:
            key = _KEYS.get(os.read(typed, 8))
            if key is not None:
                return key
        return ""

    try:
        tty.setcbreak(typed)
        yield pressed
    finally:
        termios.tcsetattr(typed, termios.TCSADRAIN, before)


@contextmanager
def _screen(live: bool) -> Generator[Callable[[View], None], None, None]:
    """Where views are shown: a terminal, or lines."""

    def lines(view: View) -> None:
        if wants_json():
            emit(view.document())
            return
        out = console()
        with out.capture() as captured:
            out.print(view.draw())
        print_lines(captured.get())
        sys.stdout.flush()

    if not live:
        yield lines
        return
    from rich.live import Live

    with Live(screen=True, auto_refresh=False) as screen:
        yield lambda view: screen.update(view.draw(), refresh=True)


class RingView:
    """A ring: its statistics, and what its counters gain a second."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._ring = place.attach(read_only=True)
        self._rates = Rates()
        self._stats: Any = None

    def close(self) -> None:
        self._ring.close()

    def look(self) -> None:
        stats: Any = self._ring.stats()
        rates = self._rates
        stats["slots_per_s"] = rates.of("claimed", stats["claimed"])
        for branch in stats["branches"]:
            branch["slots_per_s"] = rates.of(("branch", branch["name"]), branch["position"])
        for participant in stats["participants"]:
            who = (participant["seat"], participant["pid"], participant["joined_ns"])
            participant["messages_per_s"] = rates.of((who, "messages"), participant["messages"])
            participant["bytes_per_s"] = rates.of((who, "bytes"), participant["bytes"])
        self._stats = stats

    def document(self) -> object:
        return self._stats

    def draw(self) -> RenderableType:
        return _draw(self._place, self._stats)

    def press(self, key: str) -> None:
        return None


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
