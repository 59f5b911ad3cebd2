"""Ring files of layout 1.0 are read by C, Python and Java; tests/golden/ring/make.py wrote them."""

from __future__ import annotations

import gzip
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
GOLDEN = HERE.parent / "golden" / "ring"
MESSAGES = 500
BATCHES = 5


@pytest.mark.parametrize("kind", ["bytes", "arrow"])
@pytest.mark.parametrize("language", ["c", "python", "java"])
def test_a_ring_file_of_layout_1_0(
    java: Callable[..., list[str]],
    c_peer: Path,
    tmp_path: Path,
    language: str,
    kind: str,
) -> None:
    ring = tmp_path / "ring"
    ring.write_bytes(gzip.decompress((GOLDEN / f"{kind}-1.0.ring.gz").read_bytes()))
    count = MESSAGES if kind == "bytes" else BATCHES
    if language == "c":
        files = [str(tmp_path / f"{k}.arrow") for k in range(BATCHES)]
        what = [str(MESSAGES)] if kind == "bytes" else files
        command = [str(c_peer), "consume", kind, str(ring), *what]
    elif language == "python":
        command = [sys.executable, str(HERE / "peer.py"), "consume", kind, str(ring), str(count)]
    else:
        command = java("Peer", "consume", kind, ring, count)
    subprocess.run(command, check=True, timeout=600)
