"""Benchmarks on a page: ``.. figures:: question`` shows a run's rows as a table and a plot.

The run lies in `figures/bench.json`, as `make bench` wrote it; the plots are those of `make bench`.
"""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).parent.parent.parent
RUN = ROOT / "docs" / "figures" / "bench.json"
sys.path.append(str(ROOT))


@cache
def run() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(RUN.read_text())
    return document


def _question(name: str) -> dict[str, Any]:
    for question in run()["questions"]:
        if question["name"] == name:
            return dict(question)
    raise ExtensionError(f"{RUN} has no question {name}")


def _paths(app: Sphinx, name: str) -> Path:
    return Path(app.srcdir) / "_pictures" / f"bench-{name}.svg"


def _plot(app: Sphinx, name: str) -> None:
    """Drawn again only after another run, for it takes a second."""
    from benchmarks import report

    path = _paths(app, name)
    newest = max(RUN.stat().st_mtime, Path(report.__file__).stat().st_mtime)
    if not path.exists() or path.stat().st_mtime < newest:
        report.write_plot(path, run(), name)


class Figures(SphinxDirective):
    """A question's table and plot."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        from benchmarks.report import number

        name = self.arguments[0]
        question = _question(name)
        _plot(self.env.app, name)
        self.env.note_dependency(str(RUN))
        rows: list[tuple[str, ...]] = []
        for row in question["rows"]:
            if row["median"] is None:
                rows.append((row["name"], "not measured", row["problem"] or ""))
                continue
            spread = f"{number(row['min'])} - {number(row['max'])}"
            also = [f"{number(value)} {what}" for what, value in row["also"].items()]
            ahead = [f"{number(row['ratios'][name])} x {name}" for name in row["ahead"]]
            also = ", ".join([*also, *(f"{text}, which is ahead" for text in ahead)])
            rows.append((row["name"], f"{number(row['median'])} {row['unit']}", spread, also))
        image = nodes.image(
            uri=f"/_pictures/bench-{name}.svg", alt=question["title"], classes=["picture"]
        )
        return [_table(("", "median", "least - most", "also"), rows), image]


class Machine(SphinxDirective):
    """The machine of the run."""

    def run(self) -> list[nodes.Node]:
        machine = run()["machine"]
        packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
        rows = [
            ("processor", f"{machine['cpu']}, {machine['cores']} virtual cores"),
            ("two processes", machine.get("placement", "on a core each")),
            ("memory", f"{int(machine['memory'].split()[0]) / 2**20:.0f} GiB"),
            ("system", f"Linux {machine['kernel']}, Python {machine['python']}"),
            ("packages", packages),
            ("commit", str(machine["commit"])),
            ("day", machine["time"][:10]),
        ]
        return [_table(("", ""), rows)]


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> nodes.table:
    table = nodes.table(classes=["figures"])
    group = nodes.tgroup(cols=len(head))
    table += group
    group += [nodes.colspec(colwidth=1) for _ in head]
    if any(head):
        group += nodes.thead("", _row(head))
    group += nodes.tbody("", *(_row(row + ("",) * (len(head) - len(row))) for row in rows))
    return table


def _row(cells: tuple[str, ...]) -> nodes.row:
    return nodes.row("", *(nodes.entry("", nodes.paragraph(text=cell)) for cell in cells))


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("figures", Figures)
    app.add_directive("machine", Machine)
    return {"parallel_read_safe": True}
