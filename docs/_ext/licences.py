"""Lays the licences of the style sheets and scripts that the pages have of others beside them.

A wheel brings the pages, and so hands these on. The JDK's tool does the same for java/.
"""

from __future__ import annotations

from importlib.metadata import distribution
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

OTHERS = ("sphinx", "furo", "sphinx-copybutton", "sphinx-design")


def _lay(app: Sphinx, exception: Exception | None) -> None:
    folder = Path(app.outdir) / "licenses"
    folder.mkdir(exist_ok=True)
    for name in OTHERS:
        files = [file for file in distribution(name).files or () if "LICENSE" in file.name]
        if not files:
            raise ExtensionError(f"no licence is installed with {name}")
        text = "\n".join(Path(str(file.locate())).read_text() for file in files)
        (folder / f"{name}.txt").write_text(text)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("build-finished", _lay)
    return {"parallel_read_safe": True}
