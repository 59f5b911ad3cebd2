"""Sidecars: processes that answer requests from other processes, batch by batch."""

from shmring.sidecars.client import Metrics, SidecarClient
from shmring.sidecars.server import Sidecar, sidecar
from shmring.sidecars.wire import Task

__all__ = ["Metrics", "Sidecar", "SidecarClient", "Task", "sidecar"]
