"""Runs the benchmarks side by side and says what was met and what was missed.

See README.md beside this file.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

if not __package__:  # run as a file
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

if TYPE_CHECKING:
    from rich.console import Console

    from benchmarks.harness import Question, Settings

# In the order of the report: a module, whose question(settings) it is.
QUESTIONS = {
    "messages": "benchmarks.messages",
    "peers": "benchmarks.peer_rings",
    "arrow": "benchmarks.arrow_batches",
    "spark": "benchmarks.spark_sidecar",
    "spark-unchanged": "benchmarks.spark_unchanged",
    "driver": "benchmarks.spark_driver",
    "spark-shapes": "benchmarks.spark_shapes",
    "spark-workers": "benchmarks.spark_workers",
    "spark-metrics": "benchmarks.spark_metrics",
    "spark-read": "benchmarks.spark_rings",
    "gpu": "benchmarks.gpu",
    "cores": "benchmarks.cores",
    "journal": "benchmarks.journal",
    "commits": "benchmarks.durable",
    "table": "benchmarks.table_ring.question",
}


# Name that payload.unique_name() makes: a process id, and its namespace.
_MADE = re.compile(r"\bbench-([0-9]+)-([0-9]+)-")


def _question(name: str, settings: Settings) -> Question:
    question: Question = importlib.import_module(QUESTIONS[name]).question(settings)
    return question


def _run_question(console: Console, question: Question, settings: Settings) -> None:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from benchmarks.harness import measure

    columns = (BarColumn(20), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(question.name, total=1.0)
        for what, share in measure(question, settings):
            progress.update(task, completed=share, description=f"{question.name}: {what}")
            if not console.is_terminal:
                print(f"{question.name} {share:4.0%} {what}", file=sys.stderr, flush=True)


def sweep(is_left: Callable[[int], bool]) -> list[str]:
    """Remove rings and folders of processes that have ended, or were killed; return their names.

    Those of another PID namespace stay, because its processes cannot be seen from here.

    Parameters
    ----------
    is_left : tells by its id whether a process has left its rings and folders behind
    """
    from benchmarks.payload import NAMESPACE

    named = ((path, _MADE.search(path.name)) for path in Path("/dev/shm").iterdir())
    ours = ((path, int(made[1])) for path, made in named if made and int(made[2]) == NAMESPACE)
    left = [path for path, pid in ours if is_left(pid)]
    for path in left:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    return [path.name for path in left]


@click.command(help="Run the benchmarks side by side; say what was met and what was missed.")
@click.option("--only", "names", multiple=True, type=click.Choice(list(QUESTIONS)), help="Repeat.")
@click.option("--rows", "pattern", default="", help="Only rows that match, and their opponents.")
@click.option("--rounds", type=click.IntRange(1), help="How often each row is measured. [5]")
@click.option("--seconds", type=click.FloatRange(0.01), help="Length of one measurement. [0.5]")
@click.option("--quick", is_flag=True, help="2 short rounds: to see that it works.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write all figures.")
@click.option(
    "--into",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Put the questions into the JSON of another run, in place of its own.",
)
@click.option("--plot", "plot_path", type=click.Path(path_type=Path), help="Draw a PNG.")
@click.option(
    "--bars",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Draw Spark's bars on this page, of this run's figures and those of --into.",
)
def main(
    names: tuple[str, ...],
    pattern: str,
    rounds: int | None,
    seconds: float | None,
    quick: bool,
    json_path: Path | None,
    into: Path | None,
    plot_path: Path | None,
    bars: Path | None,
) -> None:
    """Run, print, write."""
    from rich.console import Console

    from benchmarks import report
    from benchmarks.harness import Settings

    earlier = json.loads(into.read_text()) if into else {}
    console = Console(width=None if sys.stdout.isatty() else 170)
    settings = Settings(
        rounds=rounds or (2 if quick else 5),
        seconds=seconds or (0.15 if quick else 0.5),
        quick=quick,
    )
    where = report.machine()
    console.print(
        f"{where['cpu']}, {where['cores']} cores, Linux {where['kernel']}, "
        f"Python {where['python']}, commit {where['commit']}",
        highlight=False,
    )
    console.print(where["placement"], highlight=False)
    if where["load_before"] > 0.5:
        console.print(
            f"[yellow]The machine is busy (load {where['load_before']:.1f}): samples will be taken "
            f"again, and figures be low and scattered.[/]"
        )
    questions = [_question(name, settings) for name in QUESTIONS if not names or name in names]
    for question in questions:
        question.keep(pattern)
    if left := sweep(lambda pid: not Path(f"/proc/{pid}").exists()):
        console.print(f"[yellow]Left in /dev/shm by earlier runs: {', '.join(left)}[/]")
    try:
        for question in questions:
            _run_question(console, question, settings)
            report.print_question(console, question)
    finally:
        left = sweep(lambda pid: pid == os.getpid())
    report.print_summary(console, questions)
    where["load_after"] = os.getloadavg()[0]
    document = report.as_document(where, settings, questions)
    if json_path:
        report.write_json(json_path, document)
    if into:
        earlier = report.merged(earlier, document, list(QUESTIONS))
        report.write_json(into, earlier)
    if plot_path:
        report.write_plot(plot_path, document)
    if bars:
        from benchmarks.bars import draw

        draw(bars, earlier or document)
    if left:
        console.print(f"[red]Left in /dev/shm and removed: {', '.join(left)}[/]")
    if left or any(row.failed for question in questions for row in question.rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
