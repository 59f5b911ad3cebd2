"""Division of the files of a run among its workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

OF_SPARK = 3  # number of workers that begin with Spark's files


class SparksApart(LoadFileScheduling):
    """Three workers begin with Spark's files; the others take these when there are no others.

    A worker that has one of them starts a JVM, which takes twenty seconds of CPU to get warm.
    """

    def _assign_work_unit(self, node: WorkerController) -> None:
        if int(node.gateway.id.removeprefix("gw")) >= OF_SPARK:
            for file in self.workqueue:
                if not file.startswith(("tests/spark/", "tests/jvm/")):
                    self.workqueue.move_to_end(file, last=False)
                    break
        super()._assign_work_unit(node)
