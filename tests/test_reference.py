"""The tables of docs/reference have what the code knows, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

from blocks import ROOT

import shmring.errors
import shmring.table_ring
from shmring.common.arguments import WAITS
from shmring.metrics import METRICS
from shmring.ring.records import Counters
from shmring.sidecars.options import PluginOptions, rows, setting_of

PAGES = ROOT / "docs" / "reference"
JAVA = ROOT / "native" / "jvm" / "java" / "io" / "shmring" / "spark"


def first_column(page: str, head: str) -> set[str]:
    """The `code` in the first cells of the page's tables whose first column is called `head`."""
    found: set[str] = set()
    inside = False
    for line in (PAGES / page).read_text().splitlines():
        if not line.startswith("|"):
            inside = False
        elif line.startswith(f"| {head} |"):
            inside = True
        elif inside:
            found |= set(re.findall(r"`([^`]+)`", line.split(" | ")[0]))
    return found


def in_java(pattern: str, *files: Path) -> set[str]:
    return {name for file in files for name in re.findall(pattern, file.read_text())}


def test_page_of_spark_has_every_option() -> None:
    files = JAVA.rglob("*Options.java")
    known = in_java(r'options\.\w+\(\s*"(\w+)"', *files) | {"ring"}
    assert {"branch", "inDoubt"} < known
    assert first_column("spark.md", "option") == known
    (names,) = in_java(r"NAMES =\s+List\.of\(([^;]*?)\.split", JAVA / "job/Options.java")
    assert set(re.findall(r"\w+", names)) == known


def test_page_of_spark_has_every_configuration_of_the_plugin() -> None:
    keys = {"function", "command", *map(setting_of, rows(PluginOptions))}
    known = {f"spark.shmring.sidecar.NAME.{key}" for key in keys}
    known |= {"spark.shmring.ring.NAME.slots"}
    known |= in_java(r'PYTHON = "(spark\.shmring\.\w+)"', JAVA / "functions/SettingsCheck.java")
    assert first_column("spark.md", "configuration of the plugin") == known


def test_pages_have_every_wait_strategy() -> None:
    assert first_column("../guides/tuning.md", "name") == set(WAITS)
    words = (PAGES / "python.md").read_text().partition("How to wait:")[2].partition(".")[0]
    assert set(re.findall(r'"(\w+)"', words)) == set(WAITS)


def test_page_of_metrics_has_every_metric_and_counter() -> None:
    metrics = in_java(r'"(ring[A-Z]\w+)"', JAVA / "read/RingReader.java")
    metrics |= in_java(r'"(ring[A-Z]\w+)"', JAVA / "write/RingWrite.java")
    metrics |= in_java(r'all\.put\("(\w+)"', JAVA / "request/FunctionTask.java")
    assert first_column("metrics.md", "metric") == metrics
    assert first_column("metrics.md", "counter") == set(Counters.__annotations__)
    lists = in_java(r"METRICS_OF_\w+ =\s+List\.of\(([^)]*)\)", JAVA / "Attendant.java")
    gauges = {name for found in lists for name in re.findall(r'"(\w+)"', found)}
    totals = in_java(r"TOTALS =\s+List\.of\(([^)]*)\)", JAVA / "request/FunctionTask.java")
    gauges |= {name for found in totals for name in re.findall(r'"(\w+)"', found)}
    gauges |= in_java(r'"functions\.(\w+)"', JAVA / "request/WorkerMetrics.java")
    page = first_column("metrics.md", "gauge")
    assert {gauge.rpartition(".")[2] for gauge in page} == gauges


def test_page_of_metrics_has_everything_that_is_exported() -> None:
    ends = {"gauge": "", "counter": "_total"}
    known = {f"shmring_{metric.name}{ends[metric.kind]}" for metric in METRICS}
    assert first_column("metrics.md", "exported") == known


def test_page_of_operations_has_every_kind_of_finding() -> None:
    package = Path(shmring.__file__).parent
    known = set(
        re.findall(
            r'[Ff]inding\([^"]*"([\w-]+)"', (package / "observers" / "findings.py").read_text()
        )
    )
    calls = re.findall(r"find\(([^,]*),", (package / "sidecars/rings.py").read_text())
    known |= {f"sidecar-{kind}" for call in calls for kind in re.findall(r'"([\w-]+)"', call)}
    assert first_column("../guides/operations.md", "kind") == known


def test_page_of_errors_has_every_error() -> None:
    page = (PAGES / "errors.md").read_text()
    rows = set(re.findall(r"^\| \{py:exc\}`(\w+) ", page, re.MULTILINE))
    ours = {
        name
        for name, value in vars(shmring.table_ring).items()
        if isinstance(value, type) and issubclass(value, Exception)
    }
    raised = {*shmring.errors.__all__, *ours}
    assert rows == raised - {"ShmringError"}
