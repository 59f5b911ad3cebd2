"""Spark's daemon of Python workers, whose workers take batches from rings where they are told to.

``spark.python.daemon.module`` names this module. It is Spark's own daemon but for that: see
:mod:`shmring.spark.exchange`.
"""

from __future__ import annotations

import socket

import pyspark.daemon

_worker = pyspark.daemon.worker


def _equipped_worker(sock: socket.socket, authenticated: bool) -> int:
    from shmring.spark.exchange import equip  # after the fork: pyarrow has threads

    equip()
    return _worker(sock, authenticated)


pyspark.daemon.worker = _equipped_worker

if __name__ == "__main__":
    pyspark.daemon.manager()
