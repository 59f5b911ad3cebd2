"""``shmring sidecar`` runs a sidecar in the foreground."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, Unpack

import click

from shmring.cli.options import Command, Number, json_option, slot_count
from shmring.cli.output import Terminated, say
from shmring.common.words import counted
from shmring.sidecars.options import (
    COUNT,
    LOADING_SECONDS,
    MILLISECONDS,
    SECONDS,
    SLOTS,
    SWITCH,
    WORKERS,
    CommandOptions,
    SidecarOptions,
    ValueType,
    decorated,
    part,
    rows,
)

if TYPE_CHECKING:
    from shmring.sidecars import Sidecar

# CHANGE: edit this for a new option of a sidecar
_TYPES: dict[ValueType, Any] = {
    COUNT: click.IntRange(1),
    WORKERS: click.IntRange(1),
    SLOTS: slot_count,
    MILLISECONDS: Number(0),
    SECONDS: Number(0, min_open=True),
}


def _options_of_sidecars(command: Command) -> Command:
    for name, row in reversed(rows(CommandOptions).items()):
        option = f"--{name.replace('_', '-')}"
        if row.takes is SWITCH:
            command = click.option(option, is_flag=True, help=row.words)(command)
        else:
            words = f"{row.words}  [default: {row.default_words}]"
            unit = row.takes.metavar
            command = click.option(option, type=_TYPES[row.takes], metavar=unit, help=words)(
                command
            )
    return command


# CHANGE: edit this for a new option of a sidecar
@click.command()
@click.argument("target", metavar="MODULE:FUNCTION")
@click.option("--name", help="By which clients find it.  [default: the function's]")
@_options_of_sidecars
@json_option
def sidecar(target: str, name: str | None, **options: Unpack[CommandOptions]) -> None:
    """Serve a Python function to Spark's Python workers and other clients.

    The module may also be in the current folder. Workers that die are replaced. Ctrl-C or SIGTERM
    ends the sidecar, with its workers and its rings.

    The name and the number of workers may be given in @shmring.sidecar(...): the command imports
    the module to read them, unless both are given as options. How requests are joined may be given
    there, too: each worker reads that itself. `shmring check NAME` shows the sidecar's state.

    Sidecars of one name share the requests, and must serve the same: one with another file, Python,
    --slots, --pin or batching does not start, unless it is to --replace those that run.
    """
    if not all(target.partition(":")):
        raise click.UsageError(f"a sidecar is named as module:function, not {target!r}")
    if options.get("max_wait_ms") is not None and options.get("max_batch_rows") is None:
        raise click.UsageError("--max-wait-ms is how long requests wait for --max-batch-rows")
    workers = options.get("workers")
    if name is None or workers is None:
        marked = _marks(target)
        name = name or marked[0]
        workers = options["workers"] = workers or marked[1]
    from shmring.sidecars import Sidecar

    server = Sidecar(target, name=name, **part(SidecarOptions, options))
    try:
        server.start(timeout=options.get("timeout") or LOADING_SECONDS)
        with suppress(KeyboardInterrupt, Terminated):  # a signal ends the server
            _say_ready(server, workers)
            server.serve_forever()
    finally:
        # The sidecar ends within seconds: let no second Ctrl-C leave its rings behind.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        server.stop()


def _say_ready(server: Sidecar, workers: int) -> None:
    pids = list(server.pids)
    say(
        {"event": "ready", "name": server.name, "pids": pids, "slots": server.slots},
        f'sidecar "{server.name}" is ready: {counted(workers, "worker")} '
        f"({' '.join(map(str, pids))}), a ring of {server.slots} slots",
        err=True,
    )


def _marks(target: str) -> tuple[str, int]:
    """Return the name and the number of workers given in @shmring.sidecar, else the defaults."""
    from shmring.sidecars.functions import find_function, parts_of, raised

    module_name, attribute = parts_of(target)
    sys.path.insert(0, os.getcwd())
    try:
        import_module(module_name)
    except (KeyboardInterrupt, Terminated):
        raise
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            click.echo(raised(error), err=True)
        raise ValueError(f"cannot import {module_name}: {error}") from None
    except BaseException as error:
        click.echo(raised(error), err=True)  # the traceback of the user's own code
        raise ValueError(f"cannot import {module_name}: {type(error).__name__}: {error}") from None
    function: Any = find_function(target)
    if not callable(function):
        raise ValueError(f"{target} is not callable")
    name = getattr(function, "__sidecar_name__", attribute.rpartition(".")[2])
    return str(name), decorated(function).get("workers") or 1
