"""The record of a query's epochs, where it could not be written or was not written whole."""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from companion import place
from pyspark.sql import SparkSession

import shmring
from shmring.companions import SINK


def test_record_is_written_whole_or_not_at_all(
    java: Callable[..., list[str]], with_small_shm: Callable[..., list[str]]
) -> None:
    command = with_small_shm("1m", *java("io.shmring.spark.write.SinkRecordCheck"))
    check = subprocess.run(command, capture_output=True, text=True)
    assert check.returncode == 0, check.stderr
    full, *said, foreign = check.stdout.splitlines()
    assert "cannot note epoch 0" in full
    assert 'ring "check"' in full
    assert "No space left on device" in full
    assert said == [
        "false Optional.empty",
        "Optional.empty",
        "Optional[0 true]",
        "Optional.empty",
        "Optional[1 true]",
    ]
    assert ".shmring-sink-shmring.check-" in foreign
    assert "is no record of a query" in foreign


@pytest.mark.parametrize("left", [b"", b"0" * 40])
def test_query_starts_beside_a_record_that_was_never_written_whole(
    name: str, start_spark: Callable[..., SparkSession], tmp_path: Path, left: bytes
) -> None:
    spark = start_spark("local[2]")
    query = str(uuid.uuid4())
    source, checkpoint = tmp_path / "source", tmp_path / "checkpoint"
    spark.range(50).write.parquet(str(source))
    checkpoint.mkdir()
    (checkpoint / "metadata").write_text(json.dumps({"id": query}))
    schema = pa.schema([("id", pa.int64())])
    with shmring.create(name, slots=4096, schema=schema, temporary=True) as ring:
        ring.subscribe("b", start="earliest")
        record = Path(place(ring.path, SINK, query))
        record.write_bytes(left)
        for _ in range(2):
            stream = spark.readStream.schema("id long").parquet(str(source))
            writer = stream.writeStream.format("shmring").option("ring", ring.name)
            writer = writer.option("checkpointLocation", str(checkpoint))
            writer.trigger(availableNow=True).start().awaitTermination()
        with ring.arrow_reader("b", until="empty", copy=True) as reader:
            found = [number for batch in reader for number in batch["id"].to_pylist()]
        assert sorted(found) == list(range(50))
        assert record.stat().st_size == 128
