"""Writes the ring files beside it, with layout 1.0; run it for a new layout, under new names."""

from __future__ import annotations

import gzip
import sys
import tempfile
from pathlib import Path

import shmring

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parents[1] / "jvm")]

from test_pairs import SCHEMA, produce  # noqa: E402

MESSAGES = 500
BATCHES = 5

# CHANGE: edit this for a new version of the layout
with tempfile.TemporaryDirectory() as folder:
    for kind, schema in (("bytes", None), ("arrow", SCHEMA)):
        path = Path(folder) / kind
        with shmring.create(path=path, slots=1024, participants=8, schema=schema) as ring:
            produce(ring, kind, MESSAGES if schema is None else BATCHES)
        content = gzip.compress(path.read_bytes(), mtime=0)
        (HERE / f"{kind}-1.0.ring.gz").write_bytes(content)
