"""Sidecars: processes that answer requests from other processes, batch by batch."""

from shmring.sidecars.client import SidecarClient
from shmring.sidecars.server import Sidecar, sidecar
from shmring.sidecars.wire import Task

__all__ = ["Sidecar", "SidecarClient", "Task", "sidecar"]
