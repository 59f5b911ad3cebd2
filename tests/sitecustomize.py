"""Every Python process that the tests start runs this module first.

Spark lets its workers find PySpark in an archive first, where nothing is compiled: each worker, and
each stream's process, would compile for half a second what lies installed beside it.
"""

from __future__ import annotations

import sys

sys.path[:] = [path for path in sys.path if "/pyspark/python/lib/" not in path]
