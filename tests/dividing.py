"""How a run's files are divided between its workers (pytest-xdist)."""

from __future__ import annotations

from typing import Any

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

OF_SPARK = ("tests/spark/", "tests/jvm/")


class FewSparks(LoadFileScheduling):
    """Gives Spark's files to half of the workers as long as the others have other files.

    Each worker that runs Spark's tests starts a JVM, which computes for half a minute until its
    code is compiled; and half of the time of such tests is waiting, in which the others compute.
    """

    def _assign_work_unit(self, node: WorkerController) -> None:
        number = int(node.gateway.id.removeprefix("gw"))
        if number % 2:
            units: Any = self.workqueue
            other = (unit for unit in units if not unit.startswith(OF_SPARK))
            if unit := next(other, None):
                units.move_to_end(unit, last=False)
        super()._assign_work_unit(node)
