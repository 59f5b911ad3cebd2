"""The command line: ``shmring``, or ``python -m shmring``.

Each module has a group of commands. A command imports slow packages only when it runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from gc import freeze
from pathlib import Path
from typing import Any, cast

import click

import shmring
from shmring.cli.journal import journal
from shmring.cli.look import stat, table, top
from shmring.cli.messages import consume, produce
from shmring.cli.options import json_option
from shmring.cli.output import exit_on_error, say, status_of, take_signals
from shmring.cli.rings import create, drop_branch, gc, ls, recover, unlink
from shmring.cli.sidecar import sidecar
from shmring.cli.watch import check, exporter
from shmring.errors import ShmringError

__all__ = ["app", "main"]

_FOLDER = Path(shmring.__file__).parent / "docs"

# How /dev/null is opened in place of a closed standard stream. stdin and stdout are opened the
# wrong way round: using them fails with the system's own error. Output to a closed stderr is lost.
_INSTEAD = {"stdin": os.O_WRONLY, "stdout": os.O_RDONLY, "stderr": os.O_WRONLY}


class App(click.Group):
    """The group of all commands, listed in the order in which a new user needs them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        with exit_on_error():
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result


@click.group(cls=App, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(shmring.__version__, prog_name="shmring")
def app() -> None:
    """Pass messages and Arrow batches between processes of this host through a ring.

    RING is a ring's name ("orders"), or the path of its file if there is a / in it.

    \b
        shmring produce orders --end < orders.txt
        shmring consume orders
    """


@click.command()
@json_option
def docs() -> None:
    """Print where the documentation of this version lies: the path of its first page."""
    page = _FOLDER / "index.html"
    if not page.exists():
        raise ShmringError(
            f"this installation of shmring has no documentation ({page}): a wheel brings it; "
            "built from the source tree, `make docs` there makes out/docs/index.html"
        )
    say({"path": str(page)}, page)


# CHANGE: edit this for a new command
for _command in (
    docs,
    create,
    stat,
    top,
    produce,
    consume,
    table,
    sidecar,
    journal,
    ls,
    check,
    exporter,
    gc,
    recover,
    drop_branch,
    unlink,
):
    app.add_command(_command)


def _replace_closed_streams() -> None:
    """Replace closed standard streams by /dev/null, in this process and its children."""
    for number, (name, flags) in enumerate(_INSTEAD.items()):
        if getattr(sys, name) is None:  # open() returns the lowest free number: the stream's own
            fd = os.open(os.devnull, flags)
            os.set_inheritable(fd, fd == number)
            setattr(sys, name, os.fdopen(fd, "w" if number else "r", encoding="utf-8"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line with these arguments; None takes the arguments of this process.

    Return the exit status: 0; 1 with a line on stderr; 2 for a wrong call; 128 + n for signal n.
    `shmring check` returns the worst status of its findings: 0, 1 or 2.
    """
    if arguments is None:
        # Keep the garbage collection at exit from scanning the objects of the imported modules.
        freeze()
    _replace_closed_streams()
    with suppress(AttributeError):  # a program that calls main() may have replaced stdout
        # Escape characters that the encoding lacks: a branch's name may have any characters.
        cast("Any", sys.stdout).reconfigure(errors="backslashreplace")
    take_signals()
    given = None if arguments is None else list(arguments)
    try:
        status = app.main(given, prog_name="shmring", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:  # Ctrl-C before a command has begun
        return 130
    except OSError as error:  # writing the help text failed; commands handle their own errors
        return status_of(error) or 1
    return status if isinstance(status, int) else 0
