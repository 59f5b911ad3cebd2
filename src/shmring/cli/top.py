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

import click

from shmring.cli.options import DAY, Number, foreign_option, json_option, place_of, ring_names
from shmring.cli.output import console, emit, print_lines, wants_json
from shmring.cli.top_ring import RingView, View
from shmring.errors import ShmringError


@click.command()
@click.argument("ring", required=False, shell_complete=ring_names)
@click.option(
    "--interval",
    type=Number(0.05, DAY),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Between two looks.",
)
@click.option("--times", type=click.IntRange(1), metavar="N", help="Look N times, then end.")
@foreign_option
@json_option
def top(ring: str | None, interval: float, times: int | None, foreign: bool) -> None:
    """Watch a ring, or all rings and sidecars of this host, until q or Ctrl-C.

    Of a ring it shows branches, participants, what passes a second, and who holds it. Without RING
    those with trouble come first, then those that are busiest; Enter goes into one, Escape back.

    It looks on without joining. With --json, each look is a line: that of `shmring stat` with the
    rates, or of the whole host.
    """
    from shmring.cli.top_host import HostView

    live = sys.stdout.isatty() and not wants_json()
    first = HostView(foreign) if ring is None else RingView(place_of(ring))
    with ExitStack() as stack:
        views: list[View] = [stack.enter_context(closing(first))]
        pressed = stack.enter_context(_keys(live))
        show = stack.enter_context(_screen(live))
        for number in itertools.count(1):
            try:
                views[-1].look()
            except ShmringError:
                if len(views) == 1:
                    raise
                views.pop().close()  # the ring that it shows has gone
                views[-1].look()
            show(views[-1])
            key = "q" if number == times else pressed(interval)
            if key == "q":
                return
            if key == "escape" and len(views) > 1:
                views.pop().close()
            elif (into := views[-1].press(key)) is not None:
                views.append(stack.enter_context(closing(into)))


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
