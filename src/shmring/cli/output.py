"""Data for machines, text for people."""

from __future__ import annotations

import base64
import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Self

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID
    from rich.table import Table

__all__ = [
    "Meter",
    "as_time",
    "clean",
    "console",
    "duration",
    "emit",
    "make_table",
    "message_fields",
    "set_json",
    "show_pairs",
    "show_status",
    "show_table",
    "size",
    "to_json",
    "wants_json",
]

_JSON = "shmring.json"


def set_json(ctx: click.Context) -> None:
    """Print JSON from here on."""
    ctx.meta[_JSON] = True


def wants_json() -> bool:
    """Whether --json was given."""
    return bool(click.get_current_context().meta.get(_JSON))


def _fallback(value: object) -> object:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def to_json(document: object) -> str:
    """One line of JSON: bytes as base64, times and decimals as text."""
    return json.dumps(document, default=_fallback, ensure_ascii=False)


def emit(document: object) -> None:
    """Print a document as a line of JSON."""
    print(to_json(document), flush=True)


def message_fields(message: bytes) -> dict[str, str]:
    """A message in JSON: `message` where it is UTF-8 text, else `message_base64`."""
    try:
        return {"message": message.decode()}
    except UnicodeDecodeError:
        return {"message_base64": base64.b64encode(message).decode()}


# --- for people ---------------------------------------------------------------------------------


def clean(text: str) -> str:
    """Text that others have written into a ring, without control characters."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def size(nbytes: float) -> str:
    """Bytes with a unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} B" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} TiB"


def show_status(status: int) -> str:
    """How bad it is: 0, 1 or 2, as monitoring plugins have it."""
    return ("well", "warning", "stuck")[status]


def duration(seconds: float) -> str:
    """Seconds with a unit."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"


def as_time(time_ns: int) -> str:
    """A time in local time, to the millisecond."""
    local = time.localtime(time_ns // 10**9)
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', local)}.{time_ns // 10**6 % 1000:03}"


def console() -> Console:
    """stdout; wide enough for every table where it is no terminal."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 400, highlight=False)


def make_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None
) -> Table:
    """A table for the console; numbers to the right."""
    from rich.table import Table
    from rich.text import Text

    cells = [list(row) for row in rows]
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, title_style="bold")
    for i, column in enumerate(columns):
        numeric = bool(cells) and all(isinstance(row[i], int) for row in cells)
        table.add_column(Text(column, style="dim"), justify="right" if numeric else "left")
    for row in cells:
        table.add_row(*(Text(f"{c:,}" if isinstance(c, int) else clean(str(c))) for c in row))
    return table


def print_lines(text: str) -> None:
    """Print without the spaces with which tables end their lines."""
    print("\n".join(line.rstrip() for line in text.splitlines()))


def show_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None
) -> None:
    out = console()
    with out.capture() as captured:
        out.print(make_table(columns, rows, title=title))
    print_lines(captured.get())


def show_pairs(pairs: Iterable[tuple[str, object]]) -> None:
    """Print names and values, one pair a line."""
    known = list(pairs)
    width = max(len(name) for name, _ in known)
    for name, value in known:
        lines = str(value).splitlines() or [""]
        print(f"{name:<{width}}  {clean(lines[0])}")
        for line in lines[1:]:
            print(f"{'':<{width}}  {clean(line)}")


class Meter:
    """Counts what passes; on a terminal a moving line on stderr, and a last one at the end.

    Parameters
    ----------
    verb : "produced" or "consumed"
    unit : of what is counted
    total : how many are to come, where that is known
    moving : show the moving line, if stderr is a terminal
    why_waiting : says what is waited for when nothing passes
    """

    def __init__(
        self,
        verb: str,
        *,
        unit: str = "messages",
        total: int | None = None,
        moving: bool = True,
        why_waiting: Callable[[], str] = lambda: "waiting",
    ) -> None:
        self.passed = 0
        self.bytes = 0
        self.more: dict[str, int] = {}
        self._verb = verb
        self._unit = unit
        self._total = total
        self._talks = sys.stderr.isatty() and not wants_json()
        self._moving = self._talks and moving
        self._why_waiting = why_waiting
        self._begun = self._last = time.monotonic()
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def add(self, passed: int, nbytes: int) -> None:
        self._last = time.monotonic()
        if not self.passed:
            self._begun = self._last  # waiting for the first does not count
        self.passed += passed
        self.bytes += nbytes

    def line(self) -> str:
        """The moving line; called by the thread that refreshes it."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=self.passed)
        if time.monotonic() - self._last > 1:
            return f"{self.passed:,} {self._unit}, {self._why_waiting()}"
        return self._counts()

    def _counts(self) -> str:
        seconds = max(self._last - self._begun, 1e-3)
        return (
            f"{self.passed:,} {self._unit}, {size(self.bytes)}, "
            f"{self.passed / seconds:,.0f}/s, {size(self.bytes / seconds)}/s"
        )

    def __enter__(self) -> Self:
        if self._moving:
            self._progress = _moving_line(self.line, bar=self._total is not None)
            self._task = self._progress.add_task(self._verb, total=self._total)
            self._progress.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self._progress is not None:
            self._progress.stop()
        if self._talks and not isinstance(error, BrokenPipeError):
            more = "".join(f", {value:,} {name}" for name, value in self.more.items() if value)
            seconds = duration(self._last - self._begun)
            click.echo(f"{self._verb} {self._counts()}, in {seconds}{more}", err=True)

    def summary(self) -> dict[str, Any]:
        """The counts, for --json."""
        seconds = round(self._last - self._begun, 6)
        return {self._unit: self.passed, "bytes": self.bytes, "seconds": seconds, **self.more}


def _moving_line(line: Callable[[], str], *, bar: bool) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task
    from rich.text import Text

    class Line(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(line())

    return Progress(
        BarColumn(bar_width=15) if bar else SpinnerColumn(),
        Line(),
        console=Console(stderr=True),
        transient=True,
    )
