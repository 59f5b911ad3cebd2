"""Tests of scripts/comments.py, which `make lint` runs."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

refused = runpy.run_path(str(Path(__file__).parents[1] / "scripts" / "comments.py"))["refused"]

RIDDLES = {
    "a.py": [
        "x = 1  # of the last request\n",
        "# Those that wait.\nx = 1\n",
        '"""What a reader finds."""\n',
        'def f():\n    """To be called first."""\n',
    ],
    "a.c": [
        "int x; /* of a message */\n",
        "/* As shmring_close() does it. */\n",
        "// whoever waits\n",
        "/* --- what may happen --- */\n",
        "/*\n * Which of them. */\n",
    ],
    "A.java": [
        "/** Whom a node's tasks ask. */\n",
        "/**\n * Sends rows.\n *\n * @param sides of a cogroup\n */\n",
        "/** @return what is left */\n",
    ],
    "a.sql": ["SELECT 1; -- as in the functions that push\n"],
}
PLAIN = {
    "a.py": [
        "x = 1  # flags of the last request\n# Waiting threads,\n# of which one sleeps.\n",
        '"""What does a sidecar cost?"""\nx = "# of what"\n',
        "#!/usr/bin/env python3\n",
    ],
    "a.c": [
        'char *s = "/* of it */";\n',
        "/* Returns the lease, which\n * those that wait see. */\n",
    ],
    "A.java": [
        "/** @param sides the inputs: one, or two for a cogroup */\n",
        "char c = '\"'; // none\n",
    ],
    "a.sql": ["SELECT 'a'; -- number of the slot\n"],
}


@pytest.mark.parametrize(("name", "text"), [(n, t) for n, ts in RIDDLES.items() for t in ts])
def test_comment_with_its_noun_elsewhere_is_refused(name: str, text: str) -> None:
    assert len(refused(name, text)) == 1


@pytest.mark.parametrize(("name", "text"), [(n, t) for n, ts in PLAIN.items() for t in ts])
def test_comment_that_can_be_read_alone_passes(name: str, text: str) -> None:
    assert refused(name, text) == []
