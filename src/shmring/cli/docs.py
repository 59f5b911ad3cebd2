"""``shmring docs``: the documentation, as the wheel brings it."""

from __future__ import annotations

from pathlib import Path

import click

import shmring
from shmring.cli.options import json_option
from shmring.cli.output import emit, wants_json
from shmring.errors import ShmringError

__all__ = ["docs"]

_FOLDER = Path(shmring.__file__).parent / "docs"


@click.command()
@json_option
@click.option("--open", "show", is_flag=True, help="Open it in a browser, too.")
def docs(show: bool) -> None:
    """Print where the documentation of this version lies: the path of its first page."""
    page = _FOLDER / "index.html"
    if not page.exists():
        raise ShmringError(
            f"this installation of shmring has no documentation ({page}): a wheel brings it; "
            "built from the source tree, `make docs` there makes out/docs/index.html"
        )
    if wants_json():
        emit({"path": str(page)})
    else:
        click.echo(page)
    if show:
        import webbrowser

        if not webbrowser.open(page.as_uri()):
            raise ShmringError(f"no browser was found here: open {page} in one")
