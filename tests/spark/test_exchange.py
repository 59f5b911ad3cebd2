"""The worker's end of the rings of a task, without Spark at the other end."""

from __future__ import annotations

import socket
import struct

import pyarrow as pa
import pytest

import shmring
from shmring.spark import exchange
from shmring.spark.exchange import Exchange, _head

TASK, NEXT_TASK = 7, 8
NO_REPORT = (0,) * 5
STREAM = pa.BufferOutputStream()
with pa.ipc.new_stream(STREAM, pa.schema([("a", pa.int64())])) as writer:
    writer.write_batch(pa.record_batch({"a": [1, 2]}))
BATCH = STREAM.getvalue().to_pybytes()


# CHANGE: edit this for a new field of a worker's message
def request(body=b"", *, flags=exchange._BATCH, total=0, groups=0):
    return _head.pack(TASK, 1, total, flags, groups, *NO_REPORT) + body


# Messages that no shmring writes: a request of half a head, and so on.
DAMAGED = {
    "head": [request()[:20]],
    "rows": [request(groups=40)],
    "batch": [request(b"\xff" * 64)],
    "end of a batch": [request(BATCH[:-120])],
    "parts": [request(b"\0" * 8, flags=exchange._PART, total=4)],
    "joined parts": [
        request(b"\0" * 8, flags=flags, total=16) for flags in (exchange._PART, exchange._BATCH)
    ],
}


@pytest.fixture
def begin(name, monkeypatch):
    """Lets the worker begin a task; the producer of its requests."""
    monkeypatch.setattr(Exchange, "_kept", None)
    requests, answers = (shmring.create(f"{name}-{end}", slots=1024) for end in "ra")
    paths = f"{requests.path}\n{answers.path}".encode()
    here, there = socket.socketpair()

    def task(stream):
        head = (exchange.MAGIC, exchange._VERSION, stream, 0, len(paths))
        there.sendall(exchange._announcement.pack(*head) + paths)
        return Exchange(worker)

    with here, there, here.makefile("rb") as worker, requests, answers:
        yield task, requests.producer("task")
        Exchange._kept.close()


@pytest.mark.parametrize("messages", DAMAGED.values(), ids=DAMAGED.keys())
def test_damaged_request_is_an_error_and_leaves_the_ring(begin, messages):
    task, producer = begin
    errors = []
    it = task(TASK)
    for _ in range(3):
        for message in messages:
            producer.push(message)
        with pytest.raises((shmring.ShmringError, struct.error)) as caught:
            next(it.batches())
        errors.append(caught.value)  # its traceback has the frames that had the lease
        it = task(TASK)
    producer.push(_head.pack(NEXT_TASK, 1, 0, exchange._END, 0, *NO_REPORT))
    it = task(NEXT_TASK)
    assert list(it.batches()) == []
    consumer = it._rings.consumer
    assert consumer.lag == 0
    assert [each["hold"] for each in it._rings.requests.participants()].count(None) == 2
