"""Bytes that a hostile peer changes under an Arrow reader: batches, or Damaged, never a crash."""

from __future__ import annotations

import pytest

# In a child, which a crash would end.
MUTATE = """
    import datetime, decimal, mmap, random, struct, sys
    import pyarrow as pa
    import shmring

    name, stored, compression, seed, rounds = sys.argv[1:]
    rng = random.Random(int(seed))
    batch = pa.record_batch({
        "number": pa.array(range(40), pa.int64()),
        "maybe": pa.array([None if i % 3 else i * 0.5 for i in range(40)]),
        "text": [f"text {i}" * (i % 5) for i in range(40)],
        "view": pa.array([f"a longer text {i}" for i in range(40)], pa.string_view()),
        "list": [list(range(i % 4)) for i in range(40)],
        "map": pa.array([[("k", i)] for i in range(40)], pa.map_(pa.string(), pa.int32())),
        "struct": [{"a": i, "b": [str(i)]} for i in range(40)],
        "word": pa.array(["x", "y", None, "z"] * 10).dictionary_encode(),
        "union": pa.UnionArray.from_dense(
            pa.array([i % 2 for i in range(40)], pa.int8()),
            pa.array([i // 2 for i in range(40)], pa.int32()),
            [pa.array(range(20)), pa.array([str(i) for i in range(20)])]),
        "runs": pa.RunEndEncodedArray.from_arrays([10, 40], [1.5, None]),
        "price": pa.array([decimal.Decimal(i) / 4 for i in range(40)], pa.decimal128(10, 2)),
        "day": pa.array([datetime.date(2026, 1, 1)] * 40),
        "fixed": pa.array([b"1234"] * 40, pa.binary(4)),
        "flag": [True, False] * 20,
        "nothing": pa.nulls(40),
    })
    if compression == "plain":  # what the binding maps; pyarrow what else there is
        others = {"view", "word", "union", "runs"}
        batch = batch.select([name for name in batch.schema.names if name not in others])
    WORDS = [0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1]

    def damage(memory, first, length):
        for _ in range(rng.choice([1, 1, 2, 4, 16])):
            # The metadata, at the front, more often than the rest.
            where = first + rng.randrange(min(length, rng.choice([64, 4000, length])))
            how = rng.randrange(4)
            if how == 0:
                memory[where] ^= 1 << rng.randrange(8)
            elif how == 1:
                memory[where] = rng.randrange(256)
            else:
                where -= where % 4
                word = struct.pack("<Q", rng.choice(WORDS) + rng.randrange(3) & 2**64 - 1)
                memory[where : where + 4 * how - 4] = word[: 4 * how - 4]

    schema = batch.schema if stored == "stored" else None
    options = {"compression": "lz4"} if compression == "lz4" else {}
    outcomes = {"read": 0, "damaged": 0}
    with shmring.create(name, slots=1024, schema=schema, temporary=True) as ring:
        with (
            ring.arrow_writer(batch.schema, **options) as out,
            ring.arrow_reader("a", validate=True) as inp,
            open(ring.path, "r+b") as file,
            mmap.mmap(file.fileno(), 0) as memory,
        ):
            slots = len(memory) - 1024 * 300
            for _ in range(int(rounds)):
                message_id = out.write(batch)
                _, _, _, length, _, _, _ = ring.rows(message_id % 1024, message_id % 1024 + 1, 0)[0]
                first = slots + message_id % 1024 * 300
                damage(memory, first, min(length, len(memory) - first - 8))
                try:
                    inp.read(timeout=5).to_pylist()
                except shmring.Damaged:
                    outcomes["damaged"] += 1
                except (UnicodeDecodeError, OverflowError, ValueError, pa.ArrowException):
                    outcomes["read"] += 1  # a sound batch of values that Python does not have
                else:
                    outcomes["read"] += 1
            out.write(batch)
            assert inp.read(timeout=5).equals(batch)
    assert all(outcomes.values()), outcomes
    print("survived")
"""


@pytest.mark.slow
@pytest.mark.parametrize("compression", ["-", "lz4", "plain"])
@pytest.mark.parametrize("schema", ["stored", "in each message"])
def test_arrow_reader_survives_any_bytes(name, child, schema, compression):
    process = child(MUTATE, name, schema, compression, 20261121, 1500)
    assert process.end() == "survived\n"


def test_reader_goes_on_behind_control_entries_that_a_peer_has_changed(name, child):
    code = """
        import mmap, random, sys
        import shmring
        rng = random.Random(7)
        with shmring.create(sys.argv[1], slots=1024, temporary=True) as ring:
            with open(ring.path, "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
                control = len(memory) - 1024 * 300 - 1024 * 32
                for _ in range(300):
                    with ring.producer() as out, ring.consumer("a", start="latest") as inp:
                        message_id = out.push(b"x" * rng.randrange(300))
                        entry = control + message_id % 1024 * 32
                        for _ in range(rng.choice([1, 3])):  # but for `published`
                            memory[entry + 8 + rng.randrange(24)] = rng.randrange(256)
                        try:
                            len(inp.pop(timeout=1))
                        except (shmring.Damaged, shmring.Empty, shmring.EndOfStream):
                            pass
                    ring.drop_branch("a")
                    ring.rows()
        print("survived")
    """
    assert child(code, name).end() == "survived\n"
