"""Data for machines, text for people."""

from __future__ import annotations

import base64
import json
import sys
import time
from collections.abc import Iterable, Sequence

import click

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


def say(document: object, text: object, *, err: bool = False) -> None:
    """Print the document for machines, or the text for people: on stderr if `err`."""
    if wants_json():
        emit(document)
    else:
        click.echo(text, err=err)


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


def as_time(time_ns: int) -> str:
    """A time in local time, to the millisecond."""
    local = time.localtime(time_ns // 10**9)
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', local)}.{time_ns // 10**6 % 1000:03}"


def print_lines(text: str) -> None:
    """Print without the spaces with which tables end their lines."""
    print("\n".join(line.rstrip() for line in text.splitlines()))


def show_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None
) -> None:
    """Print a table, numbers to the right; wide enough for it where stdout is no terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    cells = [list(row) for row in rows]
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, title_style="bold")
    for i, column in enumerate(columns):
        numeric = bool(cells) and all(isinstance(row[i], int) for row in cells)
        table.add_column(Text(column, style="dim"), justify="right" if numeric else "left")
    for row in cells:
        table.add_row(*(Text(f"{c:,}" if isinstance(c, int) else clean(str(c))) for c in row))
    out = Console(width=None if sys.stdout.isatty() else 400, highlight=False)
    with out.capture() as captured:
        out.print(table)
    print_lines(captured.get())
