"""The output of commands (data for machines, text for people, messages), and their exit status.

After a foreseen error a command prints one line on stderr, never a traceback.
"""

from __future__ import annotations

import base64
import io
import itertools
import json
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import IO, TYPE_CHECKING, Any, cast

import click

from shmring.errors import ShmringError

if TYPE_CHECKING:
    import pyarrow as pa

    from shmring import Lease
    from shmring.durable.journal.reader import Message

_JSON = "shmring.json"


def set_json(ctx: click.Context) -> None:
    ctx.meta[_JSON] = True


def wants_json() -> bool:
    return bool(click.get_current_context().meta.get(_JSON))


def _fallback(value: object) -> object:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def _finite(value: Any) -> Any:
    """Return the value with text in place of the numbers that JSON lacks, as Spark writes them."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in cast("list[Any]", value)]
    return value


def to_json(document: object) -> str:
    """Return one line of JSON in printable ASCII.

    Bytes are base64; times, decimals, NaN and the infinities are text.  ASCII, because names that
    other programs chose may have characters that control a terminal or reverse its text.
    """
    try:
        text = json.dumps(document, default=_fallback, allow_nan=False)
    except ValueError:  # there is a NaN or an infinity
        text = json.dumps(_finite(document), default=_fallback)
    return text.replace("\x7f", "\\u007f")


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
    """Return a message's JSON field: `message` if it is UTF-8 text, else `message_base64`."""
    try:
        return {"message": message.decode()}
    except UnicodeDecodeError:
        return {"message_base64": base64.b64encode(message).decode()}


# --- for people ---------------------------------------------------------------------------------


def clean(text: str) -> str:
    """Escape control characters in text that another program has written into a ring."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def size(nbytes: float) -> str:
    """Return a number of bytes as text with a unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} B" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} TiB"


def show_status(status: int) -> str:
    """Return the word for a status; the numbers 0 to 2 are those of monitoring plugins."""
    return ("well", "warning", "stuck")[status]


def as_time(time_ns: int) -> str:
    """Return a time as text, in local time, to the millisecond."""
    local = time.localtime(time_ns // 10**9)
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', local)}.{time_ns // 10**6 % 1000:03}"


def print_lines(text: str) -> None:
    """Print text without trailing spaces: rich fills up the lines of a table with spaces."""
    print("\n".join(line.rstrip() for line in text.splitlines()))


def show_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None
) -> None:
    """Print a table, numbers aligned right; up to 400 characters wide without a terminal."""
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


# --- messages and batches -----------------------------------------------------------------------

# Maximum messages, and maximum bytes, that are collected for one write. Each message keeps its
# lease until it is written, and a consumer can keep 48 leases.
_LINES, _LINE_BYTES = 32, 1 << 16


class Lines:
    """Prints messages: a line each (JSON with --json), or a line of JSON for each row of a batch.

    Lines are collected here, not in the buffer of Python's stdout. After a failed write, Python's
    buffer would keep the lines and write them later, although their messages were handed back;
    flush() drops them.
    """

    def __init__(self) -> None:
        self._out = _stdout()
        self._waits: list[bytes] = []  # the lines of each message that waits for flush()

    def add(self, message: Lease | Message, batch: pa.RecordBatch | None) -> None:
        """Add a message, and its record batch if the message is a batch; the data is copied."""
        if batch is not None:
            rows: list[dict[str, Any]] = _named_apart(batch).to_pylist()
            self._waits.append(b"".join(map(_line, rows)))
        elif wants_json():
            fields = {"message_id": message.message_id, "time_ns": message.time or None}
            self._waits.append(_line({**fields, **message_fields(bytes(message.data))}))
        else:
            self._waits.append(bytes(message.data) + b"\n")

    @property
    def waiting(self) -> bool:
        return bool(self._waits)

    @property
    def is_full(self) -> bool:
        return len(self._waits) >= _LINES or sum(map(len, self._waits)) >= _LINE_BYTES

    def flush(self) -> None:
        """Write all lines that wait; after an error they are dropped, and stdout is given up."""
        written, self._waits = b"".join(self._waits), []
        try:
            self._out.write(written)
            self._out.flush()
        except BaseException:
            give_up_stdout()
            raise


