"""The Pythons of this machine: what pyenv keeps, and those in PATH."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

SUPPORTED = ("3.11", "3.12", "3.13", "3.14")
# Free-threaded ones take no wheel of the stable ABI.
_ASK = """
import ensurepip, sys, sysconfig, venv
assert not sysconfig.get_config_var("Py_GIL_DISABLED")
print(f"{sys.version_info[0]}.{sys.version_info[1]}")
"""


def interpreters() -> dict[str, Path]:
    """One of each supported version that is here and can make environments."""
    found: dict[str, Path] = {}
    for version in SUPPORTED:
        for python in _candidates(version):
            said = subprocess.run([python, "-c", _ASK], capture_output=True, text=True)
            if said.stdout.strip() == version:
                found[version] = python
                break
    return found


def _candidates(version: str) -> Iterator[Path]:
    yield from sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}"))
    in_path = shutil.which(f"python{version}")
    if in_path is not None:
        yield Path(in_path)
