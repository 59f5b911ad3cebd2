"""One side of a pair: `produce|consume bytes|arrow RING COUNT`."""

from __future__ import annotations

import sys

import pyarrow as pa

import shmring

ROWS = 100
SCHEMA = pa.schema([("number", pa.int64()), ("text", pa.string())])


def message(i):
    """i, then as many dots as make i mod 700 bytes."""
    return str(i).ljust(i % 700, ".").encode()


def batch(k):
    """Numbers that go on from batch to batch, and texts of which every tenth is null."""
    numbers = pa.array(range(k * ROWS, (k + 1) * ROWS), pa.int64())
    texts = pa.array([None if i % 10 == 0 else f"s{i}" for i in range(ROWS)])
    return pa.record_batch([numbers, texts], schema=SCHEMA)


def produce_bytes(ring, count):
    with ring.producer("python") as producer:
        for i in range(count):
            producer.push(message(i))
        producer.push_end()


def consume_bytes(ring, count):
    with ring.consumer("pair", start="earliest") as consumer:
        for i in range(count):
            assert consumer.pop(timeout=600) == message(i)
        try:
            consumer.pop(timeout=600)
        except shmring.EndOfStream:
            return
    raise AssertionError("the end did not come last")


def produce_arrow(ring, count):
    with ring.arrow_writer() as writer:
        for k in range(count):
            writer.write(batch(k))
        writer.end()


def consume_arrow(ring, count):
    with ring.arrow_reader("pair", start="earliest", timeout=600) as reader:
        found = list(reader)
    assert found == [batch(k) for k in range(count)]


if __name__ == "__main__":
    act, kind, name, count = sys.argv[1:]
    with shmring.attach(path=name) if "/" in name else shmring.attach(name) as ring:
        globals()[f"{act}_{kind}"](ring, int(count))
