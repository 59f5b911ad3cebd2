"""Whether this process was forked from the one that opened something."""

from __future__ import annotations

import os

__all__ = ["lineage"]


class _Lineage:
    """How many forks lie between the program's first process and this one.

    To compare that costs a tenth of asking the kernel for the process's id.
    """

    forks = 0

    def fork(self) -> None:
        self.forks += 1


lineage = _Lineage()
os.register_at_fork(after_in_child=lineage.fork)
