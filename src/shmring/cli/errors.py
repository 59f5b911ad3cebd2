"""How a command ends: one line on stderr and a status, never a traceback for what is foreseen."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from types import FrameType

import click

from shmring.cli.output import clean
from shmring.errors import ShmringError

__all__ = ["Terminated", "complain", "exit_on_error", "give_up_stdout", "status_of", "take_signals"]


class Terminated(BaseException):
    """SIGTERM or SIGHUP has come: leave like after Ctrl-C."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated(number)


def take_signals() -> None:
    """Let SIGTERM and SIGHUP unwind the stack, so that handles and files are closed."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:  # nohup ignores SIGHUP
            signal.signal(number, _terminate)


def complain(text: object) -> None:
    """Print one line on stderr."""
    with suppress(OSError):  # nobody reads it
        print(f"shmring: {clean(' '.join(str(text).split()))}", file=sys.stderr, flush=True)


def _is_foreseen(error: BaseException) -> bool:
    foreseen = (ShmringError, ValueError, OSError, MemoryError, OverflowError)
    return isinstance(error, foreseen) or type(error).__module__.startswith("pyarrow")


def give_up_stdout() -> None:
    """Let nobody wait for it, or hear of it, any more: Python flushes it once more at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def status_of(error: BaseException) -> int | None:
    """Say what has to be said about the end of a command.

    Returns
    -------
    exit status; None: a bug of ours, its traceback is wanted
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
        complain(f"{at}{error.strerror}")
    else:
        complain(str(error) or "out of memory")
    return 1


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
