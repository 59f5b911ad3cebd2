"""Samples of a benchmark that count, and samples that are compared."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(ROOT)
    from benchmarks import company, harness

    monkeypatch.setattr(company, "wait_until_alone", lambda patience: None)
    yield harness
    for name in [name for name in sys.modules if name.partition(".")[0] == "benchmarks"]:
        del sys.modules[name]


class Mark:
    def __init__(self, foreign: float) -> None:
        self._foreign = foreign

    def foreign(self) -> float:
        return self._foreign


def measured(
    harness: Any,
    monkeypatch: pytest.MonkeyPatch,
    foreign: list[float],
    run: Callable[[float], Any] | None = None,
    **more: Any,
) -> Any:
    """A row of one round, whose samples are 1, 2, 3, ..."""
    marks = iter(foreign)
    values = iter(range(1, 100))
    monkeypatch.setattr(harness.company, "mark", lambda: Mark(next(marks)))
    row = harness.Row(
        "row", "M msg/s", run or (lambda seconds: harness.Sample(float(next(values))))
    )
    question = harness.Question("question", "?", [row], warm_up=False, **more)
    list(harness.measure(question, harness.Settings(rounds=1, seconds=0.1, quick=True)))
    return row


def test_sample_beside_a_busy_foreign_process_is_taken_again(
    harness: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = measured(harness, monkeypatch, [0.5, 0.16, 0.15])
    assert (row.values, row.repeated, row.disturbed) == ([3.0], 2, 0)


def test_least_disturbed_sample_is_kept_and_counted_when_it_never_becomes_quiet(
    harness: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = measured(harness, monkeypatch, [0.5, 0.2, 0.6])
    assert (row.values, row.repeated, row.disturbed) == ([2.0], harness.REPEATS, 1)


def test_disturbed_sample_is_kept_when_its_repetition_fails(
    harness: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = iter([5.0])
    row = measured(harness, monkeypatch, [0.5] * 9, lambda seconds: harness.Sample(next(values)))
    assert (row.values, row.repeated, row.disturbed) == ([5.0], 1, 1)
    assert row.failed
    assert row.problem.startswith("failed: StopIteration")


def test_sample_during_which_the_cores_moved_is_taken_again(
    harness: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways = iter([100.0, 400.0, 400.0, 410.0])
    row = measured(harness, monkeypatch, [0.0] * 9, line=lambda: next(ways))
    assert (row.values, row.repeated, row.disturbed) == ([2.0], 1, 0)
    assert row.also() == {"ns a line": 405.0}


@pytest.mark.parametrize("received", [(300, 2), (600, 7), (0, 0)])
def test_peer_that_loses_or_changes_a_message_fails(
    harness: Any, received: tuple[int, int]
) -> None:
    from benchmarks import sides

    def arrived(nbytes: int, total: int) -> float:
        sent = {"start": 0, "bytes": 600, "sum": 8}
        return sides._rate("peer", sent, {"end": 60, "bytes": nbytes, "sum": total})

    assert arrived(600, 8) == 1e10
    with pytest.raises(RuntimeError, match="arrived"):
        arrived(*received)


def test_ratio_is_of_rounds_in_which_the_cores_lay_alike(harness: Any) -> None:
    def row(*samples: tuple[float, float]) -> Any:
        found = harness.Row("row", "M msg/s", lambda seconds: None)
        found.samples = [harness.Sample(value, line=(way, way)) for value, way in samples]
        return found

    assert row((10, 100), (30, 110), (1, 500)).ratio_to(row((5, 100), (10, 120), (1, 100))) == 2.5
    assert row((10, 100)).ratio_to(row((5, 500))) == 2.0


def test_this_process_is_not_foreign_to_itself(harness: Any) -> None:
    company = harness.company
    assert company._is_ours(os.getpid(), company._processes())
    assert company.mark().foreign() >= 0


CORES = sorted(os.sched_getaffinity(0))
ELSEWHERE = CORES[-1] + 1
ME = 1_000
KERNEL = 0x0020_0040  # PF_KTHREAD, and another flag


class Machine:
    """A machine's /proc, in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.busy(0)
        self.process(ME, parent=7, ticks=0)

    def busy(self, ticks: int) -> None:
        """Our first core was, for so many ticks."""
        lines = [f"cpu{core} {ticks if core == CORES[0] else 0}" + 9 * " 0" for core in CORES]
        (self._folder / "stat").write_text("\n".join(lines))

    def process(
        self, pid: int, *, parent: int, ticks: int, flags: int = 0, core: int = CORES[0]
    ) -> None:
        """It has taken so many ticks."""
        fields = ["R", *["0"] * 49]  # the fields after the name
        for number, value in ((1, parent), (6, flags), (11, ticks), (19, pid), (36, core)):
            fields[number] = str(value)
        (self._folder / str(pid)).mkdir(exist_ok=True)
        (self._folder / str(pid) / "stat").write_text(f"{pid} (a) b) {' '.join(fields)}\n")


