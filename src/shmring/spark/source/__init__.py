"""Rings as a data source of Spark's, in its Python workers.

``read``, ``stream`` and ``write`` are its three sides, on ``options`` and ``columns``. A read looks
up its ``ring_place`` and its ``first_read``; a write stages (``staging``), publishes
(``publication``) and keeps a ``sink_record``.
"""

from shmring.spark.source.data_source import RingSource

__all__ = ["RingSource"]