def _stdout() -> IO[bytes]:
    out: Any = sys.stdout.buffer
    # With PYTHONUNBUFFERED stdout is raw: each write is a system call, which may write only a part.
    if isinstance(out, io.RawIOBase):
        return open(out.fileno(), "wb", closefd=False)
    return out


def _named_apart(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rename columns that have an earlier column's name: a dict keeps one value for each name.

    The second column `a` becomes `a_1`, as in DuckDB.
    """
    if len(set(batch.schema.names)) == batch.num_columns:
        return batch
    names: dict[str, None] = {}
    for name in batch.schema.names:
        others = (f"{name}_{number}" for number in itertools.count(1))
        free = (each for each in others if each not in names and each not in batch.schema.names)
        names[name if name not in names else next(free)] = None
    return batch.rename_columns(list(names))


def _line(document: object) -> bytes:
    return to_json(document).encode() + b"\n"


# --- how a command ends -------------------------------------------------------------------------


class Terminated(BaseException):
    """Raised on SIGTERM or SIGHUP, to end the command as Ctrl-C does."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated(number)


def take_signals() -> None:
    """Let SIGTERM and SIGHUP unwind the stack, so that handles and files are closed."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:  # leave SIGHUP ignored under nohup
            signal.signal(number, _terminate)


def complain(text: object) -> None:
    """Print one line on stderr."""
    with suppress(OSError):  # stderr may be closed, or a pipe without a reader
        print(f"shmring: {clean(' '.join(str(text).split()))}", file=sys.stderr, flush=True)


def _is_foreseen(error: BaseException) -> bool:
    foreseen = (ShmringError, ValueError, OSError, MemoryError, OverflowError)
    return isinstance(error, foreseen) or type(error).__module__.startswith("pyarrow")


def give_up_stdout() -> None:
    """Send stdout to /dev/null: Python's last flush at exit must neither wait nor raise."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


# CHANGE: edit this for a new option of a journal
# Words of the Python API in error texts, each with its equivalent on the command line.
_OPTIONS = {
    "allow_gap=True": "--allow-gap",
    "shmring.durable.restore()": "`shmring journal restore`",
}


def _in_options(text: str) -> str:
    for name, option in _OPTIONS.items():
        text = text.replace(name, option)
    return text


def status_of(error: BaseException) -> int | None:
    """Return the exit status for an error; print one line on stderr if the error is foreseen.

    None leaves the error to the caller: click handles its own errors, and any other error is a bug
    in shmring, which gets a traceback.
    """
    if isinstance(error, KeyboardInterrupt):
        return 128 + signal.SIGINT
    if isinstance(error, Terminated):
        return 128 + error.number
    if isinstance(error, BrokenPipeError):
        give_up_stdout()
        return 128 + signal.SIGPIPE
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 1
    if isinstance(error, (click.exceptions.Exit, click.ClickException, click.Abort)):
        return None
    if not _is_foreseen(error):
        return None
    if isinstance(error, OSError) and not isinstance(error, ShmringError) and error.strerror:
        try:
            sys.stdout.flush()
        except OSError:
            give_up_stdout()
        at = f"{error.filename}: " if error.filename is not None else ""
        text = f"{at}{error.strerror}"
    else:
        text = _in_options(str(error)) or "out of memory"
    complain("; ".join([text, *getattr(error, "__notes__", ())]))
    return 1


@contextmanager
def noted(note: Callable[[], str]) -> Generator[None]:
    """Add a note to an error that leaves the block, unless the note is empty."""
    try:
        yield
    except Exception as error:
        if text := note():
            error.add_note(text)
        raise


@contextmanager
def exit_on_error() -> Generator[None]:
    """Turn the end of a command into its exit status."""
    try:
        yield
    except BaseException as error:
        status = status_of(error)
        if status is None:
            raise
        raise SystemExit(status) from None
