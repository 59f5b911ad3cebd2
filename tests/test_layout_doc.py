"""docs/layout.md is true: its tables agree with the core."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOC = (ROOT / "docs" / "layout.md").read_text()
STRUCTS = ("header", "control", "cursors", "branch", "seat")


def documented(name: str) -> dict[str, tuple[int, int]]:
    """name -> (offset, bytes) of the table under "### struct <name>"."""
    section = DOC.split(f"### struct {name}\n")[1].split("\n#")[0]
    rows = re.findall(r"^\| (\d+) \| (\d+) \| `([\w.]+)` \|", section, re.MULTILINE)
    return {field: (int(offset), int(nbytes)) for offset, nbytes, field in rows}


def test_tables_of_the_page_are_what_the_core_uses(tmp_path):
    lines = ['#include "layout.h"']
    for name in STRUCTS:
        for field, (offset, nbytes) in documented(name).items():
            lines.append(
                f"static_assert(offsetof(struct {name}, {field}) == {offset} && "
                f'sizeof(((struct {name} *)0)->{field}) == {nbytes}, "{name}.{field}");'
            )
    enums = re.findall(r"^\| (\d+) \| `((?:OPT|KIND|FLAG)_\w+)` \|", DOC, re.MULTILINE)
    assert len(enums) == 7 + 5 + 2
    lines += [f'static_assert({name} == {value}, "{name}");' for value, name in enums]
    for number, names in {
        0: ["SEAT_FREE", "BRANCH_FREE", "ROLE_ATTACHED"],
        1: ["SEAT_ACTIVE", "BRANCH_ACTIVE", "ROLE_PRODUCER", "BRANCH_EXCLUSIVE", "TAKE_PENDING"],
        2: ["SEAT_ORPHAN", "BRANCH_DROPPING", "ROLE_CONSUMER", "BRANCH_EPHEMERAL"],
        3: ["BRANCH_DROPPED"],
        4: ["BRANCH_DROP_OLDEST"],
        8: ["ADMIN_LOCK_OFFSET"],
        48: ["LEASES"],
        64: ["BRANCHES", "BODY_ALIGN"],
        248: ["MAX_PARTICIPANTS"],
        255: ["NOBODY"],
        1024: ["MIN_SLOTS"],
        32: ["sizeof(struct control)"],
        152: ["sizeof(struct header)"],
        300: ["SLOT_BYTES"],
        384: ["sizeof(struct branch)"],
        1280: ["sizeof(struct seat)"],
        25600: ["sizeof(struct cursors)"],
    }.items():
        lines += [f'static_assert({c} == {number}, "{c}");' for c in names]
    source = tmp_path / "layout.c"
    source.write_text("\n".join(lines) + "\n")
    include = ROOT / "native" / "core" / "src"
    done = subprocess.run(
        ["cc", "-std=c11", "-fsyntax-only", "-I", str(include), str(source)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
