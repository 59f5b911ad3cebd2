"""Record batch messages that fuzz_arrow begins with: `python seeds.py FOLDER`."""

from __future__ import annotations

import datetime
import decimal
import sys
from pathlib import Path

import pyarrow as pa

DAY = datetime.date(2026, 1, 1)
BATCHES = {
    "numbers": pa.record_batch({"x": pa.array([1, None, 3]), "f": [1.5, 2.5, 3.5]}),
    "bits": pa.record_batch({"b": [True, None, False], "n": pa.nulls(3)}),
    "texts": pa.record_batch({"s": ["a", None, "bc"], "l": pa.array(["d"] * 3, pa.large_string())}),
    "times": pa.record_batch(
        {
            "t": pa.array([0], pa.timestamp("us", tz="UTC")),
            "d": pa.array([DAY]),
            "p": pa.array([decimal.Decimal("1.25")]),
            "w": pa.array([b"123"], pa.binary(3)),
        }
    ),
    "nested": pa.record_batch(
        {
            "l": [[1, 2], None],
            "m": pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int8())),
            "s": [{"a": ["x"]}, None],
            "f": pa.array([[1, 2], [3, 4]], pa.list_(pa.int16(), 2)),
        }
    ),
}


def main() -> None:
    """Write two files for each batch: one with its rows, one without rows."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    # The order is that of the schemas in fuzz_arrow.c.
    for number, (name, batch) in enumerate(BATCHES.items()):
        for rows in (batch, batch.slice(0, 0)):
            message = rows.serialize().to_pybytes()
            (folder / f"{name}{len(rows)}").write_bytes(bytes([number]) + message)


if __name__ == "__main__":
    main()
