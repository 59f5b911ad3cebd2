"""Sidecars: processes that answer requests from other processes, batch by batch."""

from shmring.extras import need_pyarrow

need_pyarrow("a sidecar, whose requests are Arrow batches,")

from shmring.sidecars.client import Metrics, SidecarClient  # noqa: E402
from shmring.sidecars.server import Sidecar, SidecarFunction, sidecar  # noqa: E402
from shmring.sidecars.wire import Task  # noqa: E402

__all__ = ["Metrics", "Sidecar", "SidecarClient", "SidecarFunction", "Task", "sidecar"]
