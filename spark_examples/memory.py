"""How much memory the processes take that this one has started, each shared page counted once."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Self


class Memory:
    """Watches them while a ``with`` block runs; then it has the most that it saw, in MB.

    Parameters
    ----------
    kinds : what stands in the commands of the Python processes that count, one or the other
    """

    def __init__(self, *kinds: str) -> None:
        self.java = 0.0
        self.python = 0.0
        self._kinds = kinds
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self._ended.wait(0.2):
            java = python = 0.0
            for folder in _descendants():
                try:
                    command = (folder / "cmdline").read_bytes().decode(errors="replace")
                    if Path(command.partition("\0")[0]).name == "java":
                        java += _megabytes(folder)
                    elif any(kind in command for kind in self._kinds):
                        python += _megabytes(folder)
                except OSError:  # it has just ended
                    continue
            self.java, self.python = max(self.java, java), max(self.python, python)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


def _megabytes(folder: Path) -> float:
    lines = (folder / "smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def _descendants() -> Iterator[Path]:
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat = (folder / "stat").read_text()
        except OSError:
            continue
        parents[int(folder.name)] = int(stat.rpartition(")")[2].split()[1])
    found = {os.getpid()}
    while found:
        found = {pid for pid, parent in parents.items() if parent in found}
        yield from (Path(f"/proc/{pid}") for pid in found)
