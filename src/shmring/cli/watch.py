"""``shmring check`` prints this host's findings once; ``shmring exporter`` exports metrics."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

import click

from shmring.cli.options import DAY, Number, age_option, foreign_option, json_option
from shmring.cli.output import Terminated, clean, emit, say, show_status, wants_json
from shmring.common.extras import need
from shmring.common.words import counted
from shmring.errors import ShmringError
from shmring.ring.records import Finding

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

# Seconds until `check` examines the rings again if something may hang: a participant that does not
# hang has moved by then.
_MOMENT = 1.0


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@age_option
@foreign_option
@json_option
def check(names: tuple[str, ...], age: float, foreign: bool) -> NoReturn:
    """Say what is wrong with the rings and sidecars of this host, and what mends it.

    NAME is a ring, by its name or path, or a sidecar. Without a name, the command looks at all
    rings and sidecars of this user, and at the shared memory. It joins no ring. Status 0 means that
    all is well, 1 that there is a warning, 2 that something is stuck: for monitoring and probes.

    If something may hang, the command looks a second time, a second later.
    """
    from shmring.observers.findings import MOVING, findings
    from shmring.observers.host import Observer
    from shmring.observers.spark_workers import in_words

    with Observer(names, foreign=foreign) as observer:
        look = observer.look()
        found = findings(look, age=age)
        if any(each.kind in MOVING for each in found):
            time.sleep(_MOMENT)
            before, look = look, observer.look()
            found = findings(look, before, age=age)
    status = max((each.status for each in found), default=0)
    rings = [ring.name for ring in look.rings if ring.sidecar is None and not ring.is_of_spark]
    sidecars = [ring.sidecar for ring in look.rings if ring.sidecar is not None]
    if wants_json():
        listed = [each._asdict() for each in found]
        spark = [each._asdict() for each in look.spark]
        seen = {"rings": rings, "sidecars": sidecars, "foreign": look.foreign, "spark": spark}
        emit({"status": status, **seen, "findings": listed})
    else:
        for each in found:
            print(f"{show_status(each.status)}: {subject(each)}{clean(each.words)}")
            if each.command:
                print(f"    {clean(each.command)}")
        if not found:
            both = f"{counted(len(rings), 'ring')} and {counted(len(sidecars), 'sidecar')}"
            print(f"all is well: {both}")
        for line in in_words(look.spark):
            print(line)
        if look.foreign:
            left_out = f"{counted(look.foreign, 'ring')} of other users left out"
            print(f"{left_out}: --foreign looks at other users' rings too")
    sys.stdout.flush()
    sys.exit(status)


def subject(finding: Finding) -> str:
    """Return the name of the ring or sidecar that a finding is about; empty for the host."""
    if finding.sidecar is not None:
        return f'sidecar "{clean(finding.sidecar)}": '
    return f'ring "{clean(finding.ring)}": ' if finding.ring is not None else ""


# --- metrics for Prometheus -----------------------------------------------------------------------


@click.command()
@click.option("--port", type=click.IntRange(0, 65535), default=9483, show_default=True)
@click.option(
    "--address",
    default="127.0.0.1",
    show_default=True,
    help="To listen at. At 0.0.0.0 other hosts reach it too; whoever does reads all metrics.",
)
@click.option(
    "--interval",
    type=Number(0.1, DAY),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Between two looks at the host.",
)
@age_option
@foreign_option
@json_option
def exporter(port: int, address: str, interval: float, age: float, foreign: bool) -> None:
    """Give Prometheus metrics of all rings and sidecars of this host, until Ctrl-C or SIGTERM.

    The exporter joins no ring. It adds up the counters of all participants that it finds when it
    starts or later: participants that left before the start are not counted.
    """
    need("prometheus_client", "the exporter", "prometheus")
    from prometheus_client import CollectorRegistry

    from shmring.metrics import HostMetrics

    with HostMetrics(interval=interval, age=age, foreign=foreign) as metrics:
        registry = CollectorRegistry()
        registry.register(metrics)
        with suppress(KeyboardInterrupt, Terminated):  # a signal ends the command
            _serve(port, address, registry)


def _serve(port: int, address: str, registry: CollectorRegistry) -> None:
    from prometheus_client import start_http_server

    try:
        server, thread = start_http_server(port, address, registry)
    except OSError as error:
        raise ShmringError(
            f"cannot listen at {address}, port {port}: {error.strerror}; give another port with "
            "--port (0 takes any that is free), or an address of this host with --address"
        ) from None
    try:
        port = server.server_port
        ready = {"event": "ready", "address": address, "port": port}
        say(ready, f"metrics are at http://{address}:{port}/metrics", err=True)
        threading.Event().wait()
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
