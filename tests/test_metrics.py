"""The exporter's metrics, read by the parser of Prometheus's client library."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from blocks import ROOT
from fixture_types import RunChild, RunThread, Serve, Until
from programs import cli
from prometheus_client.parser import text_string_to_metric_families

import shmring
from shmring.metrics import METRICS, HostMetrics
from shmring.sidecars import SidecarClient
from shmring.sidecars.wire import reply_ring_name

RULES = ROOT / "deploy" / "prometheus" / "rules.yaml"
DASHBOARD = ROOT / "deploy" / "grafana" / "shmring.json"

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def parse(text: str) -> Samples:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    """Not a number if there is none, which is equal to nothing."""
    return samples.get((f"shmring_{name}", frozenset(labels.items())), math.nan)


@pytest.fixture
def exporter() -> Iterator[str]:
    """The address of one that looks ten times a second."""
    command = [sys.executable, "-m", "shmring", "exporter", "--json", "--port", "0"]
    with subprocess.Popen([*command, "--interval", "0.1"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        yield f"{ready['address']}:{ready['port']}"
        process.terminate()
        assert process.wait(60) == 0


def text_of(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as answer:
        return str(answer.read(), "utf-8")


def scrape(address: str) -> Samples:
    return parse(text_of(address))


def exported() -> set[str]:
    ends = {"gauge": "", "counter": "_total"}
    return {f"shmring_{metric.name}{ends[metric.kind]}" for metric in METRICS}


def test_ring_is_counted_beyond_the_end_of_its_processes(
    exporter: str, name: str, ring: shmring.Ring, until: Until
) -> None:
    with ring.consumer("billing") as inp:
        with ring.producer() as out:
            out.push_many([b"abc"] * 5)
            until(lambda: value(scrape(exporter), "ring_claimed_slots_total", ring=name) == 5)
            sent = {"ring": name, "role": "producer"}  # counted behind the claim
            until(lambda: value(scrape(exporter), "ring_messages_total", **sent) == 5)
            # The look that has seen these may have looked at the rest before.
            until(lambda: value(scrape(exporter), "ring_bytes_total", **sent) == 15)
            branch = {"ring": name, "branch": "billing"}
            until(lambda: value(scrape(exporter), "branch_lag_slots", **branch) == 5)
            until(lambda: value(scrape(exporter), "branch_lag_messages", **branch) == 5)
            until(lambda: value(scrape(exporter), "branch_consumers", **branch) == 1)
            until(lambda: 0 < value(scrape(exporter), "branch_lag_seconds", **branch) < 600)
        with ring.producer() as out:
            out.push(b"x")
            until(lambda: value(scrape(exporter), "ring_messages_total", **sent) == 6)
        assert inp.pop() == b"abc"
        until(
            lambda: value(scrape(exporter), "ring_messages_total", ring=name, role="consumer") == 1
        )
    samples = scrape(exporter)
    assert value(samples, "ring_slots", ring=name) == 1024
    assert 0 < value(samples, "memory_free_bytes") <= value(samples, "memory_bytes")


def test_exporter_is_for_this_host_alone_unless_told_otherwise(exporter: str) -> None:
    address, _, port = exporter.partition(":")
    assert address == "127.0.0.1"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", int(port)))  # 0.0.0.0 is this one too


def test_exporter_whose_port_is_taken_says_what_to_do(exporter: str) -> None:
    address, _, port = exporter.partition(":")
    said = cli("exporter", "--address", address, "--port", port)
    assert said.returncode == 1
    assert f"cannot listen at {address}, port {port}: Address already in use; " in said.stderr
    assert "--port (0 takes any that is free)" in said.stderr


def test_lag_in_messages_is_not_the_one_in_slots(name: str, ring: shmring.Ring) -> None:
    with (
        ring.producer() as out,
        ring.consumer("billing") as inp,
        HostMetrics(interval=None) as metrics,
    ):
        out.push(bytes(3000))
        out.push(b"x")
        out.push_end()
        metrics.look()
        key = (name, "billing")
        assert metrics.samples["branch_lag_slots"][key] == 12
        assert metrics.samples["branch_lag_messages"][key] == 2
        assert ring.stats()["branches"][0]["waiting"] == 2
        inp.pop()
        metrics.look()
        assert metrics.samples["branch_lag_messages"][key] == 1


def test_what_is_delivered_again_is_counted(name: str, ring: shmring.Ring, child: RunChild) -> None:
    code = """
        import sys, shmring
        with shmring.attach(sys.argv[1]) as ring, ring.consumer("b") as inp:
            batch = inp.lease_many(3, timeout=60)
            print("holds", flush=True)
            sys.stdin.readline()
    """
    with ring.producer() as out, HostMetrics(interval=None) as metrics:
        ring.subscribe("b")
        out.push_many([b"x"] * 4)
        reader = child(code, name)
        reader.line()
        metrics.look()
        key = (name, "consumer")
        assert metrics.samples["ring_redelivered_messages"][key] == 0
        reader.kill()
        with ring.consumer("b") as inp:
            assert [inp.pop(timeout=60) for _ in range(4)] == [b"x"] * 4
            metrics.look()
        assert metrics.samples["ring_redelivered_messages"][key] == 3
        assert metrics.samples["ring_messages"][key] == 7


def test_series_end_with_their_ring(exporter: str, name: str, until: Until) -> None:
    with shmring.create(name, slots=1024, temporary=True) as ring, ring.producer():
        until(lambda: f"'{name}'" in str(scrape(exporter)))
    until(lambda: f"'{name}'" not in str(scrape(exporter)))


def test_sidecar_and_its_findings(
    exporter: str, name: str, serve: Serve, thread: RunThread, until: Until, marker: Path
) -> None:
    serve("wait_for_marker", workers=2)

    def workers(state: str) -> float:
        return value(scrape(exporter), "sidecar_workers", sidecar=name, state=state)

    def ask() -> int:
        with SidecarClient(name) as client:
            return sum(batch.num_rows for batch in client.map([pa.record_batch({"x": [1]})]))

    until(lambda: workers("idle") == 2)
    asked = thread(ask)
    until(lambda: workers("busy") == 1)
    until(lambda: value(scrape(exporter), "sidecar_busy_seconds_total", sidecar=name) > 0)
    until(lambda: value(scrape(exporter), "sidecar_clients", sidecar=name) == 1)
    # A look that listed the rings before the client made its own may meet its request all the same.
    until(lambda: value(scrape(exporter), "sidecar_reply_bytes", sidecar=name) > 0)
    marker.touch()
    assert asked.outcome() == 1
    until(lambda: value(scrape(exporter), "sidecar_requests_total", sidecar=name) == 1)
    # A look may have met the reply ring while the client removed it.
    reply = reply_ring_name(name, "")
    until(lambda: not [labels for _, labels in scrape(exporter) if reply in str(labels)])


def test_worker_that_was_replaced_is_counted(
    exporter: str, name: str, serve: Serve, until: Until
) -> None:
    (pid,) = serve("double", workers=1).pids
    until(lambda: value(scrape(exporter), "sidecar_restarts_total", sidecar=name) == 0)
    os.kill(pid, 9)
    until(lambda: value(scrape(exporter), "sidecar_restarts_total", sidecar=name) == 1)


def test_journal_is_behind_while_it_is_stopped(
    exporter: str, name: str, ring: shmring.Ring, until: Until, tmp_path: Path
) -> None:
    with ring.journal(tmp_path), ring.producer() as out:
        out.push(b"x", durable=True)
        until(lambda: value(scrape(exporter), "journal_sync_seconds_total", ring=name) > 0)
        until(lambda: value(scrape(exporter), "journal_lag_seconds", ring=name) == 0)
    ring.subscribe("journal")
    with ring.producer() as out:
        out.push(b"y")
        until(lambda: value(scrape(exporter), "journal_lag_seconds", ring=name) > 0)


def test_shared_branch_with_the_journals_name_has_no_journals_metrics(
    name: str, ring: shmring.Ring
) -> None:
    with (
        ring.producer() as out,
        ring.consumer("journal") as inp,
        HostMetrics(interval=None) as metrics,
    ):
        out.push(b"x")
        inp.pop()
        metrics.look()
        assert metrics.samples["ring_messages"][(name, "consumer")] == 1
        for metric in ("journal_lag_seconds", "journal_sync_seconds"):
            assert (name,) not in metrics.samples[metric]


def test_no_label_is_a_process_id() -> None:
    assert {label for metric in METRICS for label in metric.labels} == {
        *("ring", "branch", "role", "state", "sidecar", "worker", "severity", "kind")
    }


def test_each_metric_is_there_without_a_value_too(exporter: str) -> None:
    text = text_of(exporter)
    families = {family.name for family in text_string_to_metric_families(text)}
    assert families == {f"shmring_{metric.name}" for metric in METRICS}
    if shutil.which("promtool"):
        subprocess.run(["promtool", "check", "metrics"], input=text, text=True, check=True)


# --- deploy/ --------------------------------------------------------------------------------------


def expressions() -> list[str]:
    rules = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    dashboard = json.loads(DASHBOARD.read_text())
    targets = [target for panel in dashboard["panels"] for target in panel.get("targets", [])]
    variables = [each["query"] for each in dashboard["templating"]["list"] if "refresh" in each]
    return [
        *(rule["expr"] for rule in rules),
        *(target["expr"] for target in targets),
        *variables,
    ]


def test_dashboard_and_rules_name_what_is_exported() -> None:
    text = "\n".join(expressions())
    named = set(re.findall(r"\bshmring_\w+", text))
    assert named <= exported()
    labels = {label for metric in METRICS for label in metric.labels} | {"instance"}
    for found in re.findall(r"\bby \(([^)]*)\)|\bon \(([^)]*)\)", text):
        assert {label.strip() for label in "".join(found).split(",")} <= labels
    assert set(re.findall(r"[{,] ?(\w+)=~?\"", text)) <= labels
    # CHANGE: edit this for a new metric
    shown = exported() - named
    assert shown <= {
        *("shmring_ring_size_bytes", "shmring_ring_claimed_slots_total"),
        *("shmring_ring_participants_limit", "shmring_ring_contended_total"),
        *("shmring_sidecar_queue_slots", "shmring_sidecar_reply_bytes"),
        "shmring_branch_lag_slots",
    }


def test_rules_are_such() -> None:
    if shutil.which("promtool"):
        subprocess.run(["promtool", "check", "rules", str(RULES)], check=True)
    names = [rule["alert"] for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]]
    assert len(set(names)) == len(names)


def test_findings_are_exported(exporter: str, name: str, until: Until) -> None:
    with shmring.create(name, slots=1024, temporary=True) as ring, ring.producer() as out:
        ring.subscribe("billing")
        out.push_many([b"x"] * 1024)
        labels = {"severity": "stuck", "kind": "no-consumer", "ring": name, "sidecar": ""}
        key = ("shmring_findings", frozenset(labels.items()))
        until(lambda: scrape(exporter).get(key) == 1)
