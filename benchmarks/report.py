"""The results: a table for people, JSON for machines, a plot."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import xml.etree.ElementTree
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks import company
from benchmarks.harness import Question, Row, Settings, Target

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PACKAGES = ("numpy", "pyarrow", "pyspark", "pyzmq", "iceoryx2")


@dataclass(frozen=True)
class Verdict:
    """A target and what became of it; `met` is None where nothing could be said."""

    target: str
    figure: str
    met: bool | None


def number(value: float) -> str:
    """Three digits that matter."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def judge(question: Question, row: Row, target: Target) -> Verdict:
    """Whether a row reached its target."""
    least = "at most" if row.lower_is_better else "at least"
    if target.of is None:
        text = f"{least} {number(target.limit)} {row.unit}"
        if not row.samples:
            return Verdict(text, "not measured", None)
        value = row.median
        figure = f"{number(value)} {row.unit}"
    else:
        text = f"{least} {number(target.limit)} x {target.of}"
        other = question.row(target.of)
        if not row.samples or other is None or not other.samples:
            return Verdict(text, "not measured", None)
        value = row.ratio_to(other)
        figure = f"{number(value)} x"
    met = value <= target.limit if row.lower_is_better else value >= target.limit
    return Verdict(text, figure, met)


def verdicts(question: Question, row: Row) -> list[Verdict]:
    """All targets of a row."""
    return [judge(question, row, target) for target in row.targets]


def _comparisons(question: Question, row: Row) -> list[tuple[str, float]]:
    others = [question.row(name) for name in (*row.compare, *row.rivals)]
    return [(o.name, row.ratio_to(o)) for o in others if o and o.samples and row.samples]


def _ahead(question: Question, row: Row) -> dict[str, float]:
    """The rivals who are ahead of this row, and its ratio to each."""
    ratios = dict(_comparisons(question, row))
    return {n: ratios[n] for n in row.rivals if n in ratios and row.is_behind(ratios[n])}


def _result(question: Question, row: Row) -> str:
    lines: list[str] = []
    for verdict in verdicts(question, row):
        colour = {True: "green", False: "red", None: "yellow"}[verdict.met]
        word = {True: "met", False: "missed", None: "not judged"}[verdict.met]
        lines.append(f"[{colour}]{word}[/]: {verdict.figure} [dim]({escape(verdict.target)})[/]")
    ahead = _ahead(question, row)
    lines += [
        f"{number(r)} x [dim]{escape(name)}[/]{' [yellow]is ahead[/]' if name in ahead else ''}"
        for name, r in _comparisons(question, row)
    ]
    if row.repeated:
        lines.append(f"[dim]{row.repeated} samples taken again[/]")
    if row.disturbed:
        lines.append(f"[yellow]{row.disturbed} of {len(row.samples)} samples disturbed[/]")
    if row.problem:
        lines.append(f"[yellow]{escape(row.problem)}[/]")
    return "\n".join(lines)


def print_question(console: Console, question: Question) -> None:
    """One table a question."""
    table = Table(title=escape(question.title), title_justify="left", expand=False)
    table.add_column("row", max_width=46)
    table.add_column("median", justify="right", no_wrap=True)
    table.add_column("min - max", justify="right", no_wrap=True)
    table.add_column("also", justify="right")
    table.add_column("target, ratio", overflow="fold")
    for row in question.rows:
        if row.samples:
            figures = (
                f"{number(row.median)} {row.unit}",
                f"{number(min(row.values))} - {number(max(row.values))}",
                ", ".join(f"{number(value)} {name}" for name, value in row.also().items()),
            )
        else:
            figures = ("-", "", "")
        table.add_row(escape(row.name), *map(escape, figures), _result(question, row))
    console.print(table)


def _samples(questions: Sequence[Question]) -> str:
    """Line about repeated samples and the distance between the cores."""
    rows = [row for question in questions for row in question.rows]
    lines = [way for row in rows for sample in row.samples if sample.line for way in sample.line]
    text = (
        f"{sum(len(row.samples) for row in rows)} samples, {sum(row.repeated for row in rows)} "
        f"taken again, {sum(row.disturbed for row in rows)} kept though foreign processes had "
        f"more than {company.LIMIT:.0%} of a core, or the cores moved."
    )
    if lines:
        text += f" A cache line took {min(lines):.0f} to {max(lines):.0f} ns."
    return text


