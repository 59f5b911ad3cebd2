"""The build fails where a page shows a character that nobody types, such as an en dash for `--`.

A line with an option that is copied from a page has to work.
"""

from __future__ import annotations

import re

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

SET_BY_MACHINES = "[\u2013\u2014\u2018\u2019\u2026]"


def _check(app: Sphinx, page: nodes.document) -> None:
    for text in page.findall(nodes.Text):
        if found := re.search(f".{{0,30}}{SET_BY_MACHINES}.{{0,30}}", text.astext()):
            raise ExtensionError(f"{app.env.docname}: this is not as it is typed: {found[0]!r}")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("doctree-read", _check)
    return {"parallel_read_safe": True}
