"""Messages that contradict themselves: Java calls them damaged, or reads them in little memory."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pyarrow as pa
import pytest
from java_programs import Java, check

import shmring

DIRECT = 64 << 20  # bytes that the program may have outside of its heap
ROWS = 21
TEXTS = pa.array([None if i % 5 == 0 else "text" * i for i in range(ROWS)])
NUMBERS = pa.array(range(ROWS), pa.int64())
LISTS = pa.array([[i, None] * (i % 3) for i in range(ROWS)], pa.list_(pa.int32()))
COLUMNS: dict[str, list[pa.Array]] = {
    "rows": [
        NUMBERS,
        TEXTS,
        LISTS,
        pa.array([i % 2 == 0 for i in range(ROWS)]),
        pa.array([[f"{i}", None] for i in range(ROWS)], pa.list_(pa.string())),
        pa.StructArray.from_arrays([NUMBERS, TEXTS], ["number", "text"]),
        pa.array([[(f"{i}", i)] for i in range(ROWS)], pa.map_(pa.string(), pa.int64())),
        pa.array([None] * ROWS),
        pa.array([b"x" * i for i in range(ROWS)], pa.large_binary()),
        NUMBERS.cast(pa.float64()),
    ],
    "encoded": [
        TEXTS.dictionary_encode(),
        NUMBERS,
        LISTS,
        pa.DictionaryArray.from_arrays(pa.array([0, None, 1] * 7, pa.int8()), LISTS),
    ],
    "views": [
        TEXTS.cast(pa.string_view()),
        NUMBERS,
        pa.array([b"x" * i for i in range(ROWS)], pa.binary_view()),
        NUMBERS.dictionary_encode(),
        pa.FixedSizeListArray.from_arrays(pa.array(range(ROWS * 2)), 2),
    ],
}


@pytest.fixture
def mutate(name: str, java: Java) -> Callable[..., tuple[int, int, str, int, int]]:
    """Reads messages that are changed at random, or as they are; what the program has printed."""

    def mutate(
        columns: list[pa.Array],
        kind: str,
        rounds: int,
        *,
        compressions: tuple[str | None, ...] = (None,),
        change: Callable[[bytearray], None] = lambda message: None,
    ) -> tuple[int, int, str, int, int]:
        batch = pa.RecordBatch.from_arrays(columns, [f"c{i}" for i in range(len(columns))])
        with shmring.create(name, slots=8192, schema=batch.schema, temporary=True) as ring:
            ring.subscribe("valid", start="earliest")
            for compression in compressions:
                with ring.arrow_writer(compression=compression) as writer:
                    writer.write(batch)
            ring.subscribe("changed", start="earliest")
            with ring.consumer("valid") as valid, ring.producer() as out:
                messages: list[tuple[bytearray, int]] = []
                for _ in compressions:
                    with valid.lease(timeout=0) as lease:
                        messages.append((bytearray(lease.data), lease.kind))
                ring.drop_branch("changed")
                for message, form in messages:
                    change(message)
                    with out.claim(len(message)) as claim:
                        claim.buffer[:] = message
                        claim.commit(kind=form)
            command = java("MutationCheck", name, kind, rounds, 46)
            command[1:1] = [f"-XX:MaxDirectMemorySize={DIRECT}"]
            read, damaged, text, direct, collections = check(command).splitlines()
        return int(read), int(damaged), text, int(direct), int(collections)

    return mutate


@pytest.mark.parametrize(
    ("columns", "compressions"),
    [
        ("rows", (None,)),
        ("rows", ("lz4", "zstd")),
        ("encoded", (None, "lz4", "zstd")),
        ("views", (None, "zstd")),
    ],
)
@pytest.mark.parametrize("rounds", [300, pytest.param(2_000, marks=pytest.mark.long)])
def test_changed_message_is_damaged_or_read(
    mutate: Callable[..., tuple[int, int, str, int, int]],
    columns: str,
    compressions: tuple[str | None, ...],
    rounds: int,
) -> None:
    kind = "rows" if columns == "rows" else "vectors"
    read, damaged, _, direct, collections = mutate(
        COLUMNS[columns], kind, rounds, compressions=compressions
    )
    assert read > rounds / 100
    assert damaged > rounds / 4
    assert direct < DIRECT / 2
    assert collections < 5


def test_views_are_read(mutate: Callable[..., tuple[int, int, str, int, int]]) -> None:
    read, *_ = mutate(COLUMNS["views"], "asis", 6, compressions=(None, "lz4", "zstd"))
    assert read == 6


@pytest.mark.parametrize(("columns", "compression"), [("rows", None), ("encoded", "lz4")])
def test_rows_that_a_column_has_and_its_batch_has_not_take_no_memory(
    mutate: Callable[..., tuple[int, int, str, int, int]], columns: str, compression: str | None
) -> None:
    def claim_more(message: bytearray) -> None:
        nodes = struct.pack("<2q", ROWS, 0)  # columns without nulls have no validity
        assert nodes in message
        at = message.rindex(nodes)
        message[at : at + 8] = struct.pack("<q", 2**31 - 8)

    read, damaged, text, direct, collections = mutate(
        COLUMNS[columns], "asis", 500, compressions=(compression,), change=claim_more
    )
    assert (read, damaged) == (0, 500)
    assert f"it has {2**31 - 8} values of {ROWS}" in text
    assert direct < DIRECT / 2
    assert collections < 5


def test_compressed_column_with_fewer_values_than_rows_is_damaged(
    mutate: Callable[..., tuple[int, int, str, int, int]],
) -> None:
    def take_as_stored(message: bytearray) -> None:
        """Say that the last column is not compressed: its compressed bytes are too few values."""
        at = message.rindex(struct.pack("<q", ROWS * 8))
        message[at : at + 8] = struct.pack("<q", -1)

    read, damaged, text, *_ = mutate(
        COLUMNS["rows"], "asis", 6, compressions=("zstd",), change=take_as_stored
    )
    assert (read, damaged) == (0, 6)
    assert "its buffer of values has" in text


def test_damaged_answer_of_a_worker_leaves_no_memory_allocated(java: Java) -> None:
    said = check(java("io.shmring.exchange.DecodeCheck")).splitlines()
    worker, advice = "the answers of a Python worker: ", "; do driver and executors run the same"
    assert said[0].startswith(f"{worker}its batches do not have 3 rows together{advice}")
    assert said[2].startswith("an answer leaves out columns that its request does not have")
    assert said[4].startswith(f"{worker}row counts of several batches in an answer in parts")
    assert said[1::2] == ["0"] * 3