def print_summary(console: Console, questions: Sequence[Question]) -> None:
    """How many targets were met, and each one that was not."""
    judged = [(q, row, v) for q in questions for row in q.rows for v in verdicts(q, row)]
    met = sum(verdict.met is True for _, _, verdict in judged)
    console.print(f"\n{_samples(questions)}", highlight=False)
    console.print(f"{met} of {len(judged)} targets met.")
    for question, row, verdict in judged:
        if verdict.met is not True:
            word = "[red]missed[/]" if verdict.met is False else "[yellow]not judged[/]"
            console.print(
                f"  {word} {escape(question.name)}: {escape(row.name)}: "
                f"{escape(verdict.figure)}, wanted {escape(verdict.target)}"
            )
    for question in questions:
        for row in question.rows:
            for name, ratio in _ahead(question, row).items():
                console.print(
                    f"  [yellow]ahead of us[/] {escape(question.name)}: {escape(name)}; "
                    f"{escape(row.name)} is {number(ratio)} x"
                )


def _first_line(path: str, key: str) -> str | None:
    lines = Path(path).read_text().splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(key)), None)


def _commit() -> str | None:
    done = subprocess.run(
        ["git", "-C", Path(__file__).parent, "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or None


def _versions() -> dict[str, str]:
    found: dict[str, str] = {}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    project = xml.etree.ElementTree.parse(Path(__file__).parent / "peers" / "java" / "pom.xml")
    for jar in project.findall(".//{*}dependency"):
        found[jar.findtext("{*}artifactId", "")] = jar.findtext("{*}version", "")
    return found


def _placement() -> str:
    """Cores of a row's two processes, and the caches that these share."""
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        return f"CPU {allowed[0]} for both"
    folders = [Path(f"/sys/devices/system/cpu/cpu{number}") for number in allowed[:2]]
    pair = f"CPU {allowed[0]} and {allowed[1]}"

    def both(name: str) -> bool:
        texts = [path.read_text() if (path := f / name).exists() else None for f in folders]
        return texts[0] is not None and texts[0] == texts[1]

    if both("topology/thread_siblings_list"):
        return f"{pair}, threads of one core"
    shared = [
        f"L{(cache / 'level').read_text().strip()}"
        for cache in sorted(folders[0].glob("cache/index*"))
        if both(f"cache/{cache.name}/shared_cpu_list")
    ]
    package = "one package" if both("topology/physical_package_id") else "two packages"
    return f"{pair}, two cores of {package}{', which share ' if shared else ''}{', '.join(shared)}"


def machine() -> dict[str, Any]:
    """Where and when this is measured."""
    return {
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "cpu": _first_line("/proc/cpuinfo", "model name") or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "placement": _placement(),
        "memory": _first_line("/proc/meminfo", "MemTotal"),
        "kernel": platform.release(),
        "python": sys.version.split()[0],
        "packages": _versions(),
        "commit": _commit(),
        "load_before": os.getloadavg()[0],
    }


def as_document(
    where: dict[str, Any], settings: Settings, questions: Sequence[Question]
) -> dict[str, Any]:
    """A run as plain values: what is written as JSON, and drawn."""
    return {
        "machine": where,
        "settings": vars(settings),
        "questions": [
            {
                "name": question.name,
                "title": question.title,
                "rows": [_row_as_dict(question, row) for row in question.rows],
            }
            for question in questions
        ],
    }


def write_json(path: Path, document: dict[str, Any]) -> None:
    """One line a row, so that two runs can be compared line by line."""
    questions = [
        f'{{"name": {json.dumps(question["name"])}, "title": {json.dumps(question["title"])}, '
        '"rows": [\n' + ",\n".join(map(json.dumps, question["rows"])) + "\n]}"
        for question in document["questions"]
    ]
    path.write_text(
        f'{{"machine": {json.dumps(document["machine"])},\n'
        f'"settings": {json.dumps(document["settings"])},\n'
        '"questions": [\n' + ",\n".join(questions) + "\n]}\n"
    )


def merged(run: dict[str, Any], later: dict[str, Any], order: Sequence[str]) -> dict[str, Any]:
    """A run with questions of a later one, which take the places of its own; all in this order.

    The machine stays that of the first run: a text beside the figures must say where they differ.
    """
    questions = {question["name"]: question for question in run["questions"] + later["questions"]}
    known = [name for name in order if name in questions]
    unknown = [name for name in questions if name not in order]
    return run | {"questions": [questions[name] for name in known + unknown]}


def _row_as_dict(question: Question, row: Row) -> dict[str, Any]:
    return {
        "name": row.name,
        "unit": row.unit,
        "lower_is_better": row.lower_is_better,
        "median": row.median if row.samples else None,
        "min": min(row.values, default=None),
        "max": max(row.values, default=None),
        "also": row.also(),
        "repeated": row.repeated,
        "disturbed": row.disturbed,
        "ratios": dict(_comparisons(question, row)),
        "ahead": list(_ahead(question, row)),
        "targets": [vars(target) | vars(judge(question, row, target)) for target in row.targets],
        "problem": row.problem,
    }


def write_plot(path: Path, document: dict[str, Any], only: str | None = None) -> None:
    """A panel of bars for each question and unit; whiskers from the least to the most.

    Parameters
    ----------
    document : as `as_document` gives it
    only : the name of the one question to draw; None draws all
    """
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.fonttype"] = "none"  # text is text: a third of the size, and can be searched
    from matplotlib import pyplot as plt

    panels = [
        (question["title"], unit, rows)
        for question in document["questions"]
        if only in (None, question["name"])
        for unit in dict.fromkeys(row["unit"] for row in question["rows"])
        if (rows := [r for r in question["rows"] if r["unit"] == unit and r["median"] is not None])
    ]
    if not panels:
        return
    heights = [0.9 + 0.28 * len(rows) for _, _, rows in panels]
    figure, axes = plt.subplots(
        len(panels),
        1,
        figsize=(11, sum(heights) + 0.6),
        height_ratios=heights,
        squeeze=False,
        layout="constrained",
    )
    for axis, (title, unit, rows) in zip(axes[:, 0], panels, strict=True):
        _panel(axis, title, unit, rows)
    where = document["machine"]
    figure.suptitle(
        f"shmring {where['commit'] or ''}: {where['cpu']}, {where['cores']} cores, "
        f"Linux {where['kernel']}, Python {where['python']}",
        fontsize=9,
    )
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _colour(row: dict[str, Any]) -> str:
    reached = [target["met"] for target in row["targets"]]
    if False in reached:
        return "tab:red"
    if True in reached:
        return "tab:green"
    return "tab:gray"


def _panel(axis: Axes, title: str, unit: str, rows: list[dict[str, Any]]) -> None:
    places = range(len(rows))
    middles = [row["median"] for row in rows]
    axis.barh(
        places,
        middles,
        xerr=[
            [row["median"] - row["min"] for row in rows],
            [row["max"] - row["median"] for row in rows],
        ],
        color=[_colour(row) for row in rows],
        height=0.7,
        error_kw={"elinewidth": 1, "capsize": 2},
    )
    axis.set_yticks(places, [row["name"] for row in rows], fontsize=7)
    axis.invert_yaxis()
    positive = [value for value in middles if value > 0]
    if positive and max(positive) / min(positive) > 20:
        axis.set_xscale("log")
    for place, middle in zip(places, middles, strict=True):
        axis.annotate(
            number(middle),
            (middle, place),
            xytext=(6, 6),
            textcoords="offset points",
            fontsize=6,
            va="center",
        )
    axis.margins(x=0.12)
    better = "less is better" if rows[0]["lower_is_better"] else "more is better"
    axis.set_title(f"{title} {unit}, {better}", fontsize=8, loc="left")
    axis.tick_params(axis="x", labelsize=7)
