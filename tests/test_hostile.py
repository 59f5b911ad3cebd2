"""Bytes that a hostile peer changes under an Arrow reader: batches, or Damaged, never a crash."""

from __future__ import annotations

import pytest
from damage import overwrite

import shmring

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
    elif compression == "lz4":
        others = {"union"}  # refused: pyarrow ends the process there
    else:
        others = set()
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
@pytest.mark.parametrize("rounds", [300, pytest.param(3000, marks=pytest.mark.long)])
@pytest.mark.parametrize("compression", ["-", "lz4", "plain"])
@pytest.mark.parametrize("schema", ["stored", "in each message"])
def test_arrow_reader_survives_any_bytes(name, child, schema, compression, rounds):
    process = child(MUTATE, name, schema, compression, 20261121, rounds)
    assert process.end() == "survived\n"


# Program that does through the binding what native/core/tests/test_scribble.c does.
SCRIBBLE = """
    import mmap, random, struct, sys
    import shmring

    name, seed, rounds = sys.argv[1:]
    EDGES = [0, 1, 2, 1023, 1024, 1025, 2**32 - 1, 2**56 - 1, 2**56, 2**63 - 1, 2**63, 2**64 - 1]

    def some(rng, claim):
        how = rng.randrange(5)
        if how == 0:
            return rng.choice(EDGES)
        if how == 1:
            return rng.randrange(2**64)
        sequence = max(claim + 20 - rng.randrange(1500), 0)
        if how == 2:
            return sequence
        bits = rng.choice([7, 8])  # as `taken` and a take have it
        return sequence << bits | rng.randrange(2**bits)

    def act(rng, out, many, one, exclusive, batches, taken):
        how = rng.randrange(12)
        if how < 3:
            out.push_many([b"x" * rng.randrange(300)] * (1 + rng.randrange(20)), timeout=0)
        elif how == 3:
            out.push(b"y" * rng.randrange(2000), timeout=0)
        elif how == 4:
            with out.claim(rng.randrange(1, 2000), timeout=0) as claim:
                claim.commit() if rng.randrange(2) else claim.abort()
        elif how == 5:
            batches.append(many.lease_many(1 + rng.randrange(40), timeout=0))
        elif how == 6 and batches:
            batch = rng.choice(batches)
            look = rng.choice(["array", "lengths", "message_ids", "slots", "offsets", "kinds"])
            sum(bytes(getattr(batch, look)))
            len(list(batch))
        elif how == 7 and batches:
            batch = batches.pop(rng.randrange(len(batches)))
            if rng.randrange(3) == 0:
                batch.nack()
            batch.release()
        elif how == 8:
            many.pop(timeout=0)
        elif how == 9:
            sequence = one.next()
            if sequence >= 0:
                taken.append(sequence)
        elif how == 10 and taken:
            one.done(taken.pop(rng.randrange(len(taken))))
        elif how == 11 and exclusive:
            one.available()

    for number in range(int(seed), int(seed) + int(rounds)):
        rng = random.Random(number)
        with shmring.create(name, slots=1024, participants=6, temporary=True) as ring:
            with open(ring.path, "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
                exclusive = rng.randrange(2) == 1
                participants = len(memory) - 1024 * 332 - 8192
                with (
                    ring.producer() as out,
                    ring.consumer("a") as many,
                    ring.consumer("b", exclusive=exclusive) as one,
                ):
                    batches, taken, claim = [], [], 0
                    for _ in range(150):
                        try:
                            act(rng, out, many, one, exclusive, batches, taken)
                            claim = ring.claimed
                        except (shmring.ShmringError, BufferError):
                            pass
                        except ValueError as error:
                            assert "not taken by" in str(error) or "not fit" in str(error), error
                        if rng.randrange(15) == 0:
                            at = rng.randrange(4096, len(memory) - 1024 * 300) // 8 * 8
                            if rng.randrange(2):
                                at = participants + rng.randrange(3 * 1280) // 8 * 8
                            memory[at : at + 8] = struct.pack("<Q", some(rng, claim) % 2**64)
                    batches.clear()
    print("survived")
"""


def test_what_a_peer_writes_anywhere_crashes_nobody(name, child):
    assert child(SCRIBBLE, name, 1, 60).end() == "survived\n"


def test_a_batch_whose_messages_are_gone_is_damaged(ring, out, inp):
    for _ in range(3):
        out.push(b"x")
    batch = inp.lease_many(3)
    control = ring.info.file_bytes - ring.slots * 332
    for slot in range(3):
        overwrite(ring.path, control + slot * 32 + 29, b"\1")  # aborted
    with pytest.raises(shmring.Damaged, match="was there when it was taken"):
        _ = batch.lengths
    batch.release()
