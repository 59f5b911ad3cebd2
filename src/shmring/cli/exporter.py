"""``shmring exporter``: metrics of this host's rings and sidecars, for Prometheus."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from shmring.cli.options import DAY, Number, age_option, foreign_option, json_option
from shmring.cli.output import Terminated, say
from shmring.errors import ShmringError
from shmring.extras import need

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


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

    None is joined. Counters begin with the processes that are there when the exporter starts.
    """
    need("prometheus_client", "the exporter", "prometheus")
    from prometheus_client import CollectorRegistry

    from shmring.metrics import HostMetrics

    with HostMetrics(interval=interval, age=age, foreign=foreign) as metrics:
        registry = CollectorRegistry()
        registry.register(metrics)
        with suppress(KeyboardInterrupt, Terminated):  # how it ends
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