@pytest.fixture
def machine(harness: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    monkeypatch.setattr(harness.company, "_PROC", tmp_path)
    monkeypatch.setattr(os, "getpid", lambda: ME)
    return Machine(tmp_path)


def test_ordinary_process_with_number_2_is_foreign_and_so_are_its_children(
    harness: Any, machine: Machine
) -> None:
    machine.process(2, parent=1, ticks=0)
    machine.process(30, parent=2, ticks=0)
    begun = harness.company.mark()
    machine.busy(100)
    machine.process(30, parent=2, ticks=100)
    assert begun.foreign() > 0


def test_threads_of_the_kernel_are_not_foreign(harness: Any, machine: Machine) -> None:
    machine.process(2, parent=0, ticks=0, flags=KERNEL)
    machine.process(30, parent=2, ticks=5_000, flags=KERNEL)
    begun = harness.company.mark()
    machine.busy(100)
    machine.process(30, parent=2, ticks=5_060, flags=KERNEL)
    machine.process(31, parent=2, ticks=40, flags=KERNEL)
    assert begun.foreign() == 0


def test_threads_of_the_kernel_on_other_cores_hide_nobody(harness: Any, machine: Machine) -> None:
    machine.process(30, parent=2, ticks=0, flags=KERNEL, core=ELSEWHERE)
    begun = harness.company.mark()
    machine.busy(100)
    machine.process(30, parent=2, ticks=100, flags=KERNEL, core=ELSEWHERE)
    assert begun.foreign() > 0


def test_chosen_rows_keep_the_rows_that_they_compare_with(harness: Any) -> None:
    rows = [
        harness.Row("own", "x", lambda _: harness.Sample(1.0)),
        harness.Row("rings", "x", lambda _: harness.Sample(1.0), (harness.Target(1, "own"),)),
        harness.Row("other", "x", lambda _: harness.Sample(1.0), compare=("rings",)),
    ]
    question = harness.Question("question", "?", rows)
    question.keep("^ri")
    assert [row.name for row in question.rows] == ["own", "rings"]


def test_chart_has_the_rows_that_were_measured_in_seconds_per_million_rows(
    harness: Any, tmp_path: Path
) -> None:
    from benchmarks import bars

    def row(name: str, median: float, unit: str, **also: float) -> dict[str, Any]:
        return {"name": name, "median": median, "unit": unit, "also": also}

    rows = [
        row("pandas_udf above scan: Spark's own", 2.0, "M rows/s"),
        row("pandas_udf above scan: over rings", 4.0, "M rows/s"),
        row("pandas_udf above filter: over rings", 4.0, "M rows/s"),
        row("applyInPandas, cogroups of 100 and 100: Spark's own", 0.1, "M rows/s"),
        row("applyInPandas, cogroups of 100 and 100: over rings", 1.0, "M rows/s"),
        row("identity mapInArrow, no sidecar", 0.3, "GB/s", **{"M rows/s": 1.0}),
        row(
            "identity sidecar through the ring, straight from the JVM",
            3.0,
            "GB/s",
            **{"M rows/s": 10.0},
        ),
    ]
    page = tmp_path / "page.md"
    page.write_text("<!-- bars -->\nold\n<!-- /bars -->\nrest\n")
    bars.draw(page, {"questions": [{"rows": rows}]})
    assert page.read_text() == (
        "<!-- bars -->\n"
        "```text\n"
        "seconds per million rows  Spark at its best    over rings\n"
        "pandas_udf above a scan   0.50 #######         0.25 ####\n"
        "cogroups of 100 and 100   10.0                 1.00 ##############\n"
        "the same by a sidecar     1.00 ##############  0.10 #\n"
        "```\n"
        "<!-- /bars -->\nrest\n"
    )
    with pytest.raises(ValueError, match="no line of the chart"):
        bars.chart({"questions": []})


def test_bench_removes_what_killed_runs_have_left(harness: Any) -> None:
    from benchmarks.payload import unique_name
    from benchmarks.run import sweep

    shm = Path("/dev/shm")
    name = "import sys; from benchmarks.payload import unique_name; print(unique_name())"
    dead = subprocess.run([sys.executable, "-c", name], capture_output=True, text=True, check=True)
    _, pid, namespace, _ = dead.stdout.split("-")
    left = [shm / f"{prefix}{dead.stdout.strip()}-x" for prefix in ("", "shmring.")]
    mine = shm / f"{unique_name()}-x"
    elsewhere = shm / f"bench-{pid}-{int(namespace) + 1}-0-x"  # its process may live
    try:
        for folder in (left[0], mine, elsewhere):
            folder.mkdir()
        left[1].touch()
        assert sorted(sweep(lambda each: each == int(pid))) == [path.name for path in left]
        assert not any(path.exists() for path in left)
    finally:
        mine.rmdir()
        elsewhere.rmdir()
