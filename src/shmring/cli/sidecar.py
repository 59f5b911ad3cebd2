"""``shmring sidecar``: a sidecar in the foreground."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

import click

from shmring.cli.errors import Terminated
from shmring.cli.options import Number, binary_count, json_option, sidecar_names
from shmring.cli.output import say

if TYPE_CHECKING:
    from shmring.sidecars import Sidecar

_SILENCE = 1.0  # seconds for which an end needs no word


@click.command()
@click.argument("target", metavar="MODULE:FUNCTION", required=False)
@click.option(
    "--name",
    shell_complete=sidecar_names,
    help="By which clients find it.  [default: the function's]",
)
# CHANGE: a new option of a sidecar
@click.option("--workers", type=click.IntRange(1), help="Processes that share the requests.")
@click.option(
    "--slots",
    type=binary_count,
    metavar="N",
    help="Size of the request ring.  [default: 131072, or fewer where /dev/shm is small]",
)
@click.option(
    "--existing-ring",
    is_flag=True,
    help="Wait for the request ring that another container makes, and is charged for.",
)
@click.option(
    "--timeout",
    type=Number(0, min_open=True),
    default=120.0,
    show_default=True,
    metavar="SECONDS",
    help="For the workers to load the function.",
)
@click.option(
    "--max-batch-rows",
    type=click.IntRange(1),
    metavar="N",
    help="Join the requests of several clients into batches of so many rows at most.",
)
@click.option(
    "--max-wait-ms",
    type=Number(0),
    metavar="MS",
    help="How long a request waits for others to be joined with.  [default: 5]",
)
@click.option(
    "--pin",
    is_flag=True,
    help="Pin the request ring for the GPU, in each worker that has loaded its function.",
)
@click.option(
    "--check",
    is_flag=True,
    help="Instead, of the sidecar with this name: say how it is.",
)
@click.option(
    "--busy",
    type=Number(0),
    metavar="SECONDS",
    help="With --check: status 1 if a worker may have been at one request for so long.",
)
@json_option
def sidecar(
    target: str | None,
    name: str | None,
    workers: int | None,
    slots: int | None,
    existing_ring: bool,
    timeout: float,
    max_batch_rows: int | None,
    max_wait_ms: float | None,
    pin: bool,
    check: bool,
    busy: float | None,
) -> None:
    """Serve a Python function to Spark's Python workers and other clients.

    The module is looked for in this folder too. Workers that die are replaced. Ctrl-C or SIGTERM
    ends it, with its workers and its rings.

    Name and workers may stand in @shmring.sidecar(...): the module is imported here to see them,
    unless both are given. So may how requests are joined, which each worker sees for itself.

    With --check and a sidecar's name, nothing is started: it says what each worker works on, and
    since when. Status 0 means that its workers serve, 1 that some load, are stopped, or are at one
    request for --busy seconds, 2 that none serves or loads. For probes.
    """
    if check:
        _check(name or target or "", math.inf if busy is None else busy)
    if busy is not None:
        raise click.UsageError("--busy is for --check")
    if target is None:
        raise click.MissingParameter(param_hint="'MODULE:FUNCTION'", param_type="argument")
    if not all(target.partition(":")):
        raise click.UsageError(f"a sidecar is named as module:function, not {target!r}")
    if existing_ring and slots is not None:
        raise click.UsageError("--slots is for a ring that the sidecar makes itself")
    if max_wait_ms is not None and max_batch_rows is None:
        raise click.UsageError("--max-wait-ms is how long requests wait for --max-batch-rows")
    if name is None or workers is None:
        marked = _marks(target)
        name = name or marked[0]
        workers = workers or marked[1]
    from shmring.sidecars import Sidecar

    server = Sidecar(
        target,
        name=name,
        workers=workers,
        slots=slots,
        existing_ring=existing_ring,
        max_batch_rows=max_batch_rows,
        max_wait_ms=max_wait_ms,
        pin=pin,
    )
    _serve(server, workers, timeout)


def _check(name: str, busy: float) -> NoReturn:
    from shmring.sidecars.health import check
    from shmring.sidecars.participants import others

    try:
        if not name:
            raise ValueError
        health = check(name, busy=busy)
    except ValueError:  # no sidecar can have such a name
        raise click.UsageError(f"--check is of a sidecar, by its name; {others()}") from None
    say(
        {"sidecar": name, "status": health.status, "words": health.words},
        "\n".join(f'sidecar "{name}": {line}' for line in health.words),
    )
    sys.exit(health.status)


def _serve(server: Sidecar, workers: int, timeout: float) -> None:
    def hurry(number: int, frame: object) -> None:
        server.kill()

    try:
        server.start(timeout=timeout)
        with suppress(KeyboardInterrupt, Terminated):  # how a server ends
            _say_ready(server, workers)
            server.serve_forever()
    finally:
        # A second Ctrl-C makes it quick, and leaves nothing behind either.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, hurry)
        saying = threading.Timer(_SILENCE, _say_who_is_awaited, [server])
        saying.start()
        server.stop()
        saying.cancel()


def _say_ready(server: Sidecar, workers: int) -> None:
    pids = list(server.pids)
    say(
        {"event": "ready", "name": server.name, "pids": pids, "slots": server.slots},
        f'sidecar "{server.name}" is ready: {workers} workers ({" ".join(map(str, pids))}), a ring '
        f"of {server.slots} slots",
        err=True,
    )


def _say_who_is_awaited(server: Sidecar) -> None:
    from shmring.sidecars.supervisor import GRACE

    pids = " ".join(map(str, server.pids))
    with suppress(OSError):  # a stderr that is gone
        click.echo(
            f'sidecar "{server.name}" ends when its workers ({pids}) have ended what they are at, '
            f"within {GRACE:g} s; another Ctrl-C kills them now",
            err=True,
        )


def _marks(target: str) -> tuple[str, int]:
    """Name and workers that the decorator has set, or else the usual ones."""
    from shmring.sidecars.raised import raised

    module_name, _, attribute = target.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        function: Any = import_module(module_name)
    except (KeyboardInterrupt, Terminated):
        raise
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            click.echo(raised(error), err=True)
        raise ValueError(f"cannot import {module_name}: {error}") from None
    except BaseException as error:
        click.echo(raised(error), err=True)  # the user's own
        raise ValueError(f"cannot import {module_name}: {type(error).__name__}: {error}") from None
    for part in attribute.split("."):
        if not hasattr(function, part):
            raise ValueError(f"module {module_name} has no {attribute}")
        function = getattr(function, part)
    if not callable(function):
        raise ValueError(f"{target} is not callable")
    name = getattr(function, "__sidecar_name__", attribute.rpartition(".")[2])
    return str(name), int(getattr(function, "__sidecar_workers__", 1))
