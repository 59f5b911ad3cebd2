"""The examples of docs/cli.md do what stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import shmring

PAGE = (Path(__file__).parent.parent / "docs" / "cli.md").read_text()
BLOCKS = re.findall(r"^```console\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.split("\n")[0][2:50])
def test_the_example_prints_what_the_page_says(block: str, name: str, tmp_path: Path) -> None:
    command = tmp_path / "shmring"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m shmring "$@"\n')
    command.chmod(0o755)
    source = str(Path(shmring.__file__).parent.parent)
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH")))),
    }
    steps = re.findall(r"^\$ (.*)\n((?:[^$].*\n)*)", block, flags=re.MULTILINE)
    try:
        for line, expected in steps:
            done = subprocess.run(
                ["bash", "-o", "pipefail", "-c", line.replace("orders", name)],
                env=environment,
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=600,
            )
            assert (done.returncode, done.stderr) == (0, ""), line
            if expected:
                assert done.stdout == expected, line
    finally:
        if name in shmring.rings():
            shmring.unlink(name)
